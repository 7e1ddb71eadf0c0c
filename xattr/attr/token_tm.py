"""TokenTM: relevance folded through attention and MLPs, weighted by how they change length and direction of tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from captum.log import log_usage
from torch import Tensor

from ..trace import Block, Target, UnsupportedModelError
from ._attention import attention_gradients, folded, observe_column
from ._map import MAP_BUDGET, MapAttribution, Upsample

__all__ = ["TokenTM"]


class TokenTM(MapAttribution):
    """Token transformation matters (Wu et al., CVPR 2024, arXiv:2403.14552).

        C_0 = diag(|x_1|),   C_l = (I + W(z, m)) (I + mean_h A W(x, v)  *  mean_h (dA)^+) C_(l-1)
        W(before, after) = diag( |after| / |before| * softmax over tokens of cos(before, after) )

    `x` are the tokens in front of a block, `v` their values through the output projection (without its bias and without
    LayerScale), `z` the residual sum of attention, and `m` what the rest of the block adds to it. The map is the row of
    `C_L` that the head reads. Never negative. Our reimplementation.

    Cost: one forward, one backward, one projection for each block (2.1 forwards by FLOPs).

    Args:
        forward_func: a module or any callable that returns scores `[B, C]`.

    Example:
        >>> from xattr.attr import TokenTM
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> TokenTM(embedded_model("class-token")).attribute(digit_scenes("report", n=2).images).shape
        torch.Size([2, 1, 24, 24])
    """

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        gradients: str = "plain",
        upsample: Upsample = "bilinear",
        map_budget: int = MAP_BUDGET,
    ) -> Any:
        """Explain one class for each image.

        Args:
            inputs: images `[B, C, H, W]`.
            target: class index, or one for each image; `None` explains the predicted class.
            additional_forward_args: what else the model takes.
            gradients: rule set of the backward, "plain" or "libra".
            upsample: resize to the image, or `None` for the token grid.
            map_budget: bytes of attention maps computed at once.

        Returns:
            Map `[B, 1, H, W]`.

        Raises:
            UnsupportedModelError: no column of attention blocks over one token sequence, or no linear map behind an
                attention.
        """
        column = observe_column(self, inputs, additional_forward_args, gradients)
        for block in column.blocks:
            if block.projection is None:
                raise UnsupportedModelError(
                    f"TokenTM compares tokens with their projected values; no linear map of all heads was found behind "
                    f"the attention {block.path!r}. GenericAttention does without."
                )
        blocks = range(len(column.blocks))
        found = attention_gradients(column, target, blocks)
        after = [*(block.x.value for block in column.blocks[1:]), column.last.value]

        def step(l: int, images: slice, row: Tensor) -> Tensor:
            block = column.blocks[l]
            x, z, y = (t[images].to(row.dtype) for t in (block.x.value, block.z.value, after[l]))
            row = row * (1 + _change(z, y - z))
            A, dA = found.maps(column, l, images)
            mean = A.mean(1) * _change(x, _projected(block, images, row.dtype))[:, None]
            return row + (row[:, None] @ (mean * dA.clamp_min(0).mean(1)))[:, 0]

        with torch.inference_mode(False), torch.no_grad():
            row = folded(column, found.row, blocks, step, 3, map_budget)
            return column.inputs.like(
                column.result(row * column.blocks[0].x.value.to(row.dtype).norm(dim=-1), upsample)
            )


def _change(before: Tensor, after: Tensor) -> Tensor:
    """The diagonal of `W`, `[B, N]`."""
    direction = F.cosine_similarity(before, after, dim=-1).softmax(-1)
    return after.norm(dim=-1) / before.norm(dim=-1).clamp_min(1e-12) * direction


def _projected(block: Block, images: slice, dtype: torch.dtype) -> Tensor:
    """Values through the output projection, `[B, N, D]`."""
    assert block.projection is not None
    return F.linear(block.values(images).to(dtype).transpose(1, 2).flatten(2), block.projection.to(dtype))
