"""LeGrad: how sensitive the class score, read out from each layer, is to that layer's attention."""

from __future__ import annotations

from typing import Any, cast

import torch
from captum.log import log_usage
from torch import Tensor

from ..rules import rule_set
from ..trace import Target
from ..trace.outputs import select
from ..trace.tail import Tail
from ._attention import Column, observe_column
from ._map import MAP_BUDGET, MapAttribution, Upsample, warn_if_zero

__all__ = ["LeGrad"]


class LeGrad(MapAttribution):
    """LeGrad (Bousselham et al., arXiv:2404.03214).

        map_j = sum over layers of  mean over heads h and queries i of (d s_l / d A_l,h[i, j])^+

    `s_l` is the class score that the rest of the model (final norm, pool, classifier) reads out from the tokens behind
    block l. They are computed by running that rest again on those tokens; no other layer takes part in a gradient.
    Under an attention pool this is the gradient by the blocks' own maps, not by the pool's. Never negative. Our
    reimplementation.

    Cost: one forward, a backward through MLP and output projection of each block (1.75 forwards by FLOPs); one layer's
    maps at a time.

    Args:
        forward_func: a module or any callable that returns scores `[B, C]`.

    Example:
        >>> from xattr.attr import LeGrad
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> LeGrad(embedded_model("class-token")).attribute(digit_scenes("report", n=2).images).shape
        torch.Size([2, 1, 24, 24])
    """

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        layers: int | None = None,
        gradients: str = "plain",
        upsample: Upsample = "bilinear",
        map_budget: int = MAP_BUDGET,
    ) -> Any:
        """Explain one class for each image.

        Args:
            inputs: images `[B, C, H, W]`.
            target: class index, or one for each image; `None` explains the class that the whole model predicts.
            additional_forward_args: what else the model takes.
            layers: how many of the last blocks count; `None` for all, as in the paper.
            gradients: rule set of the backwards, "plain" or "libra".
            upsample: resize to the image, or `None` for the token grid.
            map_budget: bytes of attention maps computed at once.

        Returns:
            Map `[B, 1, H, W]`.

        Raises:
            ValueError: there are not that many blocks.
            UnsupportedModelError: no column of attention blocks over one token sequence, or a head that cannot be run
                again.
        """
        tail = Tail()
        column = observe_column(self, inputs, additional_forward_args, gradients, layer=tail)
        depth = len(column.blocks)
        count = depth if layers is None else layers
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= depth:
            raise ValueError(f"layers={layers!r} but the model has {depth} blocks; expected 1..{depth}, or None.")
        wanted = column.resolve(target)
        with torch.inference_mode(False):
            total = _layer(column, tail, depth - 1, wanted, gradients, map_budget)
            for l in reversed(range(depth - count, depth - 1)):
                total += _layer(column, tail, l, wanted, gradients, map_budget)
            return column.inputs.like(column.result(total, upsample))


def _layer(column: Column, tail: Tail, l: int, target: Target, rules: str, map_budget: int) -> Tensor:
    """One layer's part, `[B, N]`."""
    block = column.blocks[l]
    behind = column.last if l + 1 == len(column.blocks) else column.blocks[l + 1].x
    tokens = behind.value.transpose(0, 1) if behind.swapped else behind.value
    scores, root = tail.scores(column.observed.scores, tokens, rule_set(rules))
    (at_tokens,) = torch.autograd.grad(select(scores, target).sum(), root)
    if l + 1 == len(column.blocks):
        warn_if_zero(at_tokens)
    outputs = [attention.out for attention in block.attentions]
    reached: list[Any] = [out.edge for out in outputs]
    found = torch.autograd.grad([cast(Any, behind.edge)], reached, [at_tokens], allow_unused=True)
    with torch.no_grad():
        at_outputs = [out.as_value(gradient) for out, gradient in zip(outputs, found, strict=True)]
        return torch.cat(
            [
                block.map_gradients(at_outputs, images).to(column.dtype).clamp_min(0).mean((1, 2))
                for images in column.images(2, map_budget)
            ]
        )
