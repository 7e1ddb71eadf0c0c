"""Rules of a sum of two activations, as a residual connection makes it; the ordinary gradient is proportional.

With `o = u + v` and the relevance `R_o = o g` of the gradient `g` that arrives:

    gamma:   R_u = c_u u / (c_u u + c_v v) R_o,   c_u = 1 + gamma where u has the sign of o, else 1
    shares:  R_u = u g * |U| / (|U| + |V|) * (U + V) / U,   U = sum of u g over an image

LRP is claimed as patented by its authors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .operation import Operation, Rule


class _GammaSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, v: Tensor, gamma: float) -> Tensor:  # type: ignore[override]
        out = u + v
        wide = torch.promote_types(out.dtype, torch.float32)
        sign = out.sign()
        on_u, on_v = (1 + gamma * (part.sign() == sign).to(wide) for part in (u, v))
        denominator = on_u * u.to(wide) + on_v * v.to(wide)
        share = torch.where(out == 0, 0, out.to(wide) / torch.where(denominator == 0, 1, denominator))
        ctx.save_for_backward((on_u * share).to(out.dtype), (on_v * share).to(out.dtype))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        on_u, on_v = ctx.saved_tensors
        return grad * on_u, grad * on_v, None


class _SharedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, v: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(u.clone(), v.clone())  # the model may overwrite them
        return u + v

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        wide = torch.promote_types(grad.dtype, torch.float32)
        of_u, of_v = ((part.to(wide) * grad.to(wide)).flatten(1).sum(1) for part in ctx.saved_tensors)
        magnitude = of_u.abs() + of_v.abs()
        share = (of_u + of_v) / torch.where(magnitude == 0, 1, magnitude)
        shape = (-1, *(1,) * (grad.ndim - 1))
        return tuple(grad * (share * part.sign()).to(grad.dtype).view(shape) for part in (of_u, of_v))


def _is_of_two(op: Operation) -> bool:
    """Whether it is a plain sum of two activations of one shape."""
    return len(op.args) == 2 and not op.kwargs and all(map(op.varies, op.args)) and op.args[0].shape == op.args[1].shape


def gamma_sum(gamma: float) -> Rule:
    """The gamma rule, entry by entry."""

    def rule(op: Operation) -> Any:
        return _GammaSum.apply(*op.args, gamma) if _is_of_two(op) else op.run()

    return rule


def shared_sum(op: Operation) -> Any:
    """Relevance in proportion, then both operands scaled to their shares of an image's relevance by magnitude."""
    return _SharedSum.apply(*op.args) if _is_of_two(op) else op.run()
