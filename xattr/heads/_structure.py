"""Which modules of a backbone are its blocks, from what ran and in which order."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._nested import replace_tensors, tensors_in
from ..trace import InputError
from ..trace.modules import in_evaluation_mode
from .collect import call

_MOST = 0.8  # of the parameters that the largest group holds
_INSIDE = 0.5  # of the parameters of a group of stages


@dataclass
class Call:
    """A module that ran.

    Attributes:
        path: dotted path.
        module: the module.
        taken: the first tensor that it took by position.
        made: the tensors that it returned.
        count: how often it ran.
    """

    path: str
    module: nn.Module
    taken: Tensor | None
    made: list[Tensor]
    count: int = 1

    def item(self, batch: int) -> int | None:
        """Which of the tensors returned is the feature: one like what was taken, else the first with all examples."""
        if self.taken is not None:
            for i, tensor in enumerate(self.made):
                if tensor.shape == self.taken.shape and tensor.is_floating_point():
                    return i
        fitting = (i for i, t in enumerate(self.made) if t.is_floating_point() and t.ndim > 1 and len(t) == batch)
        return next(fitting, 0 if self.made else None)


def calls(backbone: nn.Module, example: Any) -> list[Call]:
    """What ran, in the order of its end, each module once.

    Raises:
        InputError: the backbone does not take the example.
    """
    found: dict[nn.Module, Call] = {}

    def note(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if module in found:
                found[module].count += 1
            else:
                found[module] = Call(path, module, next(tensors_in(args), None), list(tensors_in(output)))

        return hook

    handles = [module.register_forward_hook(note(path)) for path, module in backbone.named_modules()]
    try:
        with torch.no_grad(), in_evaluation_mode(backbone):
            call(backbone, example)
    except Exception as error:
        shapes = ", ".join(str(list(t.shape)) for t in tensors_in(example))
        raise InputError(
            f"{type(backbone).__name__} does not take the example {shapes}: {error}. Give example= inputs as it takes "
            f"them, a tensor or a mapping of keyword arguments."
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return list(found.values())


def twice(example: Any) -> Any:
    """An example of one as a batch of two, so that the axis of examples can be told."""
    double = lambda t: torch.cat([t, t]) if t.ndim and len(t) == 1 else t
    return replace_tensors(dict(example) if isinstance(example, Mapping) else example, double)


def blocks(found: list[Call]) -> list[Call]:
    """The outermost group of modules, at places that differ in their numbers alone, with most of the parameters.

    Of a group of stages the blocks inside are taken. A stage holds blocks of one kind, and returns what the last of
    them returned, or they return sums: a block with a skip returns what no part of it made.

    Raises:
        InputError: the group runs several times: its weights are shared by several layers.
    """
    groups: dict[str, list[Call]] = {}
    for one in found:
        own = not isinstance(one.module, (nn.Sequential, nn.ModuleList, nn.RNNBase)) and any(one.module.children())
        if own and one.made and re.search(r"\d", one.path):
            groups.setdefault(re.sub(r"\d+", "#", one.path), []).append(one)
    several = {pattern: group for pattern, group in groups.items() if len(group) > 1} or groups
    if not several:
        return []
    size = {pattern: sum(map(_parameters, group)) for pattern, group in several.items()}
    large = [pattern for pattern, n in size.items() if n >= _MOST * max(size.values())]
    best = min(large, key=lambda pattern: (pattern.count("."), -size[pattern]))
    while True:
        inside = [
            pattern
            for pattern, n in size.items()
            if pattern.startswith(f"{best}.")
            and n >= _INSIDE * size[best]
            and _are_stages(groups[best], groups[pattern], found)
        ]
        if not inside:
            break
        best = min(inside, key=lambda pattern: (pattern.count("."), -size[pattern]))
    shared = [one for one in groups[best] if one.count > 1]
    if shared:
        raise InputError(
            f"{shared[0].path!r} runs {shared[0].count} times in one forward: several layers share its weights, which "
            f"a path cannot tell apart. Name other layers, or unroll the module."
        )
    return groups[best]


def _are_stages(outer: list[Call], inner: list[Call], found: list[Call]) -> bool:
    """Whether modules run others of one kind one after the other."""
    ends_alike = all(_is_sum(one, found) for one in inner)
    for stage in outer:
        members = [one for one in inner if one.path.startswith(f"{stage.path}.")]
        if not members or len({type(one.module) for one in members}) > 1:
            return False
        ends_alike |= any(_is(a, b) for a in stage.made for b in members[-1].made)
    return ends_alike


def _is_sum(block: Call, found: list[Call]) -> bool:
    """Whether what a block returns was made by no part of it."""
    parts = [one for one in found if one.path.startswith(f"{block.path}.")]
    return not any(_is(a, b) for a in block.made for one in parts for b in one.made)


def _is(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.data_ptr() == other.data_ptr() and one.numel() == other.numel())


def _parameters(one: Call) -> int:
    return sum(p.numel() for p in one.module.parameters())


def states(found: list[Call]) -> list[tuple[Call, int]]:
    """The layers of recurrent modules."""
    return [(one, i) for one in found if isinstance(one.module, nn.RNNBase) for i in range(one.module.num_layers)]


def hidden(found: list[Call]) -> list[tuple[Call, bool]]:
    """What each linear map but the first takes, and what the network returns if that is no linear map's.

    Nothing, if there are convolutions, or if a linear map runs several times.
    """
    linear = [one for one in found if isinstance(one.module, nn.Linear)]
    if any(one.count > 1 for one in linear) or any(isinstance(one.module, nn.modules.conv._ConvNd) for one in found):
        return []
    chosen: dict[int, tuple[Call, bool]] = {}
    for one in linear[1:]:
        if one.taken is not None:
            chosen.setdefault(id(one.taken), (one, True))
    whole = found[-1]  # the backbone itself ends last
    if linear and not any(_is(a, b) for a in whole.made for b in linear[-1].made):
        chosen[-1] = whole, False
    return list(chosen.values())
