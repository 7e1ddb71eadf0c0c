"""What methods on attention maps and their gradients share: the pass, the rows read, one layer at a time.

Shapes: B images, H heads, N tokens, P patches. Rows of a map are queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..rules import RuleSet
from ..trace import Activation, Attention, Block, Inputs, Layout, Pass, Record, Target, gradients, observe
from ..trace.layers import LayerWatch
from ..trace.outputs import resolve
from ..trace.record import image_chunks
from ._map import MapAttribution, Upsample, finish, result_dtype, tokens_read, warn_if_zero


@dataclass(frozen=True)
class Column:
    """A pass of a column of attention blocks.

    Attributes:
        inputs: what was explained.
        observed: the pass.
        layout: where the patches lie.
    """

    inputs: Inputs
    observed: Pass
    layout: Layout

    @property
    def record(self) -> Record:
        """Its record."""
        return self.observed.record

    @property
    def blocks(self) -> list[Block]:
        """Its blocks, first to last."""
        return self.observed.record.blocks

    @property
    def last(self) -> Activation:
        """The last tokens that the head reads."""
        assert self.observed.record.last is not None
        return self.observed.record.last

    @property
    def dtype(self) -> torch.dtype:
        """Of results."""
        return result_dtype(self.inputs.image)

    def resolve(self, target: Target) -> Target:
        """The target, checked; `None` is the predicted class."""
        return resolve(target, self.observed.scores)

    def result(self, tokens: Tensor, upsample: Upsample) -> Tensor:
        """The map `[B, 1, H, W]` from one value for each token, `[B, N]`."""
        return self.patches(tokens[:, self.layout.patches].unflatten(1, self.layout.grid), upsample)

    def patches(self, grid: Tensor, upsample: Upsample) -> Tensor:
        """The map `[B, 1, H, W]` from one value for each patch, `[B, h, w]`."""
        return finish(grid, self.inputs.image, upsample)

    def images(self, copies: int, budget: int) -> Iterator[slice]:
        """Slices of images so that `copies` arrays of all heads of one layer fit into the budget."""
        batch, heads, rows, columns = self.blocks[0].shape
        return image_chunks(batch, copies * heads * rows * columns * (8 if self.dtype == torch.float64 else 4), budget)


def observe_column(
    method: MapAttribution, inputs: Any, extra: Any, rules: str | RuleSet = "plain", layer: LayerWatch | None = None
) -> Column:
    """One observed pass; a model that is no column of attention blocks is refused in the name of the method."""
    checked = Inputs.of(inputs)
    _ = checked.image  # one picture, or an error before the model runs
    observed = observe(method.forward_func, checked, extra, rules=rules, layer=layer)
    return Column(checked, observed, observed.record.require_blocks(type(method).__name__))


@dataclass(frozen=True)
class AttentionGradients:
    """What one backward left.

    Attributes:
        row: weights of the tokens that the head reads, `[B, N]`; they sum to 1, or are 0 where it reads nothing.
        outputs: gradient at what each attention of a block returned, by number of the block.
    """

    row: Tensor
    outputs: dict[int, list[Tensor]]

    def maps(self, column: Column, block: int, images: slice) -> tuple[Tensor, Tensor]:
        """`A` and `dA` of all heads of a block, `[B, H, N, N]`."""
        one = column.blocks[block]
        return one.maps(images).to(self.row.dtype), one.map_gradients(self.outputs[block], images).to(self.row.dtype)


def attention_gradients(column: Column, target: Target, blocks: range, keep: bool = False) -> AttentionGradients:
    """One backward of the target's score to the attentions of some blocks.

    Args:
        column: the pass.
        target: the class.
        blocks: numbers of the blocks, from 0.
        keep: whether the graph is needed again.
    """
    attentions = [attention.out for l in blocks for attention in column.blocks[l].attentions]
    last, *found = gradients(column.observed.score(target), [column.last, *attentions], keep)
    with torch.inference_mode(False), torch.no_grad():
        warn_if_zero(last)
        rest = iter(found)
        outputs = {l: [next(rest) for _ in column.blocks[l].attentions] for l in blocks}
        return AttentionGradients(read_out(column.record, column.layout, last).to(column.dtype), outputs)


def read_out(record: Record, layout: Layout, last_gradient: Tensor) -> Tensor:
    """Weights of the last tokens as the head reads them, `[B, N]`: of those that a gradient reaches, all the same.

    Where an attention pool reads, they are its own map, averaged over heads and queries. Rows sum to 1; one is 0 where
    the score reads nothing.
    """
    pools: list[Attention] = [attention for attention in record.head if attention.shape[3] == layout.tokens]
    if pools:
        return pools[-1].map().mean((1, 2))
    read = tokens_read(last_gradient).to(last_gradient.dtype)
    return read / read.sum(1, keepdim=True).clamp_min(1)


def folded(column: Column, row: Tensor, blocks: range, step: Callable[[int, slice, Tensor], Tensor], copies: int,
           budget: int) -> Tensor:  # fmt: skip
    """Fold a row `[B, N]` through blocks, last first; one layer's maps are alive at a time.

    Args:
        column: the pass.
        row: where to begin.
        blocks: numbers of the blocks.
        step: from the number of a block, a slice of images and their row to the row in front of the block.
        copies: how many arrays of all heads a step holds at once.
        budget: bytes for them.
    """
    parts = []
    for images in column.images(copies, budget):
        part = row[images]
        for l in reversed(blocks):
            part = step(l, images, part)
        parts.append(part)
    return torch.cat(parts)


def numbers(first_layer: int, depth: int) -> range:
    """Numbers of the blocks from `first_layer` (counted from 1) on.

    Raises:
        ValueError: there is no such block.
    """
    if isinstance(first_layer, bool) or not isinstance(first_layer, int) or not 1 <= first_layer <= depth:
        raise ValueError(f"first_layer={first_layer!r} but the model has {depth} blocks; expected 1..{depth}.")
    return range(first_layer - 1, depth)
