"""Builds the record of a pass while it runs: attentions, residual sums, last tokens, token layout."""

from __future__ import annotations

import itertools
import math
from typing import Any

from torch import Tensor

from .functions import ADDITIONS, CONCATENATIONS
from .marks import Mark, Marks
from .record import Activation, Attention, Block, Layout, Record


class Recorder:
    """Follows the operations of a pass and keeps what methods read.

    Args:
        marks: the marks of the pass.
        batch: number of images.
    """

    def __init__(self, marks: Marks, batch: int) -> None:
        self._marks = marks
        self._batch = batch
        self._attentions: list[Attention] = []
        # Of each attention: ancestors of its map and of its values, for the parting test; and its own bit.
        self._ancestry: list[tuple[int, int]] = []
        self._bits: dict[int, int] = {}
        # Of each block: ancestors of its skip, own bit of its sum.
        self._blocks: list[tuple[int, int, Block]] = []
        self._last: list[tuple[int, Activation]] = []
        self._projections: dict[int, Tensor] = {}
        # Convolutions with their grids; joined sequences with the length and the ancestors of each part.
        self._grids: list[tuple[int, tuple[int, int]]] = []
        self._joined: list[tuple[int, list[tuple[int, int]]]] = []

    # -- attention -----------------------------------------------------------------------------------------------------

    def fused_attention(self, path: str, given: dict[str, Any], out: Tensor, result: Mark) -> None:
        """An attention of queries, keys and values in one call."""
        query, key, values = given["query"], given["key"], given["value"]
        of_map, of_values = self._marks.ancestors(query) | self._marks.ancestors(key), self._marks.ancestors(values)
        if given.get("enable_gqa"):
            repeats = query.shape[-3] // key.shape[-3]
            key, values = key.repeat_interleave(repeats, -3), values.repeat_interleave(repeats, -3)
        scale = given.get("scale")
        attention = Attention(
            path,
            Activation.of(out),
            values.detach(),
            query=query.detach(),
            key=key.detach(),
            mask=given.get("attn_mask"),
            scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
            causal=bool(given.get("is_causal")),
            is_pool=not self._marks.varies(query),
        )
        self._add(attention, (of_map, of_values), result)

    def explicit_attention(self, path: str, weights: Tensor, values: Tensor, out: Tensor, result: Mark) -> None:
        """A softmax that meets its values in a matrix product."""
        ancestry = self._marks.ancestors(weights), self._marks.ancestors(values)
        parts = [out.detach(), values.detach(), weights.detach()]
        if out.ndim == 3:
            # [B H, N, d] has its heads folded into the batch; [B, N, d] has one.
            heads = len(out) // self._batch if len(out) % self._batch == 0 else 1
            parts = [part.unflatten(0, (-1, heads)) for part in parts]
        activation = Activation(parts[0], Activation.of(out).edge)
        self._add(Attention(path, activation, parts[1], weights=parts[2]), ancestry, result)

    def _add(self, attention: Attention, ancestry: tuple[int, int], result: Mark) -> None:
        result.open = result.open | {len(self._attentions)}
        self._attentions.append(attention)
        self._ancestry.append(ancestry)

    # -- residual sums -------------------------------------------------------------------------------------------------

    def residual(self, args: Any, in_place: bool) -> tuple[list[int], int, Activation, Tensor] | None:
        """The parting test, before a sum is made.

        `p + a` is the residual sum of the attentions that are open in `a` iff `p` shares the same ancestors with their
        maps as with their values, and shares some.

        Returns:
            Numbers of the attentions, ancestors of the skip, the skip, and the branch; `None` for any other sum.
        """
        if len(args) != 2 or not all(map(self._marks.varies, args)) or args[0].shape != args[1].shape:
            return None
        for p, a in (args, args[::-1]):
            skip, branch = self._marks.of(p), self._marks.of(a)
            assert skip is not None and branch is not None
            opened = branch.open - skip.open
            if not opened or skip.open & branch.open:
                continue
            shared = skip.ancestors
            for i in opened:
                of_map, of_values = self._ancestry[i]
                shared = shared & of_values if shared & of_map == shared & of_values else 0
            if shared:
                x = Activation.of(p, copy=in_place and p is args[0])
                return (
                    sorted(opened),
                    skip.ancestors,
                    x,
                    a.detach().clone() if in_place and a is args[0] else a.detach(),
                )
        return None

    def close(self, found: tuple[list[int], int, Activation, Tensor], z: Tensor) -> None:
        """A residual sum has been made."""
        numbers, ancestors, skip, branch = found
        mark = self._marks.of(z)
        assert mark is not None
        mark.open = mark.open - set(numbers)
        self._last.append((mark.own, Activation.of(z)))
        attentions = tuple(self._attentions[i] for i in numbers)
        projection = self._projections.get(numbers[0])
        block = Block(attentions[0].path, attentions, skip, branch, self._last[-1][1], projection)
        self._blocks.append((ancestors, mark.own, block))

    # -- everything else -----------------------------------------------------------------------------------------------

    def follow(self, name: str, args: Any, kwargs: Any, out: Tensor, result: Mark) -> None:
        """Any other operation that the record learns from."""
        for i in result.open - self._bits.keys():
            self._bits[i] = self._marks.own(out)
        if name == "conv2d" and out.ndim == 4:
            self._grids.append((self._marks.own(out), (out.shape[2], out.shape[3])))
        elif name in CONCATENATIONS and out.ndim == 3:
            parts = args[0] if args else kwargs["tensors"]
            joined = [(part.shape[1] if part.ndim == 3 else 0, self._marks.ancestors(part)) for part in parts]
            self._joined.append((self._marks.own(out), joined))
        elif name == "linear":
            for i in result.open - self._projections.keys():
                _, heads, _, width = self._attentions[i].out.value.shape
                if args[1].shape[-1] == heads * width:
                    self._projections[i] = args[1].detach()
        elif name in ADDITIONS and self._last:
            # Where both operands come from the current tokens, the sum of an MLP makes the next ones.
            current, tokens = self._last[-1]
            if out.shape == tokens.value.shape and all(self._marks.ancestors(t) & current for t in args[:2]):
                self._last.append((self._marks.own(out), Activation.of(out)))

    def record(self, scores: Tensor) -> Record:
        """What the scores depend on; a model may have computed more."""
        reached = self._marks.ancestors(scores)
        blocks = [known for known in self._blocks if known[1] & reached]
        return Record(
            attentions=[a for i, a in enumerate(self._attentions) if self._bits.get(i, 0) & reached],
            blocks=[block for _, _, block in blocks],
            last=next((tokens for bit, tokens in reversed(self._last) if bit & reached), None),
            layout=self._layout(blocks[0][0], blocks[0][2].z.value.shape[1]) if blocks else None,
            is_column=all(skip & before[1] for before, (skip, _, _) in itertools.pairwise(blocks)),
        )

    def _layout(self, first_skip: int, tokens: int) -> Layout | None:
        """Where the patches lie in the sequence that enters the first block, followed from the convolutions on.

        Of several that lead to this sequence the one with most patches counts: a gate in the stem has few.
        """
        found = None
        for bit, grid in self._grids:
            patches = length = grid[0] * grid[1]
            newest, offset = bit, 0
            if not bit & first_skip or (found is not None and patches < found.size):
                continue
            for joined, parts in self._joined:
                before = 0
                for size, ancestors in parts:
                    if joined & first_skip and ancestors & newest and size == length:
                        newest, offset, length = joined, before + offset, sum(size for size, _ in parts)
                        break
                    if joined & first_skip and ancestors & bit and size == patches:
                        # the sequence was taken apart and the patches are joined anew
                        newest, offset, length = joined, before, sum(size for size, _ in parts)
                        break
                    before += size
            if length == tokens:
                found = Layout(grid, offset, tokens)
        return found
