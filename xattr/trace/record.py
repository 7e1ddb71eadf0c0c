"""What one pass leaves behind: attentions, blocks, the token layout, and where gradients arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from .errors import UnsupportedModelError


@dataclass(frozen=True)
class Activation:
    """A tensor of the pass: its value, and the place in the graph where its gradient arrives.

    The place is kept instead of the tensor, so that a later in-place operation changes neither.

    Attributes:
        value: its value.
        edge: where its gradient arrives.
        swapped: the first two axes of `value` are swapped: the model has tokens first, images second.
    """

    value: Tensor
    edge: GradientEdge | None
    swapped: bool = False

    @classmethod
    def of(cls, tensor: Tensor, copy: bool = False, swapped: bool = False) -> Activation:
        """Remember a tensor; `copy` where it is about to be overwritten, `swapped` to have images first."""
        value = tensor.detach().clone() if copy else tensor.detach()
        edge = get_gradient_edge(tensor) if tensor.requires_grad else None
        return cls(value.transpose(0, 1) if swapped else value, edge, swapped)

    def as_value(self, gradient: Tensor | None) -> Tensor:
        """A gradient that arrived here, in the shape of the value; heads may be folded into the batch there."""
        if gradient is None:
            return torch.zeros_like(self.value)
        return gradient.transpose(0, 1) if self.swapped else gradient.reshape(self.value.shape)


@dataclass(frozen=True)
class Layout:
    """Where the image's patches lie in a sequence of tokens.

    Attributes:
        grid: `(h, w)` of the patches, row by row.
        offset: number of tokens in front of them.
        tokens: length of the sequence.
    """

    grid: tuple[int, int]
    offset: int
    tokens: int

    @property
    def size(self) -> int:
        """Number of patches."""
        return self.grid[0] * self.grid[1]

    @property
    def patches(self) -> slice:
        """The patch tokens in the sequence."""
        return slice(self.offset, self.offset + self.size)

    @property
    def prefix(self) -> list[int]:
        """The other tokens (class, distillation, registers): in front of the patches, or behind them."""
        return [i for i in range(self.tokens) if not self.patches.start <= i < self.patches.stop]


@dataclass(frozen=True)
class Attention:
    """One attention over tokens.

    Its map is not kept. It is computed again from queries and keys when it is asked for, so fused attention stays
    fused.

    Attributes:
        path: dotted path of the module that ran it.
        out: what it returned, `[B, H, N, d]`.
        values: `[B, H, M, d]`.
        weights: the map `[B, H, N, M]` where the model computed one itself.
        query: `[B, H, N, e]`, else.
        key: `[B, H, M, e]`, else.
        mask: additive or boolean mask, or `None`.
        scale: factor on the scores.
        causal: whether a query sees only the keys up to its own place.
        is_pool: whether its queries do not come from the image, as in an attention pool.
    """

    path: str
    out: Activation
    values: Tensor
    weights: Tensor | None = None
    query: Tensor | None = None
    key: Tensor | None = None
    mask: Tensor | None = None
    scale: float = 1.0
    causal: bool = False
    is_pool: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(B, H, N, M)` of the map."""
        batch, heads, queries = self.out.value.shape[:3]
        return batch, heads, queries, self.values.shape[-2]

    def map(self, images: slice = slice(None)) -> Tensor:
        """The attention map `[B, H, N, M]` of some images; rows (queries) sum to 1. At least float32."""
        return _wide(self.weights[images]) if self.weights is not None else self.scores(images).softmax(-1)

    def scores(self, images: slice = slice(None)) -> Tensor:
        """What the softmax is taken of, `[B, H, N, M]`; only where queries and keys were kept."""
        assert self.query is not None and self.key is not None
        scores = _wide(self.query[images]) * self.scale @ _wide(self.key[images]).mT
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        if self.mask is not None:
            mask = self.mask[images] if self.mask.ndim == 4 and len(self.mask) == len(self.query) else self.mask
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        return scores

    def map_gradient(self, out_gradient: Tensor, images: slice = slice(None)) -> Tensor:
        """`df/dA = df/do @ V^T`, `[B, H, N, M]`, from the gradient of what the attention returned."""
        return _wide(out_gradient[images]) @ _wide(self.values[images]).mT


