"""Reading the features of some layers while a backbone runs, with nothing left behind."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._nested import tensors_in
from ..trace import InputError
from ..trace.modules import uncompiled

if TYPE_CHECKING:
    from .layers import FeatureLayer


class _Enough(BaseException):
    """Ends a forward; no handler of the model's own catches it."""


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
        InputError: a layer did not run, or what it returned is not one vector for each example.
    """
    backbone = uncompiled(backbone)  # hooks do not run in a compiled model
    mask, batch = _attention_mask(backbone, inputs), _batch(inputs)
    found: dict[int, Tensor] = {}
    thread = threading.get_ident()
    trained = torch.is_grad_enabled() and any(p.requires_grad for p in backbone.parameters())

    def reader(i: int, layer: FeatureLayer) -> Callable[..., None]:
        def read(module: nn.Module, args: Any, *output: Any) -> None:
            if threading.get_ident() == thread:
                value = args if layer.at_input else output[0]
                found[i] = vector = _vector(value, layer, mask, pool)
                if len(vector) != batch or vector.ndim != 2:
                    raise InputError(
                        f"the layer {layer.path!r} gave {list(vector.shape)} for {batch} examples; expected one vector "
                        f"for each. Name other layers, or give a callable pool=."
                    )
                if trained and not vector.requires_grad:
                    raise InputError(
                        f"no gradient leads to the layer {layer.path!r}: it runs under reentrant checkpointing or "
                        f"no_grad. Use checkpoint(..., use_reentrant=False), or freeze=True."
                    )
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
        raise InputError(f"the layers {missing} did not run in this forward.")
    return [found[i] for i in range(len(layers))]


def call(backbone: nn.Module, inputs: Any) -> Any:
    """A call with a tensor, a tuple or list of positional, or a mapping of keyword arguments."""
    if isinstance(inputs, Mapping):
        return backbone(**inputs)
    return backbone(*inputs) if isinstance(inputs, (tuple, list)) else backbone(inputs)


def _batch(inputs: Any) -> int:
    first = next(tensors_in(inputs), None)
    if first is None or not first.ndim:
        raise InputError("the backbone's inputs hold no tensor with an axis of examples.")
    return len(first)


def _attention_mask(backbone: nn.Module, inputs: Any) -> Tensor | None:
    """The argument `attention_mask`, given by name or by position."""
    if isinstance(inputs, Mapping):
        return inputs.get("attention_mask")
    if isinstance(inputs, (tuple, list)) and len(inputs) > 1:
        try:
            return inspect.signature(backbone.forward).bind(*inputs).arguments.get("attention_mask")
        except TypeError:
            return None
    return None


def _vector(value: Any, layer: FeatureLayer, mask: Any, pool: Callable[[Tensor], Tensor] | None) -> Tensor:
    """One vector for each example, in memory of its own: what comes later may overwrite a layer's output."""
    if layer.pool == "state":
        return _final_state(value, layer)
    tensor = list(tensors_in(value))[layer.item]
    if layer.pool == "callable":
        assert pool is not None
        return pool(tensor).clone()
    if layer.pool == "cls":
        return tensor[:, 0].clone()
    wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))  # sums in half precision overflow
    if layer.pool == "mean":
        if mask is None or tuple(mask.shape) != tuple(tensor.shape[:2]):
            return wide.mean(1).to(tensor.dtype)
        weight = mask[..., None].to(wide.dtype)
        return ((wide * weight).sum(1) / weight.sum(1).clamp_min(1)).to(tensor.dtype)
    axes = {"gap": (2, 3), "gap_last": (1, 2), "gap_1d": (2,)}.get(layer.pool)
    return tensor.clone() if axes is None else wide.mean(axes).to(tensor.dtype)


def _final_state(value: Any, layer: FeatureLayer) -> Tensor:
    """The final hidden state of one layer of a recurrent module, both directions side by side."""
    hidden = value[1][0] if isinstance(value[1], tuple) else value[1]
    directions = layer.width // hidden.shape[-1]
    states = hidden[layer.state * directions : (layer.state + 1) * directions]
    return torch.cat(list(states), -1)
