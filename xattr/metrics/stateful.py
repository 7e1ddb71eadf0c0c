"""Metrics that remember: the functions of this package over many batches, in torchmetrics' manner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from . import complexity, curves, faithfulness, localisation
from .average_drop import average_drop
from .infidelity import infidelity
from .statistics import Interval, bootstrap_interval

try:
    import torchmetrics
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "xattr.metrics.Metric needs torchmetrics: pip install 'captum-xattr[metrics]'. The functions do not.",
        name="torchmetrics",
    ) from error


@dataclass(frozen=True)
class Entry:
    """A metric by its function.

    Attributes:
        function: returns one value for each image, or a result that holds them.
        higher_is_better: `None` for what describes a map and says nothing of its quality.
        unit: of a value.
        field: where in the result the values are; `None` if they are the result.
    """

    function: Callable[..., Any]
    higher_is_better: bool | None
    unit: str
    field: str | None = None


METRICS: dict[str, Entry] = {
    "deletion": Entry(curves.deletion, False, "score", "value"),
    "insertion": Entry(curves.insertion, True, "score", "value"),
    "insertion_deletion": Entry(curves.insertion_deletion, True, "score", "difference"),
    "leave_one_out": Entry(faithfulness.leave_one_out, True, "Spearman's correlation"),
    "violations": Entry(faithfulness.violations, False, "share of images"),
    "sensitivity_n": Entry(faithfulness.sensitivity_n, True, "Pearson's correlation"),
    "saco": Entry(faithfulness.saco, True, "coefficient, -1 to 1"),
    "infidelity": Entry(infidelity, False, "squared score", "value"),
    "average_drop": Entry(average_drop, False, "share of the score", "drop"),
    "pointing": Entry(localisation.pointing, True, "share of images"),
    "energy": Entry(localisation.energy, True, "share of the map"),
    "grid_pointing": Entry(localisation.grid_pointing, True, "share of the map"),
    "top_k_intersection": Entry(localisation.top_k_intersection, True, "share of the mask"),
    "average_precision": Entry(localisation.average_precision, True, "precision"),
    "class_sensitivity": Entry(localisation.class_sensitivity, True, "share of the map"),
    "gini": Entry(complexity.gini, None, "index, 0 to 1"),
    "entropy": Entry(complexity.entropy, None, "nats"),
    "effective_size": Entry(complexity.effective_size, None, "share of the picture"),
}
"""Name of a metric to its function."""


class Metric(torchmetrics.Metric):
    """A metric over many batches.

    `update` takes what the function takes. As every image has its own value, the result does not depend on how images
    are batched, and processes are put together by torchmetrics. `compute` is the mean over the images where the metric
    is defined.

    Args:
        name: one of `METRICS`.
        **settings: keywords of the function, the same for every batch.

    Attributes:
        protocol: how the values came about, where the function says so; `None` else.

    Raises:
        ValueError: there is no such metric; or a batch was measured by another protocol than those before.

    Example:
        >>> import torch
        >>> from xattr.metrics import Metric
        >>> metric = Metric("pointing", tolerance=1)
        >>> for maps in torch.rand(6, 1, 4, 4).split(2):
        ...     metric.update(maps, torch.ones(2, 1, 4, 4, dtype=torch.bool))
        >>> metric.compute(), metric.interval().n, metric.higher_is_better, metric.unit
        (tensor(1., dtype=torch.float64), 6, True, 'share of images')
    """

    full_state_update = False
    parts: list[Tensor]

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__()
        if name not in METRICS:
            raise ValueError(f"there is no metric {name!r}; there are {', '.join(METRICS)}.")
        self.name, self.settings, self.protocol = name, settings, None
        self._entry = METRICS[name]
        self.add_state("parts", [], dist_reduce_fx="cat")
        # torchmetrics' collections merge metrics whose states are equal after one batch; NaN equals nothing.
        self.add_state("own", torch.tensor(torch.nan), dist_reduce_fx="max")

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]
        """How to read a value; `None` if it says nothing of quality."""
        return self._entry.higher_is_better

    @property
    def unit(self) -> str:
        """Of a value."""
        return self._entry.unit

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Measure one batch; arguments are those of the function."""
        found = self._entry.function(*args, **{**self.settings, **kwargs})
        values = found if self._entry.field is None else getattr(found, self._entry.field)
        protocol = getattr(getattr(found, "deletion", found), "protocol", None)
        protocol = protocol and replace(protocol, images=0)
        self._check(protocol, self.protocol if self.parts else protocol)
        self.protocol = protocol
        self.parts.append(values.detach().double())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Measure one batch, and return its mean; what was measured before is kept if that fails."""
        parts, protocol = list(self.parts), self.protocol
        try:
            found = super().forward(*args, **kwargs)
            self._check(self.protocol, protocol if parts else self.protocol)
        except Exception:
            self.reset()
            self.parts, self.protocol = parts, protocol
            raise
        return found

    @staticmethod
    def _check(protocol: Any, before: Any) -> None:
        if protocol != before:
            raise ValueError(f"this batch was measured by {protocol}, those before by {before}.")

    @property
    def values(self) -> Tensor:
        """Those of all images so far, `[n]`."""
        parts = self.parts if isinstance(self.parts, list) else [self.parts]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def compute(self) -> Tensor:
        """The mean over the images where the metric is defined; NaN without any."""
        return self.values.nanmean()

    def interval(self, level: float = 0.95) -> Interval:
        """The mean with its bootstrap interval over images, and how many were undefined."""
        return bootstrap_interval(self.values, level)
