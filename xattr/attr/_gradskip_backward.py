"""The one forward and the one backward of GradSkip; they serve any number of walks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..trace import Inputs, Layout, Record, Target, gradients, observe
from ..trace.outputs import resolve


@dataclass(frozen=True)
class Backward:
    """A recorded pass and the gradients of the explained score. L counts the blocks.

    Attributes:
        record: the pass.
        layout: where the patches lie.
        image: the images.
        target: the class explained.
        g_last: gradient at the last tokens, `[B, N, D]`.
        g_z: gradient at the residual sum of each block, L of `[B, N, D]`.
        g_x: gradient in front of a block, `[B, N, D]`, by number of the block: of the last one, or of all.
        g_out: gradient at what each attention of each block returned.
    """

    record: Record
    layout: Layout
    image: Tensor
    target: Target
    g_last: Tensor
    g_z: list[Tensor]
    g_x: dict[int, Tensor]
    g_out: list[list[Tensor]]


def backward(
    forward_func: Callable[..., Any],
    inputs: Inputs,
    target: Target = None,
    extra: Any = None,
    *,
    rules: str = "libra",
    output: str = "logit",
    all_x: bool = True,
) -> Backward:
    """One observed pass and one backward; without `all_x` it ends at the first attention, not at the first block."""
    image = inputs.image  # one picture, or an error before the model runs
    observed = observe(forward_func, inputs, extra, rules=rules)
    record = observed.record
    layout = record.require_blocks("GradSkip")
    target = resolve(target, observed.scores)
    score = observed.score(target, output)
    assert record.last is not None
    depth = len(record.blocks)
    with_x = range(depth) if all_x else [depth - 1]
    with torch.inference_mode(False), torch.no_grad():
        found = iter(
            gradients(
                score,
                [record.last]
                + [block.z for block in record.blocks]
                + [record.blocks[l].x for l in with_x]
                + [attention.out for block in record.blocks for attention in block.attentions],
            )
        )
        return Backward(
            record=record,
            layout=layout,
            image=image,
            target=target,
            g_last=next(found),
            g_z=[next(found) for _ in record.blocks],
            g_x={l: next(found) for l in with_x},
            g_out=[[next(found) for _ in block.attentions] for block in record.blocks],
        )
