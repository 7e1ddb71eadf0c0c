"""MUTEX: masks from statistics of the attention graph over layers, scored on the tokens that they keep."""

from __future__ import annotations

from typing import Any

import torch
from captum.log import log_usage
from torch import Tensor

from ..trace import Target
from ._attention import Column, observe_column
from ._map import MAP_BUDGET, Upsample
from ._masks import Forwards, MaskAttribution, coverage_corrected, token_scores

__all__ = ["MUTEX"]

_STATISTICS = ("entropy", "max", "min", "sum", "std", "sum / std", "median", "skew", "kurtosis")


class MUTEX(MaskAttribution):
    """MUTEX: 54 masks from the attention graph of the patches.

    Heads are joined by minimum, maximum and sum; prefix tokens leave; entries below 1 % of a layer's largest are 0. Of
    each patch the weight that goes in (column sum) and out (row sum) is taken in every layer, and nine statistics of it
    over layers: entropy, maximum, minimum, sum, standard deviation, sum over that, median, skew and kurtosis. Each,
    binarised at its median over patches, is a mask. The model runs on these tokens alone, and

        map_i = sum_k p_k mask_k,i / sum_k mask_k,i

    Written from a description of the method, as the paper was not at hand: moments are those of a population; a
    statistic that is not defined (a standard deviation of 0) is 0. Our reimplementation.

    Cost: one forward, 54 on about half of the tokens, and two (29 forwards by FLOPs); more where many patches tie.

    Args:
        forward_func: a module or any callable that returns scores `[B, C]`.

    Example:
        >>> from xattr.attr import MUTEX
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> MUTEX(embedded_model("class-token")).attribute(digit_scenes("report", n=2).images).shape
        torch.Size([2, 1, 24, 24])
    """

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        threshold: float = 0.01,
        quantile: float = 0.5,
        upsample: Upsample = "bilinear",
        map_budget: int = MAP_BUDGET,
        budget: int | None = None,
        internal_batch_size: int | None = None,
        autocast: torch.dtype | None = None,
        show_progress: bool = False,
    ) -> Any:
        """Explain one class for each image.

        Args:
            inputs: images `[B, C, H, W]`.
            target: class index, or one for each image; `None` explains the predicted class.
            additional_forward_args: what else the model takes.
            threshold: entries below this share of a layer's largest are 0.
            quantile: a mask keeps the patches whose statistic is at least this quantile.
            upsample: resize to the image, or `None` for the token grid.
            map_budget: bytes of attention maps computed at once.
            budget: bytes that one forward may hold; `None` for 128 MiB on a CPU, 2 GiB elsewhere.
            internal_batch_size: how many examples one forward may hold at most, whatever the budget.
            autocast: `torch.bfloat16` or `torch.float16` runs the masked forwards under it.
            show_progress: whether to draw a progress bar.

        Returns:
            Map `[B, 1, H, W]`.

        Raises:
            ValueError: a setting is none of its choices.
            UnsupportedModelError: no column of attention blocks over one token sequence, or tokens cannot be dropped.
        """
        for name, value in (("threshold", threshold), ("quantile", quantile)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name}={value!r}; expected a number from 0 to 1.")
        column = observe_column(self, inputs, additional_forward_args)
        forwards = Forwards(budget, internal_batch_size, autocast, show_progress)
        with torch.inference_mode(False), torch.no_grad():
            values = torch.cat([statistics(series) for series in _degrees(column, threshold, map_budget)], 1)
            limits = values.quantile(quantile, 2, keepdim=True)
            # Some statistics are the same for many patches, but for rounding.
            masks = values >= limits - 1e3 * torch.finfo(values.dtype).eps * limits.abs()
            scores = token_scores(self, column, additional_forward_args, target, masks, forwards)
            heat = coverage_corrected(scores, masks).unflatten(1, column.layout.grid)
            return column.inputs.like(column.patches(heat, upsample))


def _degrees(column: Column, threshold: float, map_budget: int) -> list[Tensor]:
    """Of each joining of heads the weight into and out of each patch in every layer, six of `[B, L, P]`."""
    series: list[list[Tensor]] = [[] for _ in range(6)]
    patches = column.layout.patches
    for block in column.blocks:
        parts = []
        for images in column.images(2, map_budget):
            A = block.maps(images)[..., patches, patches].to(column.dtype)
            found = []
            for joined in (A.amin(1), A.amax(1), A.sum(1)):
                kept = torch.where(joined < threshold * joined.amax((1, 2), keepdim=True), 0, joined)
                found += [kept.sum(1), kept.sum(2)]
            parts.append(found)
        for one, pieces in zip(series, zip(*parts, strict=True), strict=True):
            one.append(torch.cat(pieces))
    return [torch.stack(one, 1) for one in series]


def statistics(series: Tensor) -> Tensor:
    """Nine statistics over layers, `[B, 9, P]`, of `[B, L, P]`."""
    total, mean = series.sum(1), series.mean(1)
    shares = series / torch.where(total > 0, total, 1)[:, None]
    away = series - mean[:, None]
    variance = away.square().mean(1)
    # Weights that do not vary leave rounding errors.
    flat = variance <= (8 * torch.finfo(series.dtype).eps * mean).square()
    spread = torch.where(flat, 0, variance.sqrt())
    over = lambda value, scale: torch.where(flat, 0, value / torch.where(flat, 1, scale))
    return torch.stack(
        [
            torch.special.entr(shares).sum(1),
            series.amax(1),
            series.amin(1),
            total,
            spread,
            over(total, spread),
            series.quantile(0.5, 1),
            over(away.pow(3).mean(1), spread**3),
            over(away.pow(4).mean(1), variance**2),
        ],
        1,
    )
