"""Normalisation layers: batch norm as the affine map it is in evaluation, the others with a constant denominator.

    y = (x - mean(x)) / [sqrt(var(x) + eps)]_constant * weight + bias

The mean stays differentiable; RMSNorm has none. Values are computed by torch's own kernels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .operation import Operation


class _ConstantDenominator(torch.autograd.Function):
    """A normalisation over the trailing axes whose backward treats the denominator as a constant."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float, centred: bool
    ) -> Tensor:
        axes = tuple(range(-len(shape), 0))
        if centred:
            y, _, inverse = torch.native_layer_norm(x, shape, weight, bias, eps)
        else:
            y = F.rms_norm(x, shape, weight, eps)
            wide = x.float() if x.dtype in (torch.half, torch.bfloat16) else x
            inverse = (wide.square().mean(axes, keepdim=True) + eps).rsqrt().to(x.dtype)
        ctx.save_for_backward(inverse, weight)
        ctx.axes, ctx.centred, ctx.bias_shape = axes, centred, None if bias is None else bias.shape
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        inverse, weight = ctx.saved_tensors
        on_bias = grad.sum_to_size(ctx.bias_shape) if ctx.needs_input_grad[3] else None
        grad = grad * (inverse if weight is None else inverse * weight)
        if ctx.centred:
            grad = grad - grad.mean(ctx.axes, keepdim=True)
        return grad, None, None, on_bias, None, None


def layer_norm(op: Operation) -> Tensor:
    """LayerNorm with a constant denominator."""
    x, shape = op.args[0], list(op.argument(1, "normalized_shape"))
    weight, bias, eps = op.argument(2, "weight"), op.argument(3, "bias"), op.argument(4, "eps", 1e-5)
    return _ConstantDenominator.apply(x, shape, weight, bias, eps, True)


def rms_norm(op: Operation) -> Tensor:
    """RMSNorm with a constant denominator."""
    x, shape, weight, eps = (
        op.args[0],
        list(op.argument(1, "normalized_shape")),
        op.argument(2, "weight"),
        op.argument(3, "eps"),
    )
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return _ConstantDenominator.apply(x, shape, weight, None, eps, False)


def group_norm(op: Operation) -> Tensor:
    """GroupNorm with a constant denominator: LayerNorm of each group, then the affine map over channels."""
    x, groups = op.args[0], op.argument(1, "num_groups")
    weight, bias, eps = op.argument(2, "weight"), op.argument(3, "bias"), op.argument(4, "eps", 1e-5)
    weight = weight.detach() if op.varies(weight) else weight
    grouped = x.reshape(len(x), groups, -1)
    y = _ConstantDenominator.apply(grouped, [grouped.shape[-1]], None, None, eps, True).view_as(x)
    y = y if weight is None else y * per_channel(weight, x)
    return y if bias is None else y + per_channel(bias, x)


def affine(op: Operation) -> tuple[Tensor, Tensor] | None:
    """Scale and shift of each channel of a batch norm in evaluation; `None` where it normalises by its batch."""
    mean, var, weight, bias = _statistics_and_parameters(op)
    eps = op.argument(7, "eps", 1e-5)
    if mean is None or var is None:
        return None
    scale = (var + eps).rsqrt() if weight is None else weight * (var + eps).rsqrt()
    return scale, -mean * scale if bias is None else bias - mean * scale


def _statistics_and_parameters(op: Operation) -> tuple[Tensor | None, ...]:
    """Running mean and variance, weight and bias; a scale that depends on the image is constant."""
    names = ("running_mean", "running_var", "weight", "bias")
    if op.func in (torch.batch_norm, torch.instance_norm):  # another order than in torch.nn.functional
        places = (3, 4, 1, 2)
    else:
        places = (1, 2, 3, 4)
    mean, var, weight, bias = (op.argument(place, name) for place, name in zip(places, names, strict=True))
    var, weight = (value.detach() if op.varies(value) else value for value in (var, weight))
    return mean, var, weight, bias


def per_channel(values: Tensor, x: Tensor) -> Tensor:
    """One value for each channel, broadcastable to `x`."""
    return values.view(1, -1, *(1,) * (x.ndim - 2)).to(x.dtype)


def batch_norm(op: Operation) -> Any:
    """Batch norm in evaluation, written as the affine map `x * scale + shift`.

    The same in every rule set: torch's own CPU backward is wrong for one image whose gradient arrives token by token,
    as it does behind every convolution stem of a transformer (found in torch 2.14.1).
    """
    found = affine(op)
    if found is None:
        return NotImplemented
    x = op.args[0]
    scale, shift = (per_channel(part, x) for part in found)
    return x * scale + shift


def instance_norm(op: Operation) -> Any:
    """InstanceNorm with a constant denominator, or batch norm if it uses running statistics."""
    if not op.argument(5, "use_input_stats", True):
        return batch_norm(op)
    x, eps, (_, _, weight, bias) = op.args[0], op.argument(7, "eps", 1e-5), _statistics_and_parameters(op)
    y = _ConstantDenominator.apply(x.flatten(2), [x[0, 0].numel()], None, None, eps, True).view_as(x)
    y = y if weight is None else y * per_channel(weight, x)
    return y if bias is None else y + per_channel(bias, x)


def normalize(op: Operation) -> Tensor:
    """`F.normalize` (unit length) with a constant norm."""
    x, p, axis, eps = op.args[0], op.argument(1, "p", 2.0), op.argument(2, "dim", 1), op.argument(3, "eps", 1e-12)
    norm: Tensor = x.norm(p, axis, keepdim=True).clamp_min(eps).detach()
    return x / norm
