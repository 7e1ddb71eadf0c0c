"""Methods by the names that people type."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Module

from . import attr
from .rules import RULE_SETS
from .trace.errors import MethodError

DEFAULTS = ("GradSkip", "LRP:gamma", "GradCam")
_ALIASES = {"gae": "GenericAttention", "ig": "IntegratedGradients", "rollout": "AttentionRollout"}


@dataclass(frozen=True)
class Method:
    """A class in `xattr.attr`, and the rule it is to run under.

    Attributes:
        kind: name of the class.
        rule: value of the keyword `rule`, or `None` for the default.
    """

    kind: str
    rule: str | None = None

    @property
    def name(self) -> str:
        """What tables and pictures call it."""
        return self.kind if self.rule is None else f"{self.kind}:{self.rule}"

    def explain(self, model: Module, x: Tensor, target: int) -> Tensor:
        """The map of each image, `[B, 1, H, W]`; attributions of channels are summed."""
        arguments: dict[str, Any] = {} if self.rule is None else {"rule": self.rule}
        heat: Tensor = getattr(attr, self.kind)(model).attribute(x, target=target, **arguments)
        return heat.detach().float().sum(1, keepdim=True).cpu()


def find_methods(names: str | Iterable[str] | None) -> list[Method]:
    """Methods by name, each once.

    Args:
        names: names of classes in `xattr.attr`; capitals, `-` and `_` do not count. `gae`, `ig` and `rollout` are short
            forms, and a rule may follow a colon. `None` takes the default methods.

    Raises:
        MethodError: no such method, a rule for a method that takes none, or no name at all.

    Example:
        >>> from xattr._methods import find_methods
        >>> [m.name for m in find_methods(["gradskip", "integrated-gradients", "ig"])]
        ['GradSkip', 'IntegratedGradients']
    """
    if names is None:
        names = [name for name in DEFAULTS if name.partition(":")[0] in attr.METHODS]
    found = [_find(name) for name in ([names] if isinstance(names, str) else names)]
    if not found:
        raise MethodError(f"found no method; expected some of {', '.join(attr.METHODS)}.")
    return list(dict.fromkeys(found))


def _find(name: str) -> Method:
    word, _, rule = name.partition(":")
    known = {_plain(kind): kind for kind in attr.METHODS}
    kind = known.get(_plain(word)) or _ALIASES.get(_plain(word))
    if kind is None:
        known_names = ", ".join([*attr.METHODS, *_ALIASES])
        raise MethodError(f"there is no method {word!r}; there are {known_names}, and lrp:RULE.")
    if not rule:
        return Method(kind)
    if "rule" not in inspect.signature(getattr(attr, kind).attribute).parameters:
        raise MethodError(f"{kind} takes no rule, found {name!r}; expected {word!r}.")
    rule = rule.strip()
    if kind == "LRP" and rule not in RULE_SETS:
        raise MethodError(f"there is no rule {rule!r}, found in {name!r}; there are {', '.join(RULE_SETS)}.")
    return Method(kind, rule)


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "").replace("_", "")
