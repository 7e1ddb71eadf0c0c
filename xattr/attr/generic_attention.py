"""Generic attention explainability (GAE): attention weighted by its gradient, folded through all layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from captum.log import log_usage
from torch import Tensor

from ..trace import Target
from ._attention import AttentionGradients, Column, attention_gradients, folded, numbers, observe_column
from ._map import MAP_BUDGET, MapAttribution, Upsample, checked_targets

__all__ = ["GenericAttention"]


class GenericAttention(MapAttribution):
    """Generic attention explainability, GAE (Chefer, Gur and Wolf, arXiv:2103.15679), for self-attention.

        R = I;   R <- R + mean_h (dA * A)^+ R   for the blocks from first to last

    The map is the row of `R` that the head reads: the class token's; several tokens' on average; under an attention
    pool, rows weighted by the pool's map. Never negative. Our reimplementation.

    Cost: one forward, one backward (2.05 forwards by FLOPs); one layer's maps at a time, fused attention stays fused.

    Args:
        forward_func: a module or any callable that returns scores `[B, C]`.

    Example:
        >>> from xattr.attr import GenericAttention
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> method, images = GenericAttention(embedded_model("class-token")), digit_scenes("report", n=2).images
        >>> method.attribute(images).shape
        torch.Size([2, 1, 24, 24])
        >>> method.attribute_targets(images, [3, 5, 8]).shape
        torch.Size([3, 2, 1, 24, 24])
    """

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        first_layer: int = 1,
        gradients: str = "plain",
        upsample: Upsample = "bilinear",
        map_budget: int = MAP_BUDGET,
    ) -> Any:
        """Explain one class for each image.

        Args:
            inputs: images `[B, C, H, W]`.
            target: class index, or one for each image; `None` explains the predicted class.
            additional_forward_args: what else the model takes.
            first_layer: the first block that counts, from 1; 2 in the authors' demo.
            gradients: rule set of the backward, "plain" or "libra".
            upsample: resize to the image, or `None` for the token grid.
            map_budget: bytes of attention maps computed at once.

        Returns:
            Map `[B, 1, H, W]`.

        Raises:
            ValueError: there is no such block.
            UnsupportedModelError: no column of attention blocks over one token sequence.
        """
        column = observe_column(self, inputs, additional_forward_args, gradients)
        blocks = numbers(first_layer, len(column.blocks))
        found = attention_gradients(column, target, blocks)
        return column.inputs.like(_map(column, found, blocks, upsample, map_budget))

    def attribute_targets(
        self,
        inputs: Any,
        targets: Sequence[Any] | Tensor,
        additional_forward_args: Any = None,
        *,
        first_layer: int = 1,
        gradients: str = "plain",
        upsample: Upsample = "bilinear",
        map_budget: int = MAP_BUDGET,
    ) -> Tensor:
        """Explain several classes of each image; the forward is shared.

        Args:
            inputs: as in `attribute`.
            targets: T entries, each a target as `attribute` takes it, or a tensor `[T, B]`.
            additional_forward_args: as in `attribute`.
            first_layer: as in `attribute`.
            gradients: as in `attribute`.
            upsample: as in `attribute`.
            map_budget: as in `attribute`.

        Returns:
            Maps `[T, B, 1, H, W]`, at one forward and T backwards.
        """
        column = observe_column(self, inputs, additional_forward_args, gradients)
        blocks = numbers(first_layer, len(column.blocks))
        wanted = [column.resolve(target) for target in checked_targets(targets)]
        maps = []
        for i, target in enumerate(wanted):
            found = attention_gradients(column, target, blocks, keep=i + 1 < len(wanted))
            maps.append(_map(column, found, blocks, upsample, map_budget))
        return torch.stack(maps)


def _map(column: Column, found: AttentionGradients, blocks: range, upsample: Upsample, map_budget: int) -> Tensor:
    def step(l: int, images: slice, row: Tensor) -> Tensor:
        A, dA = found.maps(column, l, images)
        return row + (row[:, None] @ (A * dA).clamp_min_(0).mean(1))[:, 0]

    with torch.inference_mode(False), torch.no_grad():
        return column.result(folded(column, found.row, blocks, step, 3, map_budget), upsample)
