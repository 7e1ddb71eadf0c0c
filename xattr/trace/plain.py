"""A forward that only has to return something: in evaluation mode, without gradients, unobserved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .execution import PLAIN_EXECUTION
from .inputs import Inputs
from .modules import ModuleWatch, on_one_device


def plain_forward(forward_func: Callable[..., Any], inputs: Inputs, mode: TorchFunctionMode) -> Any:
    """What a model returns; nothing of it is written, and compiled parts run as Python, so that the mode sees them.

    Args:
        forward_func: a module or any callable.
        inputs: what it is called with.
        mode: what happens to its operations; it has to switch off their training behaviour, as `InEvaluation` does.
    """
    args, kwargs = inputs.arguments(inputs.tensors)
    with torch.no_grad(), PLAIN_EXECUTION, ModuleWatch(), mode:
        return on_one_device(forward_func)(*args, **kwargs)
