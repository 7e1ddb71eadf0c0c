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
        gate: how surely it only scales others; see `Operation.gate`.
        place: which cell of a grid its entries come from, on the CPU; see `places`.
        origins: rows and columns that its entries come from; see `liveness`.
        owner: number of the pass.
        moved: how often other cells had been written into its memory; its place holds for this count.
        has_gradient: it had a gradient function when it was marked. One that gets its gradient later was made inside a
            custom autograd function.
    """

    ancestors: int = 0
    open: frozenset[int] = frozenset()
    soft: bool = False
    gate: int = 0
    place: Tensor | None = None
    origins: tuple[Any, ...] = ()
    owner: int = 0
    has_gradient: bool = False
    moved: int = 0

    @property
    def own(self) -> int:
        """The bit of the tensor itself: the newest among its ancestors."""
        return 1 << (self.ancestors.bit_length() - 1) if self.ancestors else 0


class Marks:
    """The marks of one pass. They hang on the tensors that the pass makes."""

    def __init__(self) -> None:
        self._owner = next(_PASSES)
        self._made = 0
        self._moved: dict[int, int] = {}
        self.leaves: list[Tensor] = []

    def of(self, value: Any) -> Mark | None:
        """The mark of a tensor, if this pass made it."""
        mark: Mark | None = getattr(value, "_xattr_mark", None)
        return mark if mark is not None and mark.owner == self._owner else None

    def put(self, tensor: Tensor, mark: Mark) -> None:
        """Leave a mark on a tensor that was made in the pass."""
        mark.owner, mark.has_gradient, mark.moved = self._owner, tensor.grad_fn is not None, self._moves(tensor)
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

    def origins(self, value: Any) -> tuple[Any, ...]:
        """Rows and columns that the entries of a tensor come from."""
        mark = self.of(value)
        return mark.origins if mark is not None else ()

    def place(self, value: Any) -> Tensor | None:
        """Which cell of a grid the entries of a tensor come from."""
        mark = self.of(value)
        return mark.place if mark is not None and mark.moved == self._moves(value) else None

    @property
    def newest(self) -> int:
        """The bit of the tensor that was made last."""
        return 1 << self._made

    def cut(self, tensor: Tensor, leaf: Tensor) -> None:
        """A tensor of the pass now comes from a new leaf."""
        self.leaves.append(leaf)
        for one in filter(None, (self.of(tensor), self.of(tensor._base) if tensor._is_view() else None)):
            one.has_gradient = True

    def move(self, tensor: Tensor) -> None:
        """Other cells are written into the memory of a tensor: what else shows it does not know its places any more."""
        memory = tensor.untyped_storage().data_ptr()
        self._moved[memory] = self._moved.get(memory, 0) + 1

    def _moves(self, tensor: Tensor) -> int:
        return self._moved.get(tensor.untyped_storage().data_ptr(), 0) if self._moved else 0

    def gate(self, value: Any) -> int:
        """How surely a value only scales others."""
        mark = self.of(value)
        return mark.gate if mark is not None else 0
