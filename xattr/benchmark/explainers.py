"""Methods that a plan names: ours, Captum's, or any class with an `attribute` of Captum's kind."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import captum.attr
from torch import Tensor
from torch.nn import Module

from .. import attr
from .._methods import find_methods
from ..trace.errors import MethodError
from ._objects import PATHS, content, imported, parameters, value
from .plan import Part, Plan

CAPTUM = (
    "Saliency", "InputXGradient", "IntegratedGradients", "DeepLift", "DeepLiftShap", "GradientShap", "Deconvolution",
    "GuidedBackprop", "GuidedGradCam", "LayerGradCam", "Occlusion", "FeatureAblation", "ShapleyValueSampling", "Lime",
    "KernelShap",
)  # fmt: skip
"""Methods of Captum that give one value for each pixel or place; those that we have too are ours by that name."""


@dataclass(frozen=True)
class Explainer:
    """A method with its settings.

    Attributes:
        name: what tables call it.
        make: the class, or a function of a model that returns an object with `attribute`.
        init: keywords of `make`; a text under `layer` is the path of a module.
        arguments: keywords of `attribute`.
        takes: which of `target`, `seed` and `upsample` the call takes.
        control: whether it knows nothing of the model.
        content: what decides its behaviour, for the name of a shard.
    """

    name: str
    make: Callable[..., Any]
    init: Mapping[str, Any]
    arguments: Mapping[str, Any]
    takes: frozenset[str]
    control: bool
    content: str

    def on(self, model: Module) -> Any:
        """The method on a model."""
        init = {k: value(v) for k, v in self.init.items()}
        if isinstance(init.get("layer"), str):
            init["layer"] = model.get_submodule(init["layer"])
        return self.make(model, **init)

    def keywords(self, seed: int) -> dict[str, Any]:
        """The keywords of a call: maps stay on the method's own grid, and methods that draw get the seed."""
        found: dict[str, Any] = {"upsample": None} if "upsample" in self.takes else {}
        found |= {"seed": seed} if "seed" in self.takes else {}
        return {**found, **{k: self._setting(k, v) for k, v in self.arguments.items()}}

    def attribute(self, method: Any, images: Tensor, target: Tensor, seed: int) -> Any:
        """What the method returns for some images."""
        given = {"target": target} if "target" in self.takes else {}
        return method.attribute(images, **given, **self.keywords(seed))

    def _setting(self, name: str, given: Any) -> Any:
        # GradSkip's "PAPER" and "DEFAULT" are attributes of the class.
        if name == "settings" and isinstance(given, str):
            return getattr(self.make, given)
        return value(given)


def find_explainer(plan: Plan, part: Part) -> Explainer:
    """The method of a part of a plan.

    Raises:
        PlanError: there is none of that name, it has no `attribute`, or a setting is none of its keywords.
    """
    make, settings = _found(plan, part), dict(part.settings)
    if isinstance(make, tuple):
        make, rule = make
        settings = {**({} if rule is None else {"rule": rule}), **settings}
    is_class = isinstance(make, type)
    if is_class and not callable(getattr(make, "attribute", None)):
        raise part.error(f"{make.__name__} has no `attribute`; expected a class such as captum.attr.Attribution.")
    # A classmethod's signature has no self either.
    constructor, _ = parameters(make)
    names = list(constructor)
    call, anything = parameters(make.attribute) if is_class else ({}, True)
    init = {k: v for k, v in settings.items() if k in names[1:]}
    arguments = {k: v for k, v in settings.items() if k not in init}
    known = [name for name in list(call)[1:] if name not in ("target", "inputs")]
    if dataclasses.is_dataclass(default := getattr(make, "DEFAULT", None)):  # GradSkip takes its fields by keyword
        known, anything = [*known, *(f.name for f in dataclasses.fields(default))], False
    for key in arguments:
        if not anything and key not in known:
            raise part.error(f"{part.name} takes no {key!r}; it takes {', '.join([*names[1:], *known])}.")
    choice = arguments.get("settings")
    if isinstance(choice, str) and (choice.startswith("_") or not hasattr(make, choice)):
        raise part.error(f"settings = {choice!r}; expected one of {_constants(make)}.")
    takes_first = [*list(constructor.items())[1:], *list(call.items())[1:]]
    given = (*settings, "inputs", "target")
    needed = [name for name, p in takes_first if p.default is inspect.Parameter.empty and name not in given]
    if needed:
        raise part.error(f"{part.name} needs {', '.join(needed)}; write it beside `use`.")
    takes = {name for name in ("target", "seed", "upsample") if name in call} if is_class else {"target"}
    if is_class and "target" not in takes:
        if not parameters(make.attribute)[1]:
            raise part.error(f"{part.name}.attribute takes no `target`; expected attribute(inputs, target=...).")
        takes.add("target")  # by **keywords
    control = is_class and make.__module__ == "xattr.attr.controls"
    return Explainer(part.name, make, init, arguments, frozenset(takes), control, content(plan, part, make))


def _found(plan: Plan, part: Part) -> Any:
    if not isinstance(part.use, str):
        if not callable(part.use):
            raise part.error(f"found a {type(part.use).__name__}; expected a class, a function of a model, or a name.")
        return part.use
    if ".py:" not in part.use and "." not in part.use:
        try:
            (found,) = find_methods(part.use)
        except MethodError as error:
            if part.use in CAPTUM:
                return getattr(captum.attr, part.use)
            word, colon, _ = part.use.partition(":")
            if colon and word.casefold() in {name.casefold() for name in attr.METHODS}:
                raise part.error(str(error)) from None
            if not colon:
                ours, theirs = ", ".join(attr.METHODS), ", ".join(name for name in CAPTUM if name not in attr.METHODS)
                raise part.error(
                    f"there is no method {part.use!r}; there are {ours}; of Captum {theirs}; and {PATHS}."
                ) from None
        else:
            return getattr(attr, found.kind), found.rule
    return imported(part, plan.base)


def _constants(make: Any) -> str:
    return ", ".join(name for name in vars(make) if name.isupper()) or "none"
