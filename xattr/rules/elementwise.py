"""Activations as an input times a constant gate, `f(x) = x [f(x) / x]_constant`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._nested import tensors_in
from .operation import Operation, Rule


class _ConstantGate(torch.autograd.Function):
    """`y = f(x) = x * gate(x)` with the backward `grad * gate(x)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Callable[[Tensor], Tensor], gate: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        ctx.gate = gate
        return run(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * ctx.gate(x), None, None


def gated(gate: Callable[[Tensor], Tensor]) -> Rule:
    """The rule of an activation `x * gate(x)`: the gate is constant."""

    def rule(op: Operation) -> Tensor:
        return _ConstantGate.apply(op.args[0], op.run, gate)

    return rule


def by_ratio(at_zero: float) -> Rule:
    """The rule of an activation with `f(0) = 0`: the gate is `f(x) / x`, and `at_zero` where x is 0."""

    def rule(op: Operation) -> Tensor:
        gate = lambda x: torch.where(x == 0, at_zero, op.run(x) / x)
        return _ConstantGate.apply(op.args[0], op.run, gate)

    return rule


def bounded(op: Operation) -> Any:
    """ReLU6, hardtanh, clamp: a gate `f(x) / x` if 0 stays 0, else piecewise affine, where a bound is a bias."""
    given = list(tensors_in((op.args[1:], op.kwargs)))
    if given or float(op.run(torch.zeros(()))) != 0:
        return op.run()
    return by_ratio(0.0)(op)


def gelu(op: Operation) -> Tensor:
    """GELU, exact or by tanh."""
    tanh = op.argument(1, "approximate", "none") == "tanh"
    return gated(_tanh_gate if tanh else _normal_cdf)(op)


def _normal_cdf(x: Tensor) -> Tensor:
    return torch.special.ndtr(x)


def _tanh_gate(x: Tensor) -> Tensor:
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def glu(op: Operation) -> Tensor:
    """`F.glu`: one half of the channels times the constant sigmoid of the other."""
    value, gate = op.args[0].chunk(2, op.argument(1, "dim", -1))
    return value * torch.sigmoid(gate).detach()


silu = gated(torch.sigmoid)
mish = gated(lambda x: torch.tanh(F.softplus(x)))
hardswish = gated(F.hardsigmoid)
