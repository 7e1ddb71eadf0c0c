"""TIS: masks from clusters of the channels of all blocks, scored on the tokens that they keep."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from captum.log import log_usage
from torch import Tensor

from ..trace import Target
from ._attention import Column, observe_column
from ._map import Upsample
from ._masks import Forwards, MaskAttribution, checked_count, coverage_corrected, token_scores

__all__ = ["TIS"]


class TIS(MaskAttribution):
    """Transformer input sampling (Englebert et al., ICCV 2023 workshop).

    The channels of the tokens behind all blocks, `L D` maps of the patches, are clustered by k-means; each centroid
    keeps its highest patches. The model runs on these tokens alone (positions as in the whole image), and

        map_i = sum_k p_k mask_k,i / sum_k mask_k,i

    Centroids start at channels drawn with `seed`, the same for all images. Our reimplementation.

    Cost: one forward, one on the kept tokens for each mask, and three. `TIS.PAPER` is the authors' number of masks.

    Args:
        forward_func: a module or any callable that returns scores `[B, C]`.

    Example:
        >>> from xattr.attr import TIS
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> TIS(embedded_model("class-token")).attribute(digit_scenes("report", n=2).images, n_masks=20).shape
        torch.Size([2, 1, 24, 24])
    """

    PAPER: ClassVar[int] = 1024

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        n_masks: int = PAPER,
        keep: float = 0.5,
        iterations: int = 10,
        seed: int = 0,
        upsample: Upsample = "bilinear",
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
            n_masks: how many clusters; at most as many as there are channels.
            keep: share of the patches that a mask keeps.
            iterations: of k-means, at most.
            seed: of the first centroids.
            upsample: resize to the image, or `None` for the token grid.
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
        count, rounds = checked_count("n_masks", n_masks), checked_count("iterations", iterations)
        if not 0 < keep <= 1:
            raise ValueError(f"keep={keep!r}; expected a share above 0, up to 1.")
        column = observe_column(self, inputs, additional_forward_args)
        forwards = Forwards(budget, internal_batch_size, autocast, show_progress)
        with torch.inference_mode(False), torch.no_grad():
            kept = max(1, round(keep * column.layout.size))
            masks = torch.stack([_masks(channels, count, kept, rounds, seed) for channels in _channels(column)])
            scores = token_scores(self, column, additional_forward_args, target, masks, forwards)
            heat = coverage_corrected(scores, masks).unflatten(1, column.layout.grid)
            return column.inputs.like(column.patches(heat, upsample))


def _channels(column: Column) -> Tensor:
    """Maps of the patches behind all blocks, `[B, L D, P]`."""
    tokens = [*(block.x.value for block in column.blocks[1:]), column.last.value]
    return torch.cat([one[:, column.layout.patches].to(column.dtype) for one in tokens], 2).mT


def _masks(channels: Tensor, count: int, kept: int, iterations: int, seed: int) -> Tensor:
    """The highest patches of each centroid, boolean `[S, P]`."""
    centroids = k_means(channels, min(count, len(channels)), iterations, seed)
    highest = centroids.argsort(dim=1, descending=True, stable=True)[:, :kept]
    return torch.zeros_like(centroids, dtype=torch.bool).scatter(1, highest, True)


def k_means(points: Tensor, count: int, iterations: int, seed: int) -> Tensor:
    """Centroids `[count, P]` of points `[n, P]` by Lloyd's iterations; one that loses all its points stays where it is.

    Args:
        points: the points.
        count: how many centroids; they start at points drawn with `seed`.
        iterations: at most; it ends when no point changes its centroid.
        seed: of the draw.
    """
    drawn = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:count]
    centroids = points[drawn.to(points.device)].clone()
    own = torch.full((len(points),), -1, device=points.device)
    for _ in range(iterations):
        nearest = torch.addmm(centroids.square().sum(1)[None], points, centroids.T, alpha=-2).argmin(1)
        if bool((nearest == own).all()):
            break
        own = nearest
        sums = torch.zeros_like(centroids).index_add(0, own, points)
        counts = torch.bincount(own, minlength=count)[:, None].to(points.dtype)
        centroids = torch.where(counts > 0, sums / counts.clamp_min(1), centroids)
    return centroids
