"""The epsilon, gamma and alpha-1 rules of linear maps (linear layers, all convolutions), with batch norm folded in.

With the output `z_k = sum_j x_j w_jk + b_k`, its relevance `R_k = z_k g_k` and `g` the gradient that arrives:

    epsilon:  R_j = sum_k x_j w_jk R_k / (z_k + eps max|z| sign(z_k))
    gamma:    R_j = sum_k (c_jk + gamma c_jk^s) R_k / (sum_i (c_ik + gamma c_ik^s) + b_k + gamma b_k^s)
    alpha-1:  R_j = sum_k c_jk^+ R_k / sum_i c_ik^+

where `c_jk = x_j w_jk`, `s` is the sign of `z_k` and `c^s` the part of `c` that has this sign, so inputs may have both
signs. Both are put around the ordinary map, never in place of its backward: epsilon changes the gradient that enters
it, and gamma lets the gradient flow through `z` and through `a = sum_j |x_j| |w_jk| + |b_k|`, since
`c^+ = (c + |c|) / 2`. Gamma thus costs two products in the forward and two in the backward.

LRP is claimed as patented by its authors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .normalisation import affine, per_channel
from .operation import Operation, Rule
from .products import shared


@dataclass(frozen=True)
class Parts:
    """A linear map before a rule was put around it.

    Attributes:
        z: its output, bias included.
        a: the same from absolute values of inputs and weights, without the bias; only gamma needs it.
        bias: what was added, broadcastable to `z`.
    """

    z: Tensor
    a: Tensor | None
    bias: Tensor | None


class _Epsilon(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, eps: float, axes: tuple[int, ...]) -> Tensor:  # type: ignore[override]
        wide = z.to(torch.promote_types(z.dtype, torch.float32))
        stabilised = wide + wide.sign() * eps * (wide.abs().amax(axes, keepdim=True) if axes else wide.abs())
        ctx.save_for_backward(torch.where(wide == 0, 0, wide / stabilised).to(z.dtype))
        return z.clone()  # the model may overwrite it

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (factor,) = ctx.saved_tensors
        return grad * factor, None, None


class _Gamma(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, a: Tensor, gamma: float) -> Tensor:  # type: ignore[override]
        wide = torch.promote_types(z.dtype, torch.float32)
        sign = z.sign().to(wide)
        denominator = z.to(wide) * (1 + gamma / 2) + sign * a.to(wide) * (gamma / 2)
        # z / denominator is positive; with the sign of z it says both.
        ctx.save_for_backward(torch.where(denominator == 0, 0, sign * z / denominator))
        ctx.gamma = gamma
        return z.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (signed,) = ctx.saved_tensors
        on_z, on_a = grad * signed.abs() * (1 + ctx.gamma / 2), grad * signed * (ctx.gamma / 2)
        return on_z.to(grad.dtype), on_a.to(grad.dtype), None


class _AlphaOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, a: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[override]
        wide, large = (
            z.to(torch.promote_types(z.dtype, torch.float32)),
            a.to(torch.promote_types(a.dtype, torch.float32)),
        )
        positive = ((wide if bias is None else wide - bias) + large) / 2
        none = positive <= 16 * torch.finfo(wide.dtype).eps * large  # what is left of sums that cancel
        ctx.save_for_backward(torch.where(none, 0, wide / torch.where(none, 1, 2 * positive)).to(z.dtype))
        return z.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (factor,) = ctx.saved_tensors
        return grad * factor, grad * factor, None


@dataclass(frozen=True)
class Around:
    """What is put around a linear map: the function of its parts, and whether it needs the absolute map."""

    apply: Callable[[Parts, tuple[int, ...]], Tensor]
    absolute: bool


def epsilon(eps: float) -> Around:
    """The epsilon rule, relative to the largest output of an image (of a token, for linear layers)."""
    return Around(lambda parts, axes: _Epsilon.apply(parts.z, eps, axes), absolute=False)


def gamma(value: float) -> Around:
    """The gamma rule; 0 is the ordinary gradient."""

    def apply(parts: Parts, axes: tuple[int, ...]) -> Tensor:
        if parts.a is None:
            return parts.z.clone()
        return _Gamma.apply(parts.z, parts.a if parts.bias is None else parts.a + parts.bias.abs(), value)

    return Around(apply, absolute=value > 0)


def alpha_one() -> Around:
    """The alpha-1 rule: only positive contributions, biases get nothing; `sum_j c^+ = (z - b + a) / 2`."""

    def apply(parts: Parts, axes: tuple[int, ...]) -> Tensor:
        assert parts.a is not None
        return _AlphaOne.apply(parts.z, parts.a, parts.bias)

    return Around(apply, absolute=True)


def ordinary(op: Operation) -> Any:
    """A linear map with its ordinary gradient; a weight that depends on the image makes it a product, half for each."""
    return shared(op, [op.args[0], op.argument(1, "weight")], halved=True)


def linear_map(around: Around) -> Rule:
    """The rule of `f(x, weight, bias, ...)`."""

    def rule(op: Operation) -> Any:
        x, weight, bias = op.args[0], op.argument(1, "weight"), op.argument(2, "bias")
        if op.varies(weight):
            return ordinary(op)
        a = None
        if around.absolute:
            others = {key: value for key, value in op.kwargs.items() if key not in ("weight", "bias")}
            a = op.func(x.abs(), weight.abs(), None, *op.args[3:], **others)
        layer = weight.ndim <= 2
        parts = Parts(op.run(), a, bias if bias is None or layer else bias.view(-1, *(1,) * (weight.ndim - 2)))
        return _finish(around, parts, _axes(weight), layer)

    return rule


def _axes(weight: Tensor) -> tuple[int, ...]:
    """Over which axes of the output its largest value is taken; a layer of one output has none."""
    return {1: (), 2: (-1,)}.get(weight.ndim, tuple(range(1 - weight.ndim, 0)))


def batch_norm(convolution: Around, linear: Around) -> Rule:
    """Batch norm in evaluation: folded into the linear map before it, else a diagonal map with a convolution's rule."""

    def rule(op: Operation) -> Any:
        found = affine(op)
        if found is None:
            return NotImplemented
        x: Tensor = op.args[0]
        scale, shift = (per_channel(part, x) for part in found)
        before, layer = _parts_of(x)
        around = linear if layer else convolution
        if before is None:
            before = Parts(x, x.abs() if around.absolute else None, None)
        parts = Parts(
            before.z * scale + shift,
            None if before.a is None else before.a * scale.abs(),
            shift if before.bias is None else before.bias * scale + shift,
        )
        return _finish(around, parts, tuple(range(1, x.ndim)), layer)

    return rule


def _finish(around: Around, parts: Parts, axes: tuple[int, ...], layer: bool) -> Tensor:
    out = around.apply(parts, axes)
    out._xattr_parts = (out._version, parts, layer)  # type: ignore[attr-defined]
    return out


def _parts_of(tensor: Tensor) -> tuple[Parts | None, bool]:
    """The linear map that made a tensor, unless something was written into it since; whether it is a linear layer."""
    version, parts, layer = getattr(tensor, "_xattr_parts", (None, None, False))
    return (parts, layer) if version == tensor._version else (None, False)
