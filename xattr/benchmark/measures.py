"""Metrics that a plan names: ours, or any function that names what it wants among its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..metrics import METRICS
from ._objects import PATHS, content, imported, parameters, value
from .plan import Part, Plan

GIVEN: dict[str, str] = {
    "forward_func": "the model; a metric of ours gets it with its perturbations",
    "model": "the model",
    "inputs": "images as the model takes them, [B, C, H, W]",
    "attributions": "maps, [B, C, h, w]",
    "maps": "maps at the size of the images, [B, C, H, W]",
    "target": "explained classes, [B]",
    "masks": "what should be found, boolean [B, 1, H, W]",
    "labels": "true classes, [B]",
    "explain": "a function of images and `target` that returns maps",
}
"""What a metric may ask for, by the names of its arguments."""

_PERTURBER = ("unit", "baseline", "score")


@dataclass(frozen=True)
class Measure:
    """A metric with its settings.

    Attributes:
        name: what tables call it.
        function: returns one value for each image, or a result that holds them.
        settings: keywords.
        perturber: settings of the perturbations; `None` if it makes its own or none.
        field: where in a result the values are; `None` if they are the result.
        takes: which entries of `GIVEN` it gets.
        higher_is_better: `None` for what says nothing of quality.
        unit: of a value.
        content: what decides its behaviour, for the name of a shard.
    """

    name: str
    function: Callable[..., Any]
    settings: Mapping[str, Any]
    perturber: Mapping[str, Any] | None
    field: str | None
    takes: tuple[str, ...]
    higher_is_better: bool | None
    unit: str
    content: str

    def of(self, given: Mapping[str, Callable[[], Any]]) -> Any:
        """The result for some images, from functions that make what may be asked for."""
        return self.function(**{name: given[name]() for name in self.takes}, **self.settings)

    def values(self, result: Any, count: int) -> Tensor:
        """One number for each image, `[B]` in float64.

        Raises:
            ValueError: the result does not hold that.
        """
        found = result if isinstance(result, Tensor) else getattr(result, self.field or "value", result)
        try:
            found = torch.as_tensor(found).detach().cpu().double()
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"{self.name} returned a {type(result).__name__}; expected a tensor [{count}].") from None
        if found.shape != (count,):
            raise ValueError(f"{self.name} returned {list(found.shape)}; expected one value for each image, [{count}].")
        return found


def find_measure(plan: Plan, part: Part, masks: bool, labels: bool) -> Measure:
    """The metric of a part of a plan.

    Args:
        plan: whose base paths start from.
        part: of the plan.
        masks: whether all data have masks.
        labels: whether all data have labels.

    Raises:
        PlanError: there is none of that name, or it wants what is not there.
    """
    entry = METRICS.get(part.use) if isinstance(part.use, str) else None
    function = entry.function if entry else part.use if callable(part.use) else None
    if function is None and (":" in part.use or "." in part.use):
        function = imported(part, plan.base)
    if function is None:
        raise part.error(f"there is no metric {part.use!r}; there are {', '.join(METRICS)}, and {PATHS}.")
    takes, _ = parameters(function)
    ours = entry is not None and "forward_func" in takes and "unit" in takes
    settings = {k: value(v) for k, v in part.settings.items()}
    perturber = {k: settings.pop(k) for k in _PERTURBER if k in settings} if ours else None
    known = [name for name in takes if name not in GIVEN and name not in _HIDDEN]
    for key in settings:
        if key not in known:
            raise part.error(f"{part.name} takes no setting {key!r}; it takes {', '.join(known) or 'none'}.")
    wanted = tuple(name for name in takes if name in GIVEN and not (ours and name == "target"))
    lacking = [n for n, p in takes.items() if p.default is inspect.Parameter.empty and n not in (*wanted, *settings)]
    if lacking := [n for n in lacking if not (ours and n == "target")]:
        raise part.error(f"{part.name} needs {', '.join(lacking)}; a plan gives {', '.join(GIVEN)}, and settings.")
    if "masks" in wanted and not masks:
        raise part.error(f"{part.name} needs masks, and not all data of the plan have them; see the option `masks`.")
    if "labels" in wanted and not labels:
        raise part.error(f"{part.name} needs labels, and not all data of the plan have them.")
    direction = entry.higher_is_better if entry else getattr(function, "higher_is_better", None)
    return Measure(
        name=part.name,
        function=function,
        settings=settings,
        perturber=perturber,
        field=entry.field if entry else None,
        takes=wanted,
        higher_is_better=direction if part.higher_is_better is None else part.higher_is_better,
        unit=entry.unit if entry else str(getattr(function, "unit", "")),
        content=content(plan, part, function),
    )


_HIDDEN = ("additional_forward_args", "show_progress")
