"""Rules of Transformer Attribution (arXiv:2012.09838): what has no rule of its own passes its relevance on unchanged.

Relevance is input times gradient everywhere, so passing it on through `y = f(x)` entry by entry is the gradient
`y g / x`. LRP is claimed as patented by its authors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .operation import Operation, scaled


class _PassedOn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, op: Operation) -> Tensor:  # type: ignore[override]
        out: Tensor = op.run(x)
        ctx.save_for_backward(torch.where(x == 0, 0, out / torch.where(x == 0, 1, x)))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (ratio,) = ctx.saved_tensors
        return grad * ratio, None


def passed_on(op: Operation) -> Any:
    """A norm, an activation or a softmax: each entry keeps its relevance."""
    x = op.args[0] if op.args else op.kwargs.get("input")
    return _PassedOn.apply(x, op) if op.varies(x) and op.args else NotImplemented


def halved(op: Operation) -> Any:
    """A product of two activations: half to each."""
    if sum(map(op.varies, op.args)) < 2:
        return op.run()
    return op.replaced(lambda tensor: scaled(tensor, 0.5) if op.varies(tensor) else tensor)


class _Attention(torch.autograd.Function):
    """Fused attention: half the relevance of `A V` to each factor, the map's passed on, half to queries and keys."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, op: Operation) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(query, key, value)
        ctx.given = op.kwargs
        ctx.shares = 1 / max(1, sum(op.varies(op.kwargs[part]) for part in ("query", "key")))
        out: Tensor = op.func(**{**op.kwargs, "query": query, "key": key, "value": value})
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value = ctx.saved_tensors
        scale, mask = ctx.given.get("scale"), ctx.given.get("attn_mask")
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scores = query @ key.mT * scale
        if ctx.given.get("is_causal"):
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        weights = scores.softmax(-1)
        on_scores = weights * (grad @ value.mT / 2) / torch.where(scores == 0, torch.inf, scores)
        scale = scale * ctx.shares
        return on_scores @ key * scale, on_scores.mT @ query * scale, weights.mT @ grad / 2, None


def attention(op: Operation) -> Any:
    """`F.scaled_dot_product_attention`, given by names, under the same rules as attention that is written out."""
    if op.kwargs.get("enable_gqa") or op.varies(op.kwargs.get("attn_mask")):
        return NotImplemented
    return _Attention.apply(op.kwargs["query"], op.kwargs["key"], op.kwargs["value"], op)
