"""Memory by counting: what tensors hold at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Alive(TorchDispatchMode):
    """The most bytes that are held at once by tensors made while it is entered, and at least as large as asked."""

    def __init__(self, at_least: int) -> None:
        super().__init__()
        self._at_least, self._alive, self._now = at_least, {}, 0  # type: ignore[var-annotated]
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        # A view of a weight makes nothing: what an argument lies in is counted already, or was there before.
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in tree_leaves(out):
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage.nbytes() >= self._at_least and storage._cdata not in given | self._alive.keys():
                self._alive[storage._cdata] = storage.nbytes()
                self._now += storage.nbytes()
                weakref.finalize(storage, self._gone, storage._cdata)
        self.most = max(self.most, self._now)
        return out

    def _gone(self, key: int) -> None:
        self._now -= self._alive.pop(key, 0)


def peak_bytes(function: Callable[[], Any], at_least: int = 0) -> int:
    """The most bytes that tensors made by a function hold at once, counted, not measured.

    Args:
        function: is called once.
        at_least: smaller tensors do not count.
    """
    with _Alive(at_least) as alive:
        function()
    return alive.most
