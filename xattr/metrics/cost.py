"""Cost by counting: the same number on every machine."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode


def count_flops(function: Callable[[], Any]) -> int:
    """Floating-point operations of matrix products, convolutions and attention, 2 for each multiply-add.

    Attention is counted unfused, because torch's counter does not know the fused kernels of every device.
    """
    counter = FlopCounterMode(display=False)
    # Its hooks on modules, which sort the count by module, refuse a gradient with respect to a leaf.
    counter.mod_tracker = _NoModules()  # type: ignore[assignment]
    with sdpa_kernel(SDPBackend.MATH), counter:
        function()
    return int(counter.get_total_flops())


class _NoModules(contextlib.nullcontext[None]):
    parents = frozenset({"Global"})


def cost_in_forwards(attribute: Callable[[Tensor], Any], model: Callable[[Tensor], Any], image: Tensor) -> float:
    """How many forward passes an explanation costs, by FLOPs.

    Args:
        attribute: makes the explanation of one batch.
        model: the model.
        image: a batch `[B, C, H, W]`.

    Returns:
        FLOPs of the explanation over those of one forward; 0 for what never runs the model.
    """
    with torch.no_grad():
        forward = count_flops(lambda: model(image))
    return count_flops(lambda: attribute(image)) / forward


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
