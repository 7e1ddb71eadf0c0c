"""What is removed: patches, pixels or regions of a picture, and how a map becomes one number for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Unit: TypeAlias = "Literal['patch', 'pixel'] | Tensor | None"


@dataclass(frozen=True)
class Features:
    """What can be removed of each example, how, and what is then measured.

    Attributes:
        valid: which of the F features an example has, boolean, `[B, F]`.
        unit: what they are: "patch", "pixel", "region", "token" or "layer".
        operator: how they are removed: "drop_tokens", "mean", "black", "blur", "road", ...
        score: what is measured: "prob", "logit", ...
        class_: "predicted" or "given".
        labels: number of the feature of each pixel, `[H, W]` or `[B, H, W]`; `None` where features are no pixels.
        grid: of the patches, if these are the features.
        empty: the operator where nothing is kept, if it is another one.
        inputs: the pictures that were bound, `[B, C, H, W]`, where features are pixels of them.
    """

    valid: Tensor
    unit: str
    operator: str
    score: str
    class_: str
    labels: Tensor | None = None
    grid: tuple[int, int] | None = None
    empty: str | None = None
    inputs: Tensor | None = None

    @property
    def count(self) -> int:
        """F."""
        return self.valid.shape[1]

    def values(self, attributions: Tensor) -> Tensor:
        """One value for each feature, `[B, F]` in float64, from maps or from one value for each.

        Raises:
            ValueError: they do not fit, or hold what is no number.
        """
        batch = len(self.valid)
        if not isinstance(attributions, Tensor):
            raise ValueError(f"attributions are a {type(attributions).__name__}; expected a torch.Tensor.")
        if len(attributions) != batch:
            raise ValueError(f"found {len(attributions)} attributions for {batch} examples; expected one for each.")
        if attributions.shape == self.valid.shape:
            return finite(attributions.detach().double()).to(self.valid.device)
        if self.labels is None:
            raise ValueError(f"attributions {list(attributions.shape)}; expected {list(self.valid.shape)}.")
        return feature_values(attributions, self.labels, self.count, self.grid)


def patch_labels(grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """The number of the patch of each pixel, row by row, `[H, W]`.

    Sides that the grid does not divide are cut as evenly as whole pixels allow, not as a model does that pads or crops.

    Example:
        >>> from xattr.metrics.features import patch_labels
        >>> patch_labels((1, 2), (2, 3)).tolist()
        [[0, 0, 1], [0, 0, 1]]
    """
    rows, columns = (
        torch.div(torch.arange(side) * cells, side, rounding_mode="floor")
        for side, cells in zip(size, grid, strict=True)
    )
    return rows[:, None] * grid[1] + columns


def feature_values(maps: Tensor, labels: Tensor, count: int, grid: tuple[int, int] | None = None) -> Tensor:
    """One value for each feature: the mean of its pixels, channels summed first, `[B, F]` in float64.

    Args:
        maps: `[B, C, h, w]` or `[B, h, w]`. Of the size of `grid` they are taken as they are; otherwise they are
            resized to the picture bilinearly.
        labels: number of the feature of each pixel, `[H, W]` or `[B, H, W]`.
        count: number of features.
        grid: that of the patches, if these are the features.

    Raises:
        ValueError: the maps are no `[B, C, h, w]`, or hold what is no number.
    """
    if maps.ndim not in (3, 4):
        raise ValueError(f"attributions have the shape {list(maps.shape)}; expected [B, C, h, w] or [B, h, w].")
    values = maps.detach().double().to(labels.device)
    values = finite(values[:, None] if values.ndim == 3 else values.sum(1, keepdim=True))
    if grid is not None and tuple(values.shape[2:]) == tuple(grid):
        return values.flatten(1)
    size = labels.shape[-2:]
    if tuple(values.shape[2:]) != tuple(size):
        larger = any(have > wanted for have, wanted in zip(values.shape[2:], size, strict=True))
        values = F.interpolate(values, size=tuple(size), mode="bilinear", antialias=larger)
    index = labels.expand(len(values), *size).flatten(1)
    total = torch.zeros(len(values), count, dtype=values.dtype, device=values.device)
    pixels = torch.zeros_like(total).scatter_add(1, index, torch.ones_like(values.flatten(1)))
    return total.scatter_add(1, index, values.flatten(1)) / pixels.clamp_min(1)


def ranked(values: Tensor, seed: int = 0, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Features by value, highest first, `[B, F]`, and the share of features that are tied, `[B]`.

    Ties are broken at random, in the same way for every example. Features that an example does not have come last and
    do not count, so that nothing depends on how many the others have.
    """
    valid = torch.ones_like(values, dtype=torch.bool) if valid is None else valid
    values = values.masked_fill(~valid, -torch.inf)
    shuffled = torch.from_numpy(draws(values.shape[1], 1, seed)[:, 0].argsort()).to(values.device)
    order = shuffled[values[:, shuffled].argsort(dim=1, descending=True, stable=True)]
    sorted_, counted = values.gather(1, order), valid.gather(1, order)
    same = F.pad((sorted_[:, 1:] == sorted_[:, :-1]) & counted[:, 1:], (1, 1))
    tied = (same[:, 1:] | same[:, :-1]) & counted
    return order, tied.double().sum(1) / counted.sum(1)


def draws(count: int, samples: int, seed: int) -> NDArray[np.float64]:
    """Random numbers, `[count, samples]`; those of the first features do not depend on the count."""
    return np.random.RandomState(seed).random_sample((count, samples))


def finite(values: Tensor) -> Tensor:
    """The values, if all are numbers."""
    if not bool(values.isfinite().all()):
        raise ValueError(f"attributions hold {int((~values.isfinite()).sum())} value(s) that are NaN or infinite.")
    return values
