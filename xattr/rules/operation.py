"""The two nouns of this room: an observed operation, and a rule set that may run it with another backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from torch import Tensor

from .._nested import replace_tensors


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a torch function in a pass.

    Attributes:
        func: the function.
        args: positional arguments.
        kwargs: keyword arguments.
        varies: whether a value depends on the image and carries a gradient.
        gate: how surely a value only scales others: 2 for what is squashed or inverted (sigmoid, softmax, one over a
            norm), 1 for what is an activation of its own too (tanh), 0 for everything else.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    varies: Callable[[Any], bool]
    gate: Callable[[Any], int]

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument, whether it was given by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def run(self, *args: Any) -> Any:
        """The operation as it is, with the leading arguments replaced by `args`."""
        return self.func(*args, *self.args[len(args) :], **self.kwargs)

    def replaced(self, change: Callable[[Tensor], Tensor]) -> Any:
        """The operation on changed tensors."""
        return self.func(*replace_tensors(self.args, change), **replace_tensors(self.kwargs, change))


Rule: TypeAlias = Callable[[Operation], Any]


@dataclass(frozen=True)
class RuleSet:
    """Another backward for some operations.

    Attributes:
        name: the name under which methods take it.
        operations: name of a torch function to its rule. A rule that does not apply to a call returns
            `NotImplemented`.
        attention: factors on the gradients of queries and keys, and of values, where an attention is one call; 0 means
            constant. Attention written out is made of the operations above.
        ordinary: names of the torch functions whose ordinary gradient is as the set promises; `None` means all. A
            function that is neither here nor in `operations` is not covered.
    """

    name: str
    operations: Mapping[str, Rule] = field(default_factory=lambda: MappingProxyType({}))
    attention: tuple[float, float] = (1.0, 1.0)
    ordinary: frozenset[str] | None = None

    def __repr__(self) -> str:
        return f"RuleSet({self.name!r})"

    def covers(self, name: str) -> bool:
        """Whether the set says what a function's backward is."""
        return self.ordinary is None or name in self.ordinary


def scaled(tensor: Tensor, factor: float) -> Tensor:
    """An operand, with its gradient times `factor`."""
    if factor == 1 or not tensor.requires_grad:
        return tensor
    return tensor.detach() if factor == 0 else scale_gradient(tensor.view_as(tensor), factor)


def scale_gradient(made: Tensor, factor: float) -> Tensor:
    """A tensor that was just made, with the gradient that arrives there times `factor`."""
    if factor != 1 and made.requires_grad:
        made.register_hook(lambda gradient: gradient * factor)
    return made
