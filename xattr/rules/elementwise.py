"""Activations as an input times a constant gate, and products and quotients of two activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .operation import Operation, Rule, scaled


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


def multiply(op: Operation) -> Any:
    """A product of two activations: a gate (sigmoid, tanh, erf, rsqrt) is constant, else each factor gets half.

    `a * b` of two complete functions has a FullGrad sum of twice its value; half of the gradient mends it.
    """
    a, b = op.args[0], op.argument(1, "other")
    if not (op.varies(a) and op.varies(b)):
        return op.run()
    if op.is_gate(a) != op.is_gate(b):
        return op.run(*((a.detach(), b) if op.is_gate(a) else (a, b.detach())))
    return scaled(op.run(), 0.5)


def divide(op: Operation) -> Any:
    """A quotient: the denominator is constant."""
    a, b = op.args[0], op.argument(1, "other")
    return op.run(a, b.detach()) if op.varies(b) else op.run()
