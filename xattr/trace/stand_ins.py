"""What operations work on in place of the user's tensors, so that nothing of the user's is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .errors import UnseenError
from .marks import Mark, Marks


class StandIns:
    """Parameters detached, inference tensors cloned, private copies of what the model writes to.

    Args:
        marks: the marks of the pass; what has none is older than the pass.
        roots: leaves that stand for the inputs.
        where: names the module that is running.
    """

    def __init__(self, marks: Marks, roots: tuple[Tensor, ...], where: Callable[[], str]) -> None:
        self._marks = marks
        self._roots = roots
        self._where = where
        # The originals are kept too, so that their ids are not given to others.
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        # Other names of older tensors, by `.data` and `.detach()`: what they name.
        self._aliases: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """The tensor to work on.

        Raises:
            UnseenError: it was made from the image by something that was not observed.
        """
        mark = self._marks.of(tensor)
        if mark is not None:
            if tensor.grad_fn is not None and not mark.has_gradient:
                shown = self._marks.of(tensor._base) if tensor._is_view() else None
                if shown is None or not shown.has_gradient:
                    raise self._unseen(tensor)
            return tensor
        if id(tensor) in self._copies:
            return self._copies[id(tensor)][1]
        if self._copies and id(self._named(tensor)) in self._copies:
            raise self._aliased(tensor)  # it still holds what was there before the write
        if tensor.requires_grad:
            if not tensor.is_leaf and _reaches(tensor, [*self._roots, *self._marks.leaves]):
                raise self._unseen(tensor)
            tensor = tensor.detach()
        return tensor.clone() if tensor.is_inference() else tensor

    def own(self, tensor: Tensor) -> None:
        """Before an in-place write: make a private copy of what is older than the pass.

        Raises:
            UnseenError: it is a view or another name, so that a copy would not reach the tensor itself.
        """
        if self._marks.of(tensor) is not None:
            return
        if self._named(tensor) is not tensor and self._marks.of(self._named(tensor)) is None:
            raise self._aliased(tensor)
        if id(tensor) not in self._copies:
            copy = tensor.detach().clone()
            self._marks.put(copy, Mark())
            self._copies[id(tensor)] = (tensor, copy)

    def are_shared(self, name: str, result: Tensor, sources: list[Tensor]) -> bool:
        """Whether a result shares its memory with a tensor that is older than the pass."""
        if self._marks.of(result) is None and any(result is source for source in sources):
            return True
        if name in ("data", "detach") and self._marks.of(sources[0]) is None:
            self._aliases[id(result)] = (result, self._named(sources[0]))
            return True
        base = result._base if result._is_view() else None
        if base is None or self._marks.of(base) is not None:
            return False
        return any(base is source or (source._is_view() and base is source._base) for source in sources)

    def _named(self, tensor: Tensor) -> Tensor:
        """The tensor that a view or an alias shows."""
        if id(tensor) in self._aliases:
            return self._aliases[id(tensor)][1]
        return tensor._base if tensor._is_view() and tensor._base is not None else tensor

    def _aliased(self, tensor: Tensor) -> UnseenError:
        return UnseenError(
            f"{self._where()} writes into a tensor {list(tensor.shape)} older than this pass, which it also reaches by "
            f"a view or by .data; observing it would change the model, or miss the write."
        )

    def _unseen(self, tensor: Tensor) -> UnseenError:
        if "BackwardHook" in type(tensor.grad_fn).__name__:
            return UnseenError(
                f"{self._where()} has a full backward hook, behind which operations cannot be observed; remove it for "
                f"the explanation."
            )
        return UnseenError(
            f"{self._where()} made a tensor {list(tensor.shape)} from the image by an operation that cannot be "
            f"observed (it ends in {type(tensor.grad_fn).__name__}): a custom autograd function, a scripted module, or "
            f"a forward in another thread. Explain the original, unscripted model."
        )


def graph_behind(tensor: Tensor) -> set[Any]:
    """All nodes of the autograd graph that a tensor comes from."""
    stack: list[Any] = [tensor.grad_fn]
    seen: set[Any] = {None}
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            # What is overwritten by a copy gets no gradient.
            first = 1 if node.name().endswith("CopyBackwards") else 0
            stack.extend(parent for parent, _ in node.next_functions[first:])
    return seen


def _reaches(tensor: Tensor, roots: list[Tensor]) -> bool:
    """Whether the autograd graph of a tensor leads back to one of the roots."""
    leaves = [getattr(node, "variable", None) for node in graph_behind(tensor)]
    return any(leaf is root for leaf in leaves for root in roots)
