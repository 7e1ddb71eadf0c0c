"""FullGrad+: input times gradient of the tokens of all layers, and bias times gradient."""

from __future__ import annotations

from typing import Any

import torch
from captum.log import log_usage
from torch import Tensor

from ..trace import Target
from ..trace.biases import Biases
from ._attention import Column, observe_column
from ._map import MapAttribution, Upsample, dot, warn_if_zero

__all__ = ["FullGradPlus"]


class FullGradPlus(MapAttribution):
    """FullGrad+ (LibraGrad's form of FullGrad for transformers, arXiv:2411.16760).

        map_i = sum over blocks l of x_l,i . df/dx_l,i  +  sum over biases b of b . df/db at token i

    `x_l` are the tokens in front of block l. Biases are those of linear maps, convolutions and norms that work on the
    tokens, and position embeddings; what is added behind the pool lies on no token. Signed. Libra FullGrad+ is
    `gradients="libra"`. Our reimplementation.

    Cost: one forward, one backward (2.0 forwards by FLOPs, 1.8 under `libra`); gradients of one block at a time.

    Args:
        forward_func: a module or any callable that returns scores `[B, C]`.

    Example:
        >>> from xattr.attr import FullGradPlus
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> images = digit_scenes("report", n=2).images
        >>> FullGradPlus(embedded_model("class-token")).attribute(images, gradients="libra").shape
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
    ) -> Any:
        """Explain one class for each image.

        Args:
            inputs: images `[B, C, H, W]`.
            target: class index, or one for each image; `None` explains the predicted class.
            additional_forward_args: what else the model takes.
            gradients: rule set of the backward, "plain" or "libra".
            upsample: resize to the image, or `None` for the token grid.

        Returns:
            Signed map `[B, 1, H, W]`.

        Raises:
            UnsupportedModelError: no column of attention blocks over one token sequence.
        """
        biases = Biases()
        column = observe_column(self, inputs, additional_forward_args, gradients, layer=biases)
        with torch.inference_mode(False), torch.no_grad():
            return column.inputs.like(column.result(_total(column, biases, target), upsample))


def _total(column: Column, biases: Biases, target: Target) -> Tensor:
    """One value for each token, `[B, N]`; the backward runs from one residual sum to the one before."""
    sums, between = biases.chain(column.last)
    blocks = {_node(block.z.edge): block for block in column.blocks}
    batch, patches = len(column.inputs.image), column.layout.patches
    total = torch.zeros(batch, column.layout.tokens, dtype=column.dtype, device=column.inputs.image.device)
    with torch.enable_grad():
        above: Any = column.observed.score(target).sum()
    gradient = None
    for k in reversed(range(len(sums) + 1)):
        block = blocks.get(_node(sums[k])) if k < len(sums) else None
        places: list[Any] = [bias.edge for bias in between[k]] + ([block.x.edge] if block else [])
        below: list[Any] = [sums[k - 1]] if k else []
        given = None if gradient is None else [gradient]
        found = torch.autograd.grad([above], places + below, given, allow_unused=True)
        for bias, one in zip(between[k], found, strict=False):
            part = None if one is None else bias.times(one, column.layout, column.last.swapped)
            if part is not None:
                total[:, patches] += part.to(column.dtype)
        if block is not None:
            total += dot(block.x, block.x.as_value(found[len(places) - 1])).to(column.dtype)
        if not k:
            break
        if found[-1] is None:
            return total
        if k == len(sums):
            warn_if_zero(found[-1])
        above, gradient = sums[k - 1], found[-1]
    return total


def _node(edge: Any) -> int:
    return id(edge.node)
