"""Which torch functions a pass treats specially, by name or by object."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ..rules.names import BY_FIRST, MOVES

ADDITIONS = frozenset(("add", "__add__", "__radd__", "add_", "__iadd__"))
MATRIX_PRODUCTS = frozenset(("matmul", "__matmul__", "bmm"))
# What squashes or inverts, so that its result only scales others; 1 where it is an activation of its own too.
GATES = dict.fromkeys("sigmoid erf hardsigmoid softmax rsqrt reciprocal __rtruediv__ __rdiv__".split(), 2) | {"tanh": 1}
DIVISIONS = frozenset("div __truediv__ divide true_divide".split())
# What acts on each entry by itself, and what keeps the geometry of a picture while it changes its grid.
BY_ENTRY = frozenset(
    "layer_norm group_norm batch_norm instance_norm rms_norm normalize gelu relu relu6 silu mish elu selu celu prelu "
    "hardswish hardsigmoid hardtanh leaky_relu sigmoid tanh softplus softsign erf exp log log1p sqrt rsqrt square pow "
    "__pow__ abs neg __neg__ reciprocal clamp clamp_min clamp_max maximum minimum where masked_fill nan_to_num dropout "
    "add __add__ __radd__ sub __sub__ __rsub__ mul __mul__ __rmul__ multiply div __truediv__ __rtruediv__ divide lerp "
    "addcmul addcdiv copy to float half bfloat16 double type type_as detach requires_grad dropout1d dropout2d "
    "alpha_dropout feature_alpha_dropout feature_dropout subtract rsub true_divide threshold _threshold hardshrink "
    "softshrink tanhshrink logsigmoid log_sigmoid rrelu cos sin local_response_norm negative abs absolute".split()
)
REGRIDS = frozenset(
    "conv2d conv_transpose2d max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d lp_pool2d interpolate "
    "upsample".split()
)
JOINS = frozenset("cat concat concatenate".split())
# Constants in the shape of an argument.
CONSTANTS = frozenset(
    "zeros_like ones_like full_like empty_like rand_like randn_like new_zeros new_ones new_full new_empty "
    "new_tensor".split()
)
# What a softmax passes through on its way to the values.
KEEPS_SOFT = frozenset(
    "dropout to type type_as float half bfloat16 double contiguous clone view reshape expand masked_fill".split()
)
# What a gate passes through on its way to what it scales, if the other operands are constants or gates.
KEEPS_GATE = (
    MOVES
    | BY_FIRST
    | KEEPS_SOFT
    | frozenset(
        "add __add__ __radd__ sub __sub__ __rsub__ rsub mul __mul__ __rmul__ div __truediv__ __rtruediv__ neg __neg__ "
        "negative sum mean max min amax amin maximum minimum clamp where nan_to_num interpolate pow __pow__ square "
        "sqrt linear conv1d conv2d matmul __matmul__ bmm einsum".split()
    )
)

# Training behaviour that is an argument: function -> (position, name, value in evaluation).
EVALUATION: dict[Any, tuple[int, str, Any]] = {
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d, F.dropout3d), (2, "training", False)),
    **dict.fromkeys((F.alpha_dropout, F.feature_alpha_dropout), (2, "training", False)),
    **dict.fromkeys((torch.dropout, torch.alpha_dropout, torch.feature_dropout), (2, "train", False)),
    F.rrelu: (3, "training", False),
    F.scaled_dot_product_attention: (4, "dropout_p", 0.0),
}

# Where functions take `inplace` by position.
_INPLACE_POSITIONS: dict[Any, int] = {
    **dict.fromkeys((F.relu, F.relu6, F.silu, F.mish, F.hardswish, F.hardsigmoid, F.selu), 1),
    **dict.fromkeys((F.elu, F.celu, F.leaky_relu), 2),
    **dict.fromkeys((F.hardtanh, F.threshold, F.dropout, F.dropout2d), 3),
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


def overwritten(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """What a call overwrites (a tensor or several), or `None`."""
    if kwargs.get("out") is not None:
        return kwargs["out"]
    if writes_in_place(name):
        return args[0] if args else None
    position = _INPLACE_POSITIONS.get(func)
    asked = kwargs.get("inplace", position is not None and len(args) > position and args[position])
    return args[0] if asked is True and args else None


def writes_in_place(name: str) -> bool:
    """Whether a torch function of this name overwrites its first argument."""
    if name.startswith("__"):
        return name in _IN_PLACE_OPERATORS
    return name.endswith("_") and name not in ("requires_grad_", "retain_grad_")


def is_softmax_over_keys(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a call is a softmax along the last axis of something with more than two."""
    axis = args[1] if len(args) > 1 else kwargs.get("dim")
    return name == "softmax" and args[0].ndim > 2 and axis in (-1, args[0].ndim - 1)


def gate_of(name: str, args: Any, kwargs: Any, varies: Callable[[Any], bool]) -> int:
    """How surely what a call returns only scales others, by the call itself; see `Operation.gate`."""
    if name in ("pow", "__pow__"):
        exponent = args[1] if len(args) > 1 else kwargs.get("exponent")
        exponent = float(exponent) if isinstance(exponent, torch.Tensor) and exponent.numel() == 1 else exponent
        return 2 if isinstance(exponent, (int, float)) and exponent < 0 else 0
    if name in DIVISIONS and not varies(args[0]):
        return 2
    return GATES.get(rule_name(name), 0)


def rule_name(name: str) -> str:
    """Name under which rules know a function: `mul_` is `mul`, `__imul__` is `__mul__`."""
    if not writes_in_place(name) or name == "__setitem__":
        return name
    return f"__{name[3:]}" if name.startswith("__") else name.rstrip("_")


def without_overwriting(func: Any, name: str, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """The call that returns what this one writes over its first argument."""
    if writes_in_place(name):
        # `F.elu_` and `torch.selu_` have no method.
        plain = (getattr(room, rule_name(name), None) for room in (torch.Tensor, torch, F))
        return next(filter(None, plain)), args, kwargs
    position = _INPLACE_POSITIONS.get(func, len(args))
    args = (*args[:position], *([False] if len(args) > position else []), *args[position + 1 :])
    return func, args, {key: value for key, value in kwargs.items() if key != "inplace"}


def names_operands(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """`torch.mul(input=a, other=b)` as `torch.mul(a, b)`."""
    kwargs = dict(kwargs or {})
    for place, name in enumerate(("input", "other")):
        if len(args) == place and isinstance(kwargs.get(name), torch.Tensor):
            args = (*args, kwargs.pop(name))
    return args, kwargs


def attention_arguments(args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of `F.scaled_dot_product_attention` by name."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    return {**dict(zip(names, args, strict=False)), **kwargs}


class InEvaluation(TorchFunctionMode):
    """Functions that are called with training behaviour run as in evaluation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = in_evaluation(func, args, kwargs or {})
        return func(*args, **kwargs)


def in_evaluation(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with training behaviour switched off."""
    if func not in EVALUATION:
        return args, kwargs
    position, name, value = EVALUATION[func]
    if len(args) > position:
        return (*args[:position], value, *args[position + 1 :]), kwargs
    return args, {**kwargs, name: value}
