"""Finding the layers of a backbone by their structure, and how to pool what they return."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from .._nested import tensors_in
from ..trace import InputError
from .collect import evaluated

Pool: TypeAlias = Literal["cls", "mean", "gap"] | Callable[[Tensor], Tensor] | None
Layers: TypeAlias = Literal["blocks", "stages"] | Sequence[str | nn.Module]


@dataclass(frozen=True)
class FeatureLayer:
    """Where a feature comes from, and how it becomes one vector for each example.

    Attributes:
        path: dotted path of the module in the backbone.
        pool: "identity", "cls", "mean", "gap" (`[B, C, h, w]`), "gap_last" (`[B, h, w, C]`), "state" or "callable".
        width: length of the vector.
        at_input: it is what the module takes, not what it returns.
        state: of a recurrent module, which layer's final state.
    """

    path: str
    pool: str
    width: int
    at_input: bool = False
    state: int = 0


@dataclass
class _Call:
    path: str
    module: nn.Module
    taken: Tensor | None
    made: Tensor | None
    count: int = 1


def find_layers(
    backbone: nn.Module,
    example: Any,
    layers: Layers = "blocks",
    pool: Pool = None,
    include_embedding: bool = False,
) -> tuple[FeatureLayer, ...]:
    """The layers of a backbone in order of depth.

    "blocks" are the largest set of modules of one's own (no `Sequential`) at places that differ in their numbers alone,
    such as `layers.0.blocks.1`, if they hold most of the parameters; else the layers of a recurrent module by their
    final states; else what the linear maps of an MLP take from the layer before. "stages" are the last blocks of each
    resolution. The final norm of a backbone is not applied to any of them.

    Args:
        backbone: any module.
        example: inputs for one call: a tensor or a mapping of keyword arguments.
        layers: "blocks", "stages", or names or modules.
        pool: how a sequence or a feature map becomes a vector; `None` where the shape decides.
        include_embedding: whether what the first block takes is a layer, too.

    Raises:
        InputError: no layers were found, one did not run, or the shape does not say how to pool.
    """
    calls = _calls(backbone, example)
    if not isinstance(layers, str):
        chosen = [(call, False) for call in _given(backbone, layers, calls)]
        states: list[tuple[_Call, int]] = []
    elif layers in ("blocks", "stages"):
        blocks = _blocks(calls)
        states = [] if blocks else _states(calls)
        chosen = [(call, False) for call in blocks] or ([] if states else _hidden(calls))
        if layers == "stages":
            chosen = _last_of_each_resolution(chosen, _sides(example))
    else:
        raise InputError(f'layers={layers!r}; expected "blocks", "stages", or a list of modules or of their names.')
    if states:
        return tuple(_state(call, i) for call, i in states)
    if not chosen:
        raise InputError(
            f"no layers were found in {type(backbone).__name__}: no repeated blocks, no recurrent module, no chain of "
            f"linear maps. Name them: layers=['path.of.module', ...]."
        )
    if include_embedding:
        chosen = [(chosen[0][0], True), *chosen]
    return tuple(_pooled_layers(chosen, pool, _sides(example)))


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


def call(backbone: nn.Module, inputs: Any) -> Any:
    """A call with a tensor, a tuple of positional, or a mapping of keyword arguments."""
    if isinstance(inputs, Mapping):
        return backbone(**inputs)
    return backbone(*inputs) if isinstance(inputs, tuple) else backbone(inputs)


def _calls(backbone: nn.Module, example: Any) -> list[_Call]:
    """What ran, in the order of its end, each module once."""
    found: dict[nn.Module, _Call] = {}

    def note(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if module in found:
                found[module].count += 1
                return
            taken, made = (next(iter(tensors_in(value)), None) for value in (args, output))
            found[module] = _Call(path, module, taken, made)

        return hook

    handles = [module.register_forward_hook(note(path)) for path, module in backbone.named_modules()]
    try:
        with torch.no_grad(), evaluated(backbone):
            call(backbone, example)
    except Exception as error:
        raise InputError(
            f"{type(backbone).__name__} does not take the example {_shapes(example)}: {error}. Give example= inputs as "
            f"it takes them, a tensor or a mapping of keyword arguments."
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return list(found.values())


def _shapes(example: Any) -> str:
    return ", ".join(str(list(t.shape)) for t in tensors_in(dict(example) if isinstance(example, Mapping) else example))


def _given(backbone: nn.Module, layers: Sequence[str | nn.Module], calls: list[_Call]) -> list[_Call]:
    by_module = {call.module: call for call in calls}
    chosen = []
    for layer in layers:
        module = dict(backbone.named_modules()).get(layer) if isinstance(layer, str) else layer
        if module not in by_module:
            known = ", ".join(call.path for call in calls if call.path)[:300]
            raise InputError(f"the layer {layer!r} did not run in {type(backbone).__name__}; what ran: {known} ...")
        chosen.append(by_module[module])
    order = {id(call): i for i, call in enumerate(calls)}
    return sorted(chosen, key=lambda call: order[id(call)])


def _blocks(calls: list[_Call]) -> list[_Call]:
    """The largest group of modules whose paths differ in their numbers alone, among those with most parameters."""
    groups: dict[str, list[_Call]] = {}
    for one in calls:
        own = not isinstance(one.module, (nn.Sequential, nn.ModuleList, nn.RNNBase)) and any(one.module.children())
        if own and one.count == 1 and re.search(r"\d", one.path) and one.made is not None:
            groups.setdefault(re.sub(r"\d+", "#", one.path), []).append(one)
    sizes = {
        pattern: sum(p.numel() for one in group for p in one.module.parameters())
        for pattern, group in groups.items()
        if len(group) > 1 or len(groups) == 1
    }
    if not sizes:
        # A backbone of one block has no group of several: the outermost one is it.
        alone = [group[0] for pattern, group in groups.items() if pattern.endswith("#")]
        return alone[-1:]
    most = max(sizes.values())
    best = max(
        (pattern for pattern, size in sizes.items() if size >= 0.8 * most),
        key=lambda pattern: (len(groups[pattern]), sizes[pattern]),
    )
    return groups[best]


def _states(calls: list[_Call]) -> list[tuple[_Call, int]]:
    return [(one, i) for one in calls if isinstance(one.module, nn.RNNBase) for i in range(one.module.num_layers)]


def _state(one: _Call, layer: int) -> FeatureLayer:
    module: Any = one.module
    size = module.proj_size or module.hidden_size
    return FeatureLayer(one.path, "state", size * (2 if module.bidirectional else 1), state=layer)


def _hidden(calls: list[_Call]) -> list[tuple[_Call, bool]]:
    """What each linear map but the first takes, and what the network returns if that is no linear map's."""
    if any(isinstance(one.module, nn.modules.conv._ConvNd) for one in calls):
        return []
    linear = [one for one in calls if isinstance(one.module, nn.Linear) and one.count == 1]
    chosen = [(one, True) for one in linear[1:]]
    leaves = [one for one in calls if not any(one.module.children())]
    if linear and leaves and leaves[-1] is not linear[-1]:
        chosen.append((leaves[-1], False))
    return chosen


