"""Which torch functions a pass treats specially, by name or by object."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F

ADDITIONS = frozenset(("add", "__add__", "__radd__", "add_", "__iadd__"))
MATRIX_PRODUCTS = frozenset(("matmul", "__matmul__", "bmm"))
CONCATENATIONS = frozenset(("cat", "concat", "concatenate"))
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

# Functions that are attention written in Python, with the check taken out that would hand them back to the pass as one
# call.
COMPOSITES: dict[Any, Callable[..., Any]] = {
    function: FunctionType(
        function.__code__,
        {**function.__globals__, "has_torch_function": lambda tensors: False},
        argdefs=function.__defaults__,
    )
    for function in (F.multi_head_attention_forward,)
}

_IN_PLACE_OPERATORS = frozenset(
    f"__{name}__" for name in "setitem iadd isub imul imatmul itruediv ifloordiv imod ipow iand ior ixor".split()
)


def name_of(func: Any) -> str:
    """Name of a torch function; a property's own name for its getter."""
    name = getattr(func, "__name__", "")
    return getattr(func.__self__, "__name__", name) if name == "__get__" else name


def writes_in_place(name: str) -> bool:
    """Whether a torch function of this name overwrites its first argument."""
    if name.startswith("__"):
        return name in _IN_PLACE_OPERATORS
    return name.endswith("_") and name not in ("requires_grad_", "retain_grad_")


def out_of_place(name: str) -> str:
    """Name of the function that does the same without overwriting: `mul_` -> `mul`, `__imul__` -> `__mul__`."""
    return f"__{name[3:]}" if name.startswith("__") else name.rstrip("_")


def in_evaluation(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with training behaviour switched off."""
    if func not in EVALUATION:
        return args, kwargs
    position, name, value = EVALUATION[func]
    if len(args) > position:
        return (*args[:position], value, *args[position + 1 :]), kwargs
    return args, {**kwargs, name: value}
