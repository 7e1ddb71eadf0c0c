"""Grad-CAM on the last attention map of a transformer."""

from __future__ import annotations

from typing import Any

import torch
from captum.log import log_usage

from ..trace import Target
from ._attention import attention_gradients, folded, observe_column
from ._map import MAP_BUDGET, MapAttribution, Upsample

__all__ = ["AttentionGradCam"]


class AttentionGradCam(MapAttribution):
    """Grad-CAM with the heads of the last attention as channels: the baseline of Chefer et al. (arXiv:2103.15679).

        w_h = mean over patches j of dA_h[r, j],   map_j = (mean_h w_h A_h[r, j])^+

    `r` is the row that the head reads; where it reads several tokens the map is their average, before the positive part
    is taken. Our reimplementation.

    Cost: one forward, a backward through the last block (1.1 forwards by FLOPs).

    Args:
        forward_func: a module or any callable that returns scores `[B, C]`.

    Example:
        >>> from xattr.attr import AttentionGradCam
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> images = digit_scenes("report", n=2).images
        >>> AttentionGradCam(embedded_model("class-token")).attribute(images).shape
        torch.Size([2, 1, 24, 24])
    """

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        relu_attributions: bool = True,
        upsample: Upsample = "bilinear",
        map_budget: int = MAP_BUDGET,
    ) -> Any:
        """Explain one class for each image.

        Args:
            inputs: images `[B, C, H, W]`.
            target: class index, or one for each image; `None` explains the predicted class.
            additional_forward_args: what else the model takes.
            relu_attributions: set negative values to 0.
            upsample: resize to the image, or `None` for the token grid.
            map_budget: bytes of attention maps computed at once.

        Returns:
            Map `[B, 1, H, W]`.

        Raises:
            UnsupportedModelError: no column of attention blocks over one token sequence.
        """
        column = observe_column(self, inputs, additional_forward_args)
        depth = len(column.blocks)
        last = range(depth - 1, depth)
        found = attention_gradients(column, target, last)

        def step(l: int, images: slice, row: torch.Tensor) -> torch.Tensor:
            A, dA = found.maps(column, l, images)
            weights = dA[..., column.layout.patches].mean(-1, keepdim=True)  # [B, H, N, 1]
            return (row[:, None] @ (weights * A).mean(1))[:, 0]

        with torch.inference_mode(False), torch.no_grad():
            heat = folded(column, found.row, last, step, 3, map_budget)
            return column.inputs.like(column.result(heat.clamp_min(0) if relu_attributions else heat, upsample))
