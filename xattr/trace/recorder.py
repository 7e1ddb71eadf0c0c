"""Builds the record of a pass while it runs: attentions, residual sums, last tokens, token layout."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from . import places
from .functions import ADDITIONS
from .geometry import layout_and_order
from .layers import LayerWatch
from .marks import Mark, Marks
from .record import Activation, Attention, Block, Layout, Record


@dataclass(frozen=True)
class _Sum:
    """A residual sum about to be made: the attentions that are open in its branch, its skip and its branch."""

    opened: list[int]
    skip: Mark
    x: Activation
    a: Tensor
    layout: Layout | None


class Recorder:
    """Follows the operations of a pass and keeps what methods read.

    Args:
        marks: the marks of the pass.
        batch: number of images.
        path: path of the module that is running.
        layer: what else wants to know of attentions and their residual sums.
    """

    def __init__(self, marks: Marks, batch: int, path: Callable[[], str], layer: LayerWatch | None = None) -> None:
        self._layer = layer
        self._marks = marks
        self._batch = batch
        self._path = path
        self._attentions: list[Attention] = []
        # Of each attention: ancestors of its map and of its values; its own bit; the linear map behind it.
        self._ancestry: list[tuple[int, int]] = []
        self._bits: dict[int, int] = {}
        self._projections: dict[int, Tensor] = {}
        # Attentions to which something else was added before their residual sum, and those that mix images.
        self._joined: set[int] = set()
        self._mixed: list[str] = []
        # Own bit and path of each softmax over tokens, and the bits of those that met their values.
        self._softmaxes: list[tuple[int, str]] = []
        self._met: set[int] = set()
        self._blocks: list[tuple[_Sum, int, Block]] = []
        self._last: list[tuple[int, int, Activation]] = []
        # Of each operation on several varying tensors: its own bit, and the ancestors of each.
        self._meetings: list[tuple[int, list[int]]] = []

    # -- attention -----------------------------------------------------------------------------------------------------

    def fused_attention(self, given: dict[str, Any], out: Tensor, result: Mark) -> None:
        """An attention of queries, keys and values in one call."""
        query, key, values, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
        of_map = self._marks.ancestors(query) | self._marks.ancestors(key) | self._marks.ancestors(mask)
        ancestry, is_pool = (of_map, self._marks.ancestors(values)), not self._marks.varies(query)
        if given.get("enable_gqa"):
            repeats = query.shape[-3] // key.shape[-3]
            key, values = key.repeat_interleave(repeats, -3), values.repeat_interleave(repeats, -3)
        edge = Activation.of(out).edge
        self._check_images(given["value"])
        out, query, key, values = (t.detach() for t in (out, query, key, values))
        if out.ndim == 3:  # [B, N, d] is one head
            out, query, key, values = (t[:, None] for t in (out, query, key, values))
            mask = mask[:, None] if mask is not None and mask.ndim == 3 else mask
        scale = given.get("scale")
        attention = Attention(
            self._path(),
            Activation(out, edge),
            values,
            query=query,
            key=key,
            mask=None if mask is None else mask.detach(),
            scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
            causal=bool(given.get("is_causal")),
            is_pool=is_pool,
        )
        self._add(attention, ancestry, result)

    def explicit_attention(
        self,
        weights: Tensor,
        values: Tensor,
        out: Tensor,
        result: Mark,
        weights_given: Tensor | None = None,
        values_given: Tensor | None = None,
    ) -> None:
        """A softmax that meets its values in a matrix product; `..._given` where they were given in another order."""
        weights_given = weights if weights_given is None else weights_given
        values_given = values if values_given is None else values_given
        ancestry = self._marks.ancestors(weights_given), self._marks.ancestors(values_given)
        met = [bit for bit, _ in self._softmaxes if bit & ancestry[0]]
        self._met.update(met[-1:])
        self._check_images(values_given)
        parts = [out.detach(), values.detach(), weights.detach()]
        if out.ndim == 3:
            # [B H, N, d] has its heads folded into the batch, image by image; [B, N, d] is one head.
            heads = len(out) // self._batch if len(out) % self._batch == 0 else 1
            parts = [part.unflatten(0, (-1, heads)) for part in parts]
        activation = Activation(parts[0], Activation.of(out).edge)
        self._add(Attention(self._path(), activation, parts[1], weights=parts[2]), ancestry, result)

    def _check_images(self, values: Tensor) -> None:
        if not places.images_in_order(self._marks.place(values), self._batch):
            self._mixed.append(self._path())

    def _add(self, attention: Attention, ancestry: tuple[int, int], result: Mark) -> None:
        result.open = result.open | {len(self._attentions)}
        self._attentions.append(attention)
        self._ancestry.append(ancestry)
        if self._layer is not None:
            self._layer.attention(attention, *ancestry)

    # -- residual sums -------------------------------------------------------------------------------------------------

    def residual(self, args: Any, kwargs: Any, target: Tensor | None) -> _Sum | None:
        """Whether `p + a` will be a residual sum: `p` itself was read by map and values of all attentions open in `a`.

        Args:
            args: the operands.
            kwargs: anything here (a factor) makes it another sum.
            target: what is about to be overwritten.
        """
        if len(args) != 2 or not all(map(self._marks.varies, args)):
            return None
        for p, a in (args, args[::-1]):
            skip, branch = self._marks.of(p), self._marks.of(a)
            assert skip is not None and branch is not None
            opened = sorted(branch.open - skip.open)
            if not opened:
                continue
            read = all(skip.own & of_map & of_values for of_map, of_values in (self._ancestry[i] for i in opened))
            if read and not kwargs and p.shape == a.shape:
                layout, swapped = layout_and_order(skip.place)
                x, branch_value = (Activation.of(t, t is target, swapped) for t in (p, a))
                return _Sum(opened, skip, x, branch_value.value, layout)
            if not skip.open - branch.open:  # else two attentions side by side are summed
                self._joined.update(opened)
        return None

    def close(self, found: _Sum, z: Tensor) -> None:
        """A residual sum has been made."""
        mark = self._marks.of(z)
        assert mark is not None
        mark.open = mark.open - set(found.opened)
        self._last.append((mark.own, mark.ancestors, Activation.of(z, swapped=found.x.swapped)))
        if self._layer is not None:
            self._layer.block(found.x.value)
            self._layer.tokens(z)
        attentions = tuple(self._attentions[i] for i in found.opened)
        projection = self._projections.get(found.opened[0]) if len(found.opened) == 1 else None
        block = Block(attentions[0].path, attentions, found.x, found.a, self._last[-1][2], projection)
        self._blocks.append((found, mark.own, block))

    # -- everything else -----------------------------------------------------------------------------------------------

    def follow(self, name: str, args: Any, kwargs: Any, out: Tensor, result: Mark) -> None:
        """Any operation: what the record learns from it."""
        own = self._marks.own(out)
        for i in result.open - self._bits.keys():
            self._bits[i] = own
        if result.soft and name == "softmax":
            self._softmaxes.append((own, self._path()))
        elif name == "linear":
            weight = args[1] if len(args) > 1 else kwargs["weight"]
            for i in result.open - self._projections.keys():
                heads = self._attentions[i].out.value
                if heads.ndim == 4 and weight.shape[-1] == heads.shape[1] * heads.shape[3]:
                    self._projections[i] = weight.detach()
        elif name in ADDITIONS and self._last:
            # Where both operands come from the current tokens, the sum of an MLP makes the next ones.
            current, _, tokens = self._last[-1]
            alike = out.ndim > 1 and (out.transpose(0, 1) if tokens.swapped else out).shape == tokens.value.shape
            if alike and all(self._marks.ancestors(t) & current for t in args[:2]):
                self._last.append((own, self._marks.ancestors(out), Activation.of(out, swapped=tokens.swapped)))
                if self._layer is not None:
                    self._layer.tokens(out)

    def meeting(self, out: Tensor, ancestors: list[int]) -> None:
        """An operation on several tensors that depend on the image."""
        self._meetings.append((self._marks.own(out), ancestors))

    def record(self, scores: Tensor) -> Record:
        """What the scores depend on; a model may have computed more."""
        reached = self._marks.ancestors(scores)
        blocks = [known for known in self._blocks if known[1] & reached]
        last, of_last, tokens = next((known for known in reversed(self._last) if known[0] & reached), (0, 0, None))
        layouts = [found.layout for found, _, _ in blocks]
        return Record(
            attentions=[a for i, a in enumerate(self._attentions) if self._bits.get(i, 0) & reached],
            blocks=[block for _, _, block in blocks],
            last=tokens,
            layout=layouts[0] if layouts and all(one == layouts[0] for one in layouts) else None,
            batch=self._batch,
            obstacle=self._obstacle(blocks, last, of_last, reached),
        )

    def _obstacle(self, blocks: list[tuple[_Sum, int, Block]], last: int, of_last: int, reached: int) -> str | None:
        """Why a walk from the last tokens through the blocks would miss a part of the model."""
        if not blocks:
            return None
        if self._mixed:
            return f"the attention {self._mixed[0]!r} does not keep the images in order along its first axis"
        for found, _, block in blocks:
            if self._joined.intersection(found.opened):
                return f"something else is added to the attention {block.path!r} before its residual sum"
        if any(not found.skip.ancestors & before for (_, before, _), (found, _, _) in itertools.pairwise(blocks)):
            return f"the {len(blocks)} blocks seen do not follow one another"
        # Bits grow as the pass goes on: a softmax before the last tokens belongs to the blocks.
        lost = [path for bit, path in self._softmaxes if bit & reached and bit < last and bit not in self._met]
        if lost:
            return f"the softmax in {lost[0]!r} meets its values where the pass cannot follow it"
        ends = [*(found.skip.ancestors for found, _, _ in blocks[1:]), of_last]
        for own, ancestors in self._meetings:
            if own & reached and own > last and len({bool(a & last) for a in ancestors}) > 1:
                return "the scores read more than the last tokens"
            for (_, z, block), end in zip(blocks, ends, strict=True):
                if own & end and own > z and not all(a & z for a in ancestors):
                    return f"something that goes around the block {block.path!r} joins behind it"
        return None
