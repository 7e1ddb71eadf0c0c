"""Transformer Attribution: relevance of the attention maps by layer-wise propagation, times their gradient."""

from __future__ import annotations

from typing import Any

import torch
from captum.log import log_usage
from torch import Tensor

from ..rules.sets import TRANSFORMER_ATTRIBUTION
from ..trace import Target, UnsupportedModelError, gradients
from ._attention import attention_gradients, folded, numbers, observe_column
from ._map import MAP_BUDGET, MapAttribution, Upsample

__all__ = ["TransformerAttribution"]


class TransformerAttribution(MapAttribution):
    """Transformer Attribution (Chefer, Gur and Wolf, CVPR 2021, arXiv:2012.09838).

        A_l = I + mean_h (dA_l * R_A,l)^+,   R = A_L ... A_1   (rows are not renormalised)

    `R_A` is the relevance of the attention map, which begins with 1 at the class's logit. Linear maps pass it on by
    positive contributions alone (alpha-1), `A V` and `Q K^T` give half to each factor, residual sums scale both
    operands to their shares by magnitude, and everything else passes it on unchanged. The map is the row of `R` that
    the head reads. Never negative. Our reimplementation; LRP is claimed as patented by its authors, who allow personal
    and scientific use.

    Cost: two forwards, two backwards, and two products more for each linear map (6 forwards by FLOPs); one layer's maps
    at a time.

    Args:
        forward_func: a module or any callable that returns scores `[B, C]`.

    Example:
        >>> from xattr.attr import TransformerAttribution
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> TransformerAttribution(embedded_model("class-token")).attribute(digit_scenes("report", n=2).images).shape
        torch.Size([2, 1, 24, 24])
    """

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        first_layer: int = 1,
        upsample: Upsample = "bilinear",
        map_budget: int = MAP_BUDGET,
    ) -> Any:
        """Explain one class for each image.

        Args:
            inputs: images `[B, C, H, W]`.
            target: class index, or one for each image; `None` explains the predicted class.
            additional_forward_args: what else the model takes.
            first_layer: the first block that counts, from 1; 2 for the paper's segmentations.
            upsample: resize to the image, or `None` for the token grid.
            map_budget: bytes of attention maps computed at once.

        Returns:
            Map `[B, 1, H, W]`.

        Raises:
            ValueError: there is no such block.
            UnsupportedModelError: no column of attention blocks over one token sequence; tokens come before images; or
                operations without a rule.
        """
        column = observe_column(self, inputs, additional_forward_args)
        if column.last.swapped:
            raise UnsupportedModelError(
                "TransformerAttribution scales relevance image by image along the first axis; this model has tokens "
                "there. GenericAttention explains it."
            )
        blocks = numbers(first_layer, len(column.blocks))
        target = column.resolve(target)
        found = attention_gradients(column, target, blocks)
        column = observe_column(self, inputs, additional_forward_args, TRANSFORMER_ATTRIBUTION)
        score = column.observed.score(target)
        attentions = [attention.out for l in blocks for attention in column.blocks[l].attentions]
        with torch.inference_mode(False), torch.enable_grad():
            one = score / score.detach()
        arrived = iter(gradients(one, attentions))
        relevance = {l: [next(arrived) for _ in column.blocks[l].attentions] for l in blocks}

        def step(l: int, images: slice, row: Tensor) -> Tensor:
            A, dA = found.maps(column, l, images)
            R_A = column.blocks[l].map_gradients(relevance[l], images).to(row.dtype).mul_(A).div_(2)
            return row + (row[:, None] @ R_A.mul_(dA).clamp_min_(0).mean(1))[:, 0]

        with torch.inference_mode(False), torch.no_grad():
            return column.inputs.like(column.result(folded(column, found.row, blocks, step, 4, map_budget), upsample))
