"""Metrics that remember: the functions of this package over many batches, in torchmetrics' manner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .registry import METRICS
from .statistics import Interval, bootstrap_interval

try:
    import torchmetrics
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "xattr.metrics.Metric needs torchmetrics: pip install 'captum-xattr[metrics]'. The functions do not.",
        name="torchmetrics",
    ) from error


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
