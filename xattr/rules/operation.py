"""The two nouns of this room: an observed operation, and a rule set that may run it with another backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a torch function in a pass.

    Attributes:
        func: the function, with its arguments.
        args: positional arguments.
        kwargs: keyword arguments.
        varies: whether a value depends on the image (constants of the model do not).
        is_gate: whether a value is a squashed or inverted quantity that only scales others (sigmoid, tanh, erf, rsqrt).
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    varies: Callable[[Any], bool]
    is_gate: Callable[[Any], bool]

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument, whether it was given by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def run(self, *args: Any) -> Any:
        """The operation as it is, with the leading arguments replaced by `args`."""
        return self.func(*args, *self.args[len(args) :], **self.kwargs)


Rule: TypeAlias = Callable[[Operation], Any]


@dataclass(frozen=True)
class RuleSet:
    """Another backward for some operations.

    Attributes:
        name: the name under which methods take it.
        operations: name of a torch function to its rule; what is missing keeps its ordinary gradient.
        attention: factors on the gradient of the attention map and of the values, 0 meaning constant.
    """

    name: str
    operations: Mapping[str, Rule] = field(default_factory=lambda: MappingProxyType({}))
    attention: tuple[float, float] = (1.0, 1.0)


def scaled(tensor: Tensor, factor: float) -> Tensor:
    """The tensor itself, with its gradient times `factor`."""
    if factor == 1:
        return tensor
    if factor == 0:
        return tensor.detach()
    return tensor.detach() + factor * (tensor - tensor.detach())