@dataclass(frozen=True)
class Block:
    """A residual sum of attention, `z = x + a`.

    Attributes:
        path: dotted path of the module in which the attention ran.
        attentions: what `a` was computed from; several if they run side by side.
        x: the skip, `[B, N, D]`.
        a: the branch as it enters the sum.
        z: the sum.
        projection: weight `[D, H d]` of the linear map behind the attention, if there is one.
    """

    path: str
    attentions: tuple[Attention, ...]
    x: Activation
    a: Tensor
    z: Activation
    projection: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(B, H, N, M)` of the maps, with the heads of all attentions."""
        batch, _, rows, columns = self.attentions[0].shape
        return batch, sum(attention.shape[1] for attention in self.attentions), rows, columns

    def maps(self, images: slice = slice(None)) -> Tensor:
        """The attention maps of all heads, `[B, H, N, M]`."""
        return _joined([attention.map(images) for attention in self.attentions])

    def map_gradients(self, out_gradients: Sequence[Tensor], images: slice = slice(None)) -> Tensor:
        """`df/dA` of all heads, `[B, H, N, M]`, from the gradient of what each attention returned."""
        pairs = zip(self.attentions, out_gradients, strict=True)
        return _joined([attention.map_gradient(gradient, images) for attention, gradient in pairs])

    def values(self, images: slice = slice(None)) -> Tensor:
        """The values of all heads, `[B, H, M, d]`."""
        return _joined([attention.values[images] for attention in self.attentions])


@dataclass
class Record:
    """Everything that a pass was asked to remember, in order of depth.

    Attributes:
        attentions: all attentions.
        blocks: those with a residual sum.
        head: those without one, which belong to the head (an attention pool).
        last: the last tokens that the head reads.
        layout: where the patches lie in the sequence, if it was found.
        batch: number of images.
        obstacle: why the blocks are no chain that leads to the last tokens, and these to the scores.
    """

    attentions: list[Attention]
    blocks: list[Block]
    last: Activation | None = None
    layout: Layout | None = None
    batch: int = 0
    obstacle: str | None = None

    @property
    def head(self) -> list[Attention]:
        """Attentions behind the last block that never met a residual sum."""
        inside = {id(a) for block in self.blocks for a in block.attentions}
        return [a for a in self.attentions if id(a) not in inside]

    def require_blocks(self, method: str) -> Layout:
        """The token layout, after a check that the model is a column of attention blocks over one token sequence.

        Raises:
            UnsupportedModelError: with what was found instead.
        """
        if not self.attentions:
            raise self._unsupported(method, "no attention was seen in this model")
        if not self.blocks:
            raise self._unsupported(method, f"none of the {len(self.attentions)} attentions seen has a residual sum")
        for attention in self.head:
            if not (attention.is_pool or attention.shape[2] == 1):
                found = f"no residual sum was found for the attention {attention.path!r} {list(attention.shape)}"
                raise self._unsupported(method, found)
        if self.obstacle is not None:
            raise self._unsupported(method, self.obstacle)
        tokens = self.blocks[0].z.value.shape[1]
        for block in self.blocks:
            batch, count = block.z.value.shape[:2]
            if block.z.value.ndim != 3 or count != tokens or batch != self.batch:
                raise self._unsupported(method, f"block {block.path!r} works on {list(block.z.value.shape)}")
            if any(attention.out.value.ndim != 4 for attention in block.attentions):
                raise self._unsupported(method, f"the attention {block.path!r} has more axes than [B, H, N, d]")
            for attention in block.attentions:
                if attention.shape[0::2] != (batch, count) or attention.shape[3] != count:
                    found = f"the attention {attention.path!r} has maps [B, H, N, M] = {list(attention.shape)}"
                    raise self._unsupported(method, f"{found}, not tokens x tokens (windows, reduced keys or channels)")
        if self.layout is None:
            raise self._unsupported(
                method, f"no grid of patches from a convolution lies row by row in its {tokens} tokens throughout"
            )
        return self.layout

    @staticmethod
    def _unsupported(method: str, found: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{method} explains models that are one chain of self-attention blocks on one sequence of tokens, "
            f"like a ViT; here {found}. GradCam, LRP and IntegratedGradients explain other models too."
        )


def image_chunks(count: int, bytes_each: int, budget: int) -> Iterator[slice]:
    """Slices of images that keep what is computed for them at once within `budget` bytes."""
    return chunks(count, max(1, int(budget // max(1, bytes_each))))


def chunks(count: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that cover `count`."""
    return (slice(start, min(count, start + size)) for start in range(0, count, size))


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.half, torch.bfloat16) else tensor


def gradients(score: Tensor, places: list[Activation], keep: bool = False) -> list[Tensor]:
    """Gradients of the summed score at several places in one backward; zeros where nothing arrives.

    Args:
        score: one number per image, `[B]`; images do not interact in evaluation mode, so the sum serves all at once.
        places: where to read the gradient.
        keep: whether the graph is needed again.
    """
    reached: list[Any] = [place.edge for place in places if place.edge is not None]
    # The caller may have switched gradients off; the graph of the score exists all the same.
    with torch.inference_mode(False), torch.enable_grad():
        total = score.sum()
    found = iter(torch.autograd.grad(total, reached, allow_unused=True, retain_graph=keep) if reached else ())
    return [place.as_value(None if place.edge is None else next(found)) for place in places]
