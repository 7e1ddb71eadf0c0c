"""Gradient times token at a block of a transformer."""

from __future__ import annotations

from typing import Any

import torch
from captum.log import log_usage

from ..trace import Inputs, Target, gradients, observe
from ._map import MapAttribution, Upsample, dot, finish, walk_start, warn_if_zero

__all__ = ["GradientXToken"]


class GradientXToken(MapAttribution):
    """`sum_d x_d df/dx_d` of the patch tokens in front of a block, under a rule set.

    Under `libra` (LibraGrad, arXiv:2411.16760) the values over all tokens and the relevance of the biases behind them
    sum to the logit. Signed. It is GradSkip without head weights, gates and normalisation.

    Cost: one forward, one backward down to the block.

    Args:
        forward_func: a module or any callable that returns scores `[B, C]`.

    Example:
        >>> from xattr.attr import GradientXToken
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> GradientXToken(embedded_model("mean-pool")).attribute(digit_scenes("report", n=2).images, block=4).shape
        torch.Size([2, 1, 24, 24])
    """

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        block: int | None = 1,
        gradients: str = "libra",
        upsample: Upsample = "bilinear",
    ) -> Any:
        """Explain one class for each image.

        Args:
            inputs: images `[B, C, H, W]`.
            target: class index, or one for each image; `None` explains the predicted class.
            additional_forward_args: what else the model takes.
            block: the tokens in front of this block, counted from 1, or from -1 for the last; `None` for the tokens at
                which GradSkip starts.
            gradients: rule set of the backward, "libra" or "plain".
            upsample: resize to the image, or `None` for the token grid.

        Returns:
            Signed map `[B, 1, H, W]`.

        Raises:
            ValueError: there is no such block.
            UnsupportedModelError: no column of attention blocks over one token sequence.
        """
        checked = Inputs.of(inputs)
        observed = observe(self.forward_func, checked, additional_forward_args, rules=gradients)
        record = observed.record
        layout = record.require_blocks("GradientXToken")
        depth = len(record.blocks)
        if block is not None and not isinstance(block, int):
            raise ValueError(f"block={block!r}; expected a whole number or None.")
        if block is not None and not (1 <= block <= depth or -depth <= block <= -1):
            raise ValueError(f"block={block} but the model has {depth}; expected 1..{depth}, -{depth}..-1, or None.")
        with torch.inference_mode(False), torch.no_grad():
            values = self._values(record, layout, observed.score(target), block)
        grid = values[:, layout.patches].unflatten(1, layout.grid)
        return checked.like(finish(grid, checked.image, upsample))

    @staticmethod
    def _values(record: Any, layout: Any, score: Any, block: int | None) -> Any:
        if block is not None:
            x = record.blocks[block - 1 if block > 0 else block].x
            (at_block,) = gradients(score, [x])
            warn_if_zero(at_block)
            return dot(x, at_block)
        last, before = gradients(score, [record.last, record.blocks[-1].x])
        top, tokens = walk_start(record, layout, last, skip_prefix=True)
        return dot(tokens, last if top == len(record.blocks) else before)
