"""Reading the features of some layers while a backbone runs, with nothing left behind."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._nested import tensors_in

if TYPE_CHECKING:
    from .layers import FeatureLayer


class _Enough(BaseException):
    """Ends a forward; no handler of the model's own catches it."""


@contextlib.contextmanager
def evaluated(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; every part gets its own mode back."""
    modes = {part: part.training for part in module.modules()}
    try:
        for part in modes:
            part.training = False
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def collect(
    backbone: nn.Module,
    layers: Sequence[FeatureLayer],
    inputs: Any,
    pool: Callable[[Tensor], Tensor] | None = None,
    enough: Callable[[list[Tensor]], bool] | None = None,
) -> list[Tensor]:
    """The pooled features of some layers, `[B, d_i]` each, in one forward.

    Args:
        backbone: the module; its hooks are as before afterwards, also after an exception.
        layers: what to read.
        inputs: a tensor, a tuple of positional or a mapping of keyword arguments.
        pool: for layers that are pooled by a callable.
        enough: asked behind each layer, with the features so far; where it says yes, the rest of the backbone does not
            run, and the features so far are returned.

    Raises:
        RuntimeError: a layer did not run.
    """
    from .layers import call

    backbone = getattr(backbone, "_orig_mod", backbone)  # hooks do not run in a compiled model
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    found: dict[int, Tensor] = {}
    thread = threading.get_ident()

    def reader(i: int, layer: FeatureLayer) -> Callable[..., None]:
        def read(module: nn.Module, args: Any, *output: Any) -> None:
            if threading.get_ident() == thread:
                value = args if layer.at_input else output[0]
                found[i] = _vector(value, layer, mask, pool)
                so_far = [found[k] for k in range(i + 1) if k in found]
                if enough is not None and len(so_far) == i + 1 and enough(so_far):
                    raise _Enough

        return read

    handles = []
    try:
        for i, layer in enumerate(layers):
            module = backbone.get_submodule(layer.path)
            read = reader(i, layer)
            hook = module.register_forward_pre_hook if layer.at_input else module.register_forward_hook
            handles.append(hook(read))
        call(backbone, inputs)
    except _Enough:
        return [found[i] for i in range(len(found))]
    finally:
        for handle in handles:
            handle.remove()
    missing = [layer.path for i, layer in enumerate(layers) if i not in found]
    if missing:
        raise RuntimeError(f"the layers {missing} did not run in this forward.")
    return [found[i] for i in range(len(layers))]


def _vector(value: Any, layer: FeatureLayer, mask: Any, pool: Callable[[Tensor], Tensor] | None) -> Tensor:
    if layer.pool == "state":
        return _final_state(value, layer)
    tensor = next(iter(tensors_in(value)))
    if layer.pool == "callable":
        assert pool is not None
        return pool(tensor)
    if layer.pool == "cls":
        return tensor[:, 0]
    if layer.pool == "mean":
        if mask is None or tuple(mask.shape) != tuple(tensor.shape[:2]):
            return tensor.mean(1)
        weight = mask[..., None].to(tensor.dtype)
        return (tensor * weight).sum(1) / weight.sum(1)
    if layer.pool in ("gap", "gap_last"):
        return tensor.mean((2, 3) if layer.pool == "gap" else (1, 2))
    return tensor


def _final_state(value: Any, layer: FeatureLayer) -> Tensor:
    """The final hidden state of one layer of a recurrent module, both directions side by side."""
    hidden = value[1][0] if isinstance(value[1], tuple) else value[1]
    directions = layer.width // hidden.shape[-1]
    states = hidden[layer.state * directions : (layer.state + 1) * directions]
    return torch.cat(list(states), -1)
