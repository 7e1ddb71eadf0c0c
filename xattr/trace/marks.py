"""What a pass knows of each of its tensors, and which names of torch functions it treats specially."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(slots=True)
class Mark:
    """Knowledge about one tensor of one pass.

    Attributes:
        owner: number of the pass.
        ancestors: bit set of the tensors it was computed from, itself included; 0 for a constant.
        open: the attentions it depends on that have not met their residual sum.
        soft: it is a softmax that has not met its values.
        gate: it is a squashed or inverted quantity (sigmoid, rsqrt, ...).
        has_gradient: it had a gradient function when it was marked. One that gets its gradient later was made inside a
            custom autograd function.
    """

    owner: int
    ancestors: int = 0
    open: frozenset[int] = frozenset()
    soft: bool = False
    gate: bool = False
    has_gradient: bool = False


def mark_of(tensor: Any, owner: int) -> Mark | None:
    """The mark that the pass `owner` left on a tensor."""
    mark: Mark | None = getattr(tensor, "_xattr_mark", None)
    return mark if mark is not None and mark.owner == owner else None


def set_mark(tensor: Tensor, mark: Mark) -> None:
    """Leave a mark on a tensor that was made in the pass."""
    mark.has_gradient = tensor.grad_fn is not None
    tensor._xattr_mark = mark  # type: ignore[attr-defined]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def replace_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nested value with each tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(replace_tensors(part, change) for part in value)
    if type(value) is dict:
        return {key: replace_tensors(part, change) for key, part in value.items()}
    return value


def writes_in_place(name: str) -> bool:
    """Whether a torch function of this name overwrites its first argument."""
    if name.startswith("__"):
        return name in _IN_PLACE_OPERATORS
    return name.endswith("_") and name not in ("requires_grad_", "retain_grad_")


_IN_PLACE_OPERATORS = frozenset(
    f"__{name}__"
    for name in ("setitem", *("iadd isub imul imatmul itruediv ifloordiv imod ipow iand ior ixor".split()))
)

ADDITIONS = frozenset(("add", "__add__", "__radd__", "add_", "__iadd__"))
MATRIX_PRODUCTS = frozenset(("matmul", "__matmul__", "bmm"))
GATES = frozenset(("sigmoid", "tanh", "erf", "hardsigmoid", "rsqrt", "reciprocal"))
# What a softmax passes through on its way to the values, and a gate on its way to what it scales.
KEEPS_SOFT = frozenset(
    "dropout to type type_as float half bfloat16 double contiguous clone view reshape expand masked_fill".split()
)
KEEPS_GATE = KEEPS_SOFT | frozenset(
    "add __add__ __radd__ sub __sub__ __rsub__ mul __mul__ __rmul__ div __truediv__ __rtruediv__ unsqueeze".split()
)

# Training behaviour that is an argument: function -> (position, name, value in evaluation).
EVALUATION: dict[Any, tuple[int, str, Any]] = {
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d, F.dropout3d), (2, "training", False)),
    **dict.fromkeys((F.alpha_dropout, F.feature_alpha_dropout), (2, "training", False)),
    **dict.fromkeys((torch.dropout, torch.alpha_dropout, torch.feature_dropout), (2, "train", False)),
    F.rrelu: (3, "training", False),
    F.scaled_dot_product_attention: (4, "dropout_p", 0.0),
}
