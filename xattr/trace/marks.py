"""What a pass knows of each of its tensors."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from torch import Tensor

_PASSES = itertools.count(1)


@dataclass(slots=True)
class Mark:
    """Knowledge about one tensor of one pass.

    Attributes:
        ancestors: bit set of the tensors it was computed from, itself included; 0 for a constant.
        open: the attentions it depends on that have not met their residual sum.
        soft: it is a softmax that has not met its values.
        gate: it is a squashed or inverted quantity (sigmoid, rsqrt, ...).
        place: which cell of a grid its entries come from, on the CPU; see `places`.
        owner: number of the pass.
        has_gradient: it had a gradient function when it was marked. One that gets its gradient later was made inside a
            custom autograd function.
    """

    ancestors: int = 0
    open: frozenset[int] = frozenset()
    soft: bool = False
    gate: bool = False
    place: Tensor | None = None
    owner: int = 0
    has_gradient: bool = False

    @property
    def own(self) -> int:
        """The bit of the tensor itself: the newest among its ancestors."""
        return 1 << (self.ancestors.bit_length() - 1) if self.ancestors else 0


class Marks:
    """The marks of one pass. They hang on the tensors that the pass makes."""

    def __init__(self) -> None:
        self._owner = next(_PASSES)
        self._made = 0

    def of(self, value: Any) -> Mark | None:
        """The mark of a tensor, if this pass made it."""
        mark: Mark | None = getattr(value, "_xattr_mark", None)
        return mark if mark is not None and mark.owner == self._owner else None

    def put(self, tensor: Tensor, mark: Mark) -> None:
        """Leave a mark on a tensor that was made in the pass."""
        mark.owner, mark.has_gradient = self._owner, tensor.grad_fn is not None
        tensor._xattr_mark = mark  # type: ignore[attr-defined]

    def put_new(self, tensor: Tensor, like: Mark | None = None, place: Tensor | None = None) -> None:
        """Leave a mark on a tensor that depends on the image: a bit of its own, and the rest as in `like`."""
        self._made += 1
        like = like or Mark()
        self.put(tensor, Mark(like.ancestors | 1 << self._made, like.open, like.soft, like.gate, place))

    def ancestors(self, value: Any) -> int:
        """Bit set of the tensors that a value was computed from; 0 for constants and for what is no tensor."""
        mark = self.of(value)
        return mark.ancestors if mark is not None else 0

    def own(self, value: Any) -> int:
        """The bit of the tensor itself."""
        mark = self.of(value)
        return mark.own if mark is not None else 0

    def varies(self, value: Any) -> bool:
        """Whether a value depends on the image."""
        return self.ancestors(value) != 0

    def place(self, value: Any) -> Tensor | None:
        """Which cell of a grid the entries of a tensor come from."""
        mark = self.of(value)
        return mark.place if mark is not None else None

    def is_gate(self, value: Any) -> bool:
        """Whether a value is a squashed or inverted quantity."""
        mark = self.of(value)
        return mark is not None and mark.gate
