"""Products and quotients of activations.

The FullGrad sum of a product of two complete maps is twice its value (Euler's theorem), so each factor gets half. A
factor that only scales (a sigmoid, a softmax, one over a norm) is a constant gate.
"""

from __future__ import annotations

from typing import Any

from .._nested import tensors_in
from .operation import Operation, scaled


def multiply(op: Operation) -> Any:
    """An elementwise product: a gate is constant, else each factor gets half."""
    a, b = op.args[0], op.argument(1, "other")
    if not (op.varies(a) and op.varies(b)):
        return op.run()
    if op.is_gate(a) != op.is_gate(b):
        return op.run(*((a.detach(), b) if op.is_gate(a) else (a, b.detach())))
    return scaled(op.run(), 0.5)


def gate_only(op: Operation) -> Any:
    """An elementwise product: a gate is constant, two other factors keep the ordinary gradient."""
    a, b = op.args[0], op.argument(1, "other")
    if op.varies(a) and op.varies(b) and op.is_gate(a) != op.is_gate(b):
        return multiply(op)
    return op.run()


def divide(op: Operation) -> Any:
    """A quotient: the denominator is constant."""
    a, b = op.args[0], op.argument(1, "other")
    return op.run(a, b.detach()) if op.varies(b) else op.run()


def multilinear(op: Operation) -> Any:
    """A map that is linear in each tensor of which it is made: each gets the same share."""
    count = sum(map(op.varies, tensors_in((op.args, op.kwargs))))
    return scaled(op.run(), 1 / count) if count > 1 else op.run()


def matrix_gate_only(op: Operation) -> Any:
    """A product of matrices: a gate (a softmax) is constant, other factors keep the ordinary gradient."""
    factors = [t for t in tensors_in((op.args, op.kwargs)) if op.varies(t)]
    if len({op.is_gate(t) for t in factors}) < 2:
        return op.run()
    return op.replaced(lambda t: t.detach() if op.is_gate(t) else t)


def matrix_product(op: Operation) -> Any:
    """A product of matrices: a gate is constant, else each factor gets the same share."""
    factors = [t for t in tensors_in((op.args, op.kwargs)) if op.varies(t)]
    return (multilinear if len({op.is_gate(t) for t in factors}) < 2 else matrix_gate_only)(op)


def added_product(op: Operation) -> Any:
    """`c + a b` in one call (`addmm`, `baddbmm`, `addcmul`): the product as its own, the summand as it is."""
    a, b = op.args[1], op.args[2]
    if not (op.varies(a) and op.varies(b)):
        return op.run()
    return op.run(op.args[0], scaled(a, 0.5), scaled(b, 0.5))


def power(op: Operation) -> Any:
    """`x ** n` with a constant n > 0 is homogeneous of degree n: its gradient over n is complete."""
    n = op.argument(1, "exponent")
    if op.varies(n) or op.is_gate(op.args[0]):
        return NotImplemented
    n = float(n) if not hasattr(n, "numel") or n.numel() == 1 else 0.0
    return scaled(op.run(), 1 / n) if n > 0 else NotImplemented


def square(op: Operation) -> Any:
    """`x ** 2`."""
    return scaled(op.run(), 0.5)
