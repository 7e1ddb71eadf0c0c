"""AG-CAM: scores in front of the softmax, weighted by the gradient of the attention."""

from __future__ import annotations

from typing import Any

import torch
from captum.log import log_usage

from ..trace import Target
from ..trace.softmax_inputs import SoftmaxInputs
from ._attention import attention_gradients, folded, observe_column
from ._map import MAP_BUDGET, MapAttribution, Upsample

__all__ = ["AGCam"]


class AGCam(MapAttribution):
    """Attention-guided CAM (Leem and Seo, AAAI 2024, arXiv:2402.04563).

        map_j = sum over blocks and heads of (dA_h[r, j])^+ sigmoid(S_h[r, j]),   A = softmax(S)

    `r` is the row that the head reads; where it reads several tokens the map is their average. Never negative. Our
    reimplementation.

    Cost: one forward, one backward (2.05 forwards by FLOPs); one layer's maps at a time. Where the model writes its
    attention out, the scores of all layers are kept.

    Args:
        forward_func: a module or any callable that returns scores `[B, C]`.

    Example:
        >>> from xattr.attr import AGCam
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> AGCam(embedded_model("class-token")).attribute(digit_scenes("report", n=2).images).shape
        torch.Size([2, 1, 24, 24])
    """

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        upsample: Upsample = "bilinear",
        map_budget: int = MAP_BUDGET,
    ) -> Any:
        """Explain one class for each image.

        Args:
            inputs: images `[B, C, H, W]`.
            target: class index, or one for each image; `None` explains the predicted class.
            additional_forward_args: what else the model takes.
            upsample: resize to the image, or `None` for the token grid.
            map_budget: bytes of attention maps computed at once.

        Returns:
            Map `[B, 1, H, W]`.

        Raises:
            UnsupportedModelError: no column of attention blocks over one token sequence; or what a softmax is taken of
                is not known.
        """
        kept = SoftmaxInputs()
        column = observe_column(self, inputs, additional_forward_args, layer=kept)
        blocks = range(len(column.blocks))
        found = attention_gradients(column, target, blocks)

        def step(l: int, images: slice, row: torch.Tensor) -> torch.Tensor:
            block = column.blocks[l]
            scores = [kept.scores(attention, images) for attention in block.attentions]
            gates = torch.cat(scores, 1).to(row.dtype).sigmoid()
            gradient = block.map_gradients(found.outputs[l], images).to(row.dtype).clamp_min(0)
            total[images] += (row[:, None] @ (gradient * gates).sum(1))[:, 0]
            return row

        with torch.inference_mode(False), torch.no_grad():
            total = torch.zeros_like(found.row)
            folded(column, found.row, blocks, step, 3, map_budget)
            return column.inputs.like(column.result(total, upsample))
