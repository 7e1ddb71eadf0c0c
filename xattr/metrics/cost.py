"""Cost by counting: the same number on every machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ..trace.memory import peak_bytes

__all__ = ["cost_in_forwards", "count_flops", "peak_bytes"]


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
