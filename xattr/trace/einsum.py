"""A softmax that meets its values in `torch.einsum`, brought into the order `[B, H, N, M] @ [B, H, M, d]`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Product:
    """An einsum of a map and values in canonical order.

    Attributes:
        operands: map and values as they were given.
        weights: the map, `[B, H, N, M]` (or `[B, N, M]`).
        values: `[B, H, M, d]`.
        equation: the einsum of the operands as they were given, with its result in the order `[B, H, N, d]`.
        order: axes of that result as the model wants it.
    """

    operands: tuple[Tensor, Tensor]
    weights: Tensor
    values: Tensor
    equation: str
    order: tuple[int, ...]


def as_product(args: tuple[Any, ...], is_soft: Callable[[Any], bool]) -> Product | None:
    """The einsum as a product of a map and values, or `None` if it is anything else.

    Args:
        args: what `torch.einsum` was given.
        is_soft: whether an operand is a softmax along its last axis that has not met its values.
    """
    operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    if len(operands) != 2 or not isinstance(args[0], str) or sum(map(is_soft, operands)) != 1:
        return None
    left, arrow, wanted = args[0].replace(" ", "").partition("->")
    names = left.split(",")
    first = is_soft(operands[0])
    a, v = names if first else names[::-1]
    weights, values = operands if first else operands[::-1]
    if not arrow or "." in left or any(len(set(n)) != len(n) for n in (a, v, wanted)):
        return None
    # The key axis is the last of the map; images and heads are shared by all three, queries and channels by two.
    keys, shared = a[-1], [n for n in wanted if n in a and n in v]
    queries = [n for n in a if n in wanted and n not in v]
    channels = [n for n in v if n in wanted and n not in a]
    if keys in wanted or keys not in v or len(queries) != 1 or len(channels) != 1 or not 1 <= len(shared) <= 2:
        return None
    if len(a) != len(shared) + 2 or len(v) != len(shared) + 2 or len(wanted) != len(shared) + 2:
        return None
    result = [*shared, *queries, *channels]
    return Product(
        (weights, values),
        weights.permute([a.index(n) for n in (*shared, *queries, keys)]),
        values.permute([v.index(n) for n in (*shared, keys, *channels)]),
        f"{left}->{''.join(result)}",
        tuple(result.index(n) for n in wanted),
    )
