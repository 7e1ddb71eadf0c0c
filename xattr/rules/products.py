"""Products and quotients of activations.

The FullGrad sum of a product of two complete maps is twice its value (Euler's theorem), so each factor gets half. A
factor that only scales (a sigmoid, a softmax, one over a norm) is a constant gate.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .._nested import tensors_in
from .operation import Operation, scale_gradient, scaled


def shared(op: Operation, factors: list[Tensor], halved: bool) -> Any:
    """A product of factors: those that are gates more than the others are constant, the rest share the relevance.

    Args:
        op: the operation; it may have other operands.
        factors: the factors among its operands.
        halved: whether the rest get equal shares, or keep their ordinary gradient.
    """
    varying = [t for t in factors if op.varies(t)]
    if len(varying) < 2:
        return op.run()
    least = min(map(op.gate, varying))
    rest = sum(op.gate(t) == least for t in varying)
    share = 1 / rest if halved else 1.0

    def change(tensor: Tensor) -> Tensor:
        if not any(tensor is factor for factor in varying):
            return tensor
        return scaled(tensor, share if op.gate(tensor) == least else 0.0)

    return op.replaced(change)


def product(op: Operation) -> Any:
    """A product of all its operands, elementwise or of matrices."""
    return shared(op, list(tensors_in((op.args, op.kwargs))), halved=True)


def gate_only(op: Operation) -> Any:
    """A product of which only gates are constant; other factors keep their ordinary gradient."""
    return shared(op, list(tensors_in((op.args, op.kwargs))), halved=False)


def multilinear(op: Operation) -> Any:
    """A product in which gates take part like any other factor."""
    count = sum(map(op.varies, tensors_in((op.args, op.kwargs))))
    return scale_gradient(op.run(), 1 / count) if count > 1 else op.run()


def added_product(op: Operation) -> Any:
    """`c + a b` in one call (`addmm`, `baddbmm`, `addcmul`): the product as its own, the summand as it is."""
    kind = getattr(op.func, "__name__", "").rstrip("_")
    names = {"addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2")}.get(kind, ("tensor1", "tensor2"))
    a, b = (op.argument(place + 1, name) for place, name in enumerate(names))
    others = {name: value for name, value in op.kwargs.items() if name not in names}
    run = lambda a, b: op.func(op.args[0], a, b, *op.args[3:], **others)
    return shared(Operation(run, (a, b), {}, op.varies, op.gate), [a, b], halved=True)


def divide(op: Operation) -> Any:
    """A quotient: the denominator is constant. A constant over an activation is a gate."""
    a, b = op.args[0], op.argument(1, "other")
    if not op.varies(b):
        return op.run()
    return op.run(a, b.detach()) if op.varies(a) else NotImplemented


def interpolated(op: Operation) -> Any:
    """`lerp`: `a + w (b - a)`, a product where the weight depends on the image."""
    a, b, weight = op.args[0], op.argument(1, "end"), op.argument(2, "weight")
    if not op.varies(weight):
        return op.run()
    if op.gate(weight):
        return op.run(a, b, weight.detach())
    return NotImplemented


def first_only(op: Operation) -> Any:
    """What is linear in its first operand (`grid_sample`, `prelu`): the others are constant."""
    return op.replaced(lambda t: t if t is op.args[0] else t.detach())


def power(op: Operation) -> Any:
    """`x ** n` with a constant n > 0 is homogeneous of degree n: its gradient over n is complete."""
    n = op.argument(1, "exponent")
    if op.varies(n):
        return NotImplemented
    n = float(n) if not isinstance(n, Tensor) or n.numel() == 1 else 0.0
    return scale_gradient(op.run(), 1 / n) if n > 0 else NotImplemented


def square(op: Operation) -> Any:
    """`x ** 2`."""
    return scale_gradient(op.run(), 0.5)


def square_root(op: Operation) -> Any:
    """`x ** 0.5`."""
    return scale_gradient(op.run(), 2.0)


def norm(op: Operation) -> Any:
    """A norm is homogeneous of degree 1, but for the number of entries that are not 0."""
    p = op.argument(1, "ord" if "linalg" in getattr(op.func, "__name__", "") else "p")
    return NotImplemented if p == 0 else op.run()


def threshold(op: Operation) -> Any:
    """What does not pass becomes a number; it has to be 0."""
    return op.run() if op.argument(2, "value") == 0 else NotImplemented
