"""Finding the layers of a backbone by their structure, and how to pool what they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from .._nested import tensors_in
from ..trace import InputError
from ._structure import Call, blocks, calls, hidden, states, twice

Pool: TypeAlias = Literal["cls", "mean", "gap"] | Callable[[Tensor], Tensor] | None
Layers: TypeAlias = Literal["blocks", "stages"] | Sequence[str | nn.Module]


@dataclass(frozen=True)
class FeatureLayer:
    """Where a feature comes from, and how it becomes one vector for each example.

    Attributes:
        path: dotted path of the module in the backbone.
        pool: "identity", "cls", "mean", "gap" (`[B, C, h, w]`), "gap_last" (`[B, h, w, C]`), "gap_1d" (`[B, C, t]`),
            "state" or "callable".
        width: length of the vector.
        at_input: it is what the module takes, not what it returns.
        state: of a recurrent module, which layer's final state.
        item: which of the tensors that the module returned.
    """

    path: str
    pool: str
    width: int
    at_input: bool = False
    state: int = 0
    item: int = 0


def find_layers(
    backbone: nn.Module,
    example: Any,
    layers: Layers = "blocks",
    pool: Pool = None,
    include_embedding: bool = False,
) -> tuple[FeatureLayer, ...]:
    """The layers of a backbone in order of depth.

    "blocks" are the outermost modules of one's own (no `Sequential`, no stage) at places that differ in their numbers
    alone, such as `layers.0.blocks.1`, with most of the parameters; else the layers of a recurrent module by their
    final states; else what the linear maps of an MLP take from the layer before. "stages" are the last blocks of each
    resolution. The final norm of a backbone is not applied to any of them. Look at what was found: a network that is no
    chain of blocks (two towers, a U-Net) has no order of depth, and wants its layers named.

    Args:
        backbone: any module.
        example: inputs for one call: a tensor or a mapping of keyword arguments.
        layers: "blocks", "stages", or names or modules.
        pool: how a sequence or a feature map becomes a vector; `None` where the shape decides.
        include_embedding: whether what the first block takes is a layer, too.

    Raises:
        InputError: no layers were found, one did not run, or the shape does not say how to pool.
    """
    example = twice(example)
    found = calls(backbone, example)
    batch = len(next(tensors_in(example)))
    if not isinstance(layers, str):
        chosen = [(one, False) for one in _given(backbone, layers, found)]
    elif layers in ("blocks", "stages"):
        chosen = [(one, False) for one in blocks(found)]
        recurrent = [] if chosen else states(found)
        if recurrent:
            if pool is not None or include_embedding:
                raise InputError(
                    "the layers of a recurrent module are its final states: they take no pool=, no embedding."
                )
            return tuple(_state(one, i) for one, i in recurrent)
        chosen = chosen or hidden(found)
    else:
        raise InputError(f'layers={layers!r}; expected "blocks", "stages", or a list of modules or of their names.')
    if not chosen:
        raise InputError(
            f"no layers were found in {type(backbone).__name__}: no repeated blocks, no recurrent module, no chain of "
            f"linear maps that run once. Name them: layers=['path.of.module', ...]."
        )
    if include_embedding:
        chosen = [(chosen[0][0], True), *chosen]
    maps = [t.shape for one, at_input in chosen if not at_input for t in one.made[:1] if t.ndim == 4]
    axis = _channel_axis(maps, _sides(example))
    pooled = [_pooled(one, at_input, pool, batch, axis) for one, at_input in chosen]
    if layers == "stages":
        return tuple(_last_of_each_resolution([layer for layer, _ in pooled], [shape for _, shape in pooled]))
    return tuple(layer for layer, _ in pooled)


def example_of(backbone: nn.Module) -> Any:
    """Inputs of the size that a backbone says it takes, zeros; from its configuration, or from its first weights."""
    config: Any = getattr(backbone, "config", None)
    size: Any = getattr(config, "image_size", None) or getattr(backbone, "image_size", None)
    patch_embed: Any = getattr(backbone, "patch_embed", None)
    size = size or getattr(patch_embed, "img_size", None)
    pretrained: Any = getattr(backbone, "pretrained_cfg", None)
    if size is None and isinstance(pretrained, Mapping) and pretrained.get("input_size"):
        size = tuple(pretrained["input_size"][1:])
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            height, width = (size, size) if isinstance(size, int) else tuple(size or (224, 224))
            return torch.zeros(1, module.in_channels, height, width)
        if isinstance(module, nn.Linear):
            return torch.zeros(1, module.in_features)
        if isinstance(module, nn.RNNBase):
            return torch.zeros(1, 8, module.input_size)
        if isinstance(module, nn.Embedding):
            ids = torch.zeros(1, 8, dtype=torch.long)
            return {"input_ids": ids} if config is not None else ids
    raise InputError(f"nothing in {type(backbone).__name__} says what it takes; give example= inputs for one call.")


def _given(backbone: nn.Module, layers: Sequence[str | nn.Module], found: list[Call]) -> list[Call]:
    by_module = {one.module: one for one in found}
    paths = dict(backbone.named_modules())
    chosen: dict[int, Call] = {}
    for layer in layers:
        module = paths.get(layer) if isinstance(layer, str) else layer
        if module not in by_module:
            known = ", ".join(one.path for one in found if one.path)[:300]
            raise InputError(f"the layer {layer!r} did not run in {type(backbone).__name__}; what ran: {known} ...")
        one = by_module[module]
        if one.count > 1:
            raise InputError(f"the layer {one.path!r} runs {one.count} times in one forward; expected once.")
        chosen[id(one)] = one
    return [one for one in found if id(one) in chosen]


def _state(one: Call, layer: int) -> FeatureLayer:
    module: Any = one.module
    size = module.proj_size or module.hidden_size
    return FeatureLayer(one.path, "state", size * (2 if module.bidirectional else 1), state=layer)


def _last_of_each_resolution(chosen: list[FeatureLayer], shapes: list[torch.Size]) -> list[FeatureLayer]:
    axes = {"gap": 1, "gap_last": 3, "gap_1d": 1}
    cells = [
        shape.numel() // shape[0] // shape[axes.get(layer.pool, len(shape) - 1)] if len(shape) > 2 else 0
        for layer, shape in zip(chosen, shapes, strict=True)
    ]
    return [layer for i, layer in enumerate(chosen) if cells[i : i + 1] != cells[i + 1 : i + 2]]


def _sides(example: Any) -> float:
    """Height over width of the image in an example."""
    for tensor in tensors_in(example):
        if tensor.ndim == 4:
            return float(tensor.shape[2] / tensor.shape[3])
    return 1.0


def _pooled(one: Call, at_input: bool, pool: Pool, batch: int, axis: int | None) -> tuple[FeatureLayer, torch.Size]:
    """One layer, and the shape of what it makes."""
    where, item = f"the layer {one.path!r}", None if at_input else one.item(batch)
    tensor = one.taken if at_input else None if item is None else one.made[item]
    item = item or 0
    if tensor is None:
        raise InputError(f"{where} {'took no tensor by position' if at_input else 'returned no tensor'}.")
    shape, kind = list(tensor.shape), None
    if shape[0] != batch:
        raise InputError(f"{where} made {shape} for {batch} examples, which are not its first axis. Name other layers.")
    if callable(pool):
        vector = pool(tensor)
        if vector.ndim != 2 or len(vector) != batch:
            raise InputError(f"pool made {list(vector.shape)} of {shape} ({where}); expected [B, width].")
        return FeatureLayer(one.path, "callable", vector.shape[1], at_input, item=item), tensor.shape
    convolves = any(isinstance(part, nn.modules.conv._ConvNd) for part in one.module.modules())
    if tensor.ndim == 2:
        kind, width = "identity", shape[1]
    elif tensor.ndim == 3 and convolves and pool in (None, "gap", "mean") and not _maps_last_axis(one.module):
        kind, width = "gap_1d", shape[1]
    elif tensor.ndim == 3 and pool in ("cls", "mean"):
        kind, width = str(pool), shape[2]
    elif tensor.ndim == 3:
        raise InputError(
            f"{where} returned {shape}, a sequence as a rule, and pool={pool!r} does not say how to make one vector of "
            f'it; expected pool="cls" (the first token), "mean" (of all tokens), or a callable.'
        )
    elif tensor.ndim == 4 and pool in (None, "gap"):
        own = None if convolves == _maps_last_axis(one.module) else 1 if convolves else 3
        axis = own or axis
        if axis is None:
            raise InputError(f"{where} returned {shape}, in which channels cannot be told; give a callable pool=.")
        kind, width = "gap" if axis == 1 else "gap_last", shape[axis]
    if kind is None:
        raise InputError(f"{where} returned {shape}, which pool={pool!r} does not fit; give a callable.")
    return FeatureLayer(one.path, kind, width, at_input, item=item), tensor.shape


def _maps_last_axis(module: nn.Module) -> bool:
    return any(isinstance(part, (nn.Linear, nn.LayerNorm)) for part in module.modules())


def _channel_axis(shapes: Sequence[Sequence[int]], sides: float) -> int | None:
    """1 or 3: whichever leaves cells in the proportion of the image; `None` where that does not decide."""
    fits = lambda height, width: abs(height - width * sides) <= max(1.0, sides) * (height > 1)
    decided = set()
    for _, a, b, c in shapes:
        first, last = fits(b, c), fits(a, b)
        if first != last:
            decided.add(1 if first else 3)
    return decided.pop() if len(decided) == 1 else None