def _last_of_each_resolution(chosen: list[tuple[_Call, bool]], sides: float) -> list[tuple[_Call, bool]]:
    shapes = [one.made.shape for one, _ in chosen if one.made is not None]
    axis = _channel_axis([shape for shape in shapes if len(shape) == 4], sides) or 1
    cells = [
        shape.numel() // shape[0] // shape[axis] if len(shape) == 4 else shape[1] * (len(shape) == 3)
        for shape in shapes
    ]
    return [pair for i, pair in enumerate(chosen) if cells[i : i + 1] != cells[i + 1 : i + 2]]


def _sides(example: Any) -> float:
    """Height over width of the image in an example."""
    for tensor in tensors_in(dict(example) if isinstance(example, Mapping) else example):
        if tensor.ndim == 4:
            return float(tensor.shape[2] / tensor.shape[3])
    return 1.0


def _pooled_layers(chosen: list[tuple[_Call, bool]], pool: Pool, sides: float) -> list[FeatureLayer]:
    tensors = [one.taken if at_input else one.made for one, at_input in chosen]
    maps = [tensor.shape for tensor in tensors if tensor is not None and tensor.ndim == 4]
    axis = _channel_axis(maps, sides)
    found = []
    for (one, at_input), tensor in zip(chosen, tensors, strict=True):
        where = f"the layer {one.path!r}"
        if tensor is None:
            raise InputError(f"{where} returned no tensor.")
        if callable(pool):
            vector = pool(tensor)
            if vector.ndim != 2 or len(vector) != len(tensor):
                raise InputError(
                    f"pool made {list(vector.shape)} of {where} {list(tensor.shape)}; expected [B, width]."
                )
            found.append(FeatureLayer(one.path, "callable", vector.shape[1], at_input))
            continue
        shape = list(tensor.shape)
        if tensor.ndim == 2:
            found.append(FeatureLayer(one.path, "identity", shape[1], at_input))
        elif tensor.ndim == 3:
            if pool not in ("cls", "mean"):
                raise InputError(
                    f"{where} returned {shape}, a sequence as a rule, and pool={pool!r} does not say how to make one "
                    f'vector of it; expected pool="cls" (the first token), "mean" (of all tokens), or a callable.'
                )
            found.append(FeatureLayer(one.path, pool, shape[2], at_input))
        elif tensor.ndim == 4 and pool in (None, "gap"):
            if axis is None:
                raise InputError(f"{where} returned {shape}, in which channels cannot be told; give a callable pool=.")
            found.append(FeatureLayer(one.path, "gap" if axis == 1 else "gap_last", shape[axis], at_input))
        else:
            raise InputError(f"{where} returned {shape}, which pool={pool!r} does not fit; give a callable.")
    return found


def _channel_axis(shapes: Sequence[Sequence[int]], sides: float) -> int | None:
    """1 or 3: whichever leaves cells in the proportion of the image; `None` where that does not decide."""
    fits = lambda height, width: abs(height - width * sides) <= max(1.0, sides) * (height > 1)
    decided = set()
    for _, a, b, c in shapes:
        first, last = fits(b, c), fits(a, b)
        if first != last:
            decided.add(1 if first else 3)
    return decided.pop() if len(decided) == 1 else None
