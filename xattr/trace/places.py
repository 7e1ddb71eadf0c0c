"""Which cell of a convolution's grid each entry of a tensor comes from, followed through what moves entries.

Beside a convolution's output stands a tensor of the same shape that holds the number of the cell, row by row, and the
size of the grid. It has no memory of its own along batch and channels. Views, joins and shuffles are replayed on it;
anything else that keeps the shape is taken to act on each entry by itself; what changes the shape loses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .functions import MIXES, MOVES
from .marks import replace_tensors, tensors_in
from .record import Layout

NOWHERE = -1
_CELL_BITS = 32


def of_convolution(out: Tensor) -> Tensor:
    """The places of a convolution's output `[B, C, h, w]`."""
    height, width = out.shape[2:]
    grid = (height << 16 | width) << _CELL_BITS
    return (torch.arange(height * width, device="cpu") + grid).view(1, 1, height, width).expand(out.shape)


def carried(
    func: Callable[..., Any],
    name: str,
    args: Any,
    kwargs: Any,
    outputs: list[Tensor],
    place: Callable[[Any], Tensor | None],
) -> list[Tensor | None]:
    """The places of what an operation returned, `None` where they are lost."""
    lost: list[Tensor | None] = [None] * len(outputs)
    placed = [p for p in map(place, tensors_in((args, kwargs))) if p is not None]
    if not placed or name in MIXES:
        return lost
    if name in MOVES:
        return _moved(func, args, kwargs, outputs, place) or lost
    (out,) = outputs if len(outputs) == 1 else (None,)
    if out is None:
        return lost
    if name == "linear" and placed[0].stride(-1) == 0:
        return [placed[0][..., :1].expand(*placed[0].shape[:-1], out.shape[-1])]
    alike = [p for p in placed if p.shape == out.shape]
    if not alike or any(p is not alike[0] and not torch.equal(p, alike[0]) for p in alike[1:]):
        return lost
    return [alike[0]]


def _moved(
    func: Callable[..., Any], args: Any, kwargs: Any, outputs: list[Tensor], place: Callable[[Any], Tensor | None]
) -> list[Tensor | None] | None:
    def stand_in(tensor: Tensor) -> Tensor:
        found = place(tensor)
        if found is not None:
            return found
        # indices stay what they are; other tensors hold no place
        return (
            tensor.cpu()
            if not tensor.is_floating_point()
            else torch.full((), NOWHERE, device="cpu").expand(tensor.shape)
        )

    try:
        moved = list(tensors_in(func(*replace_tensors(args, stand_in), **replace_tensors(kwargs, stand_in))))
    except (RuntimeError, TypeError, IndexError):
        return None
    fits = len(moved) == len(outputs) and all(m.shape == o.shape for m, o in zip(moved, outputs, strict=True))
    return list(map(_light, moved)) if fits else None


def _light(places: Tensor) -> Tensor:
    """The same places without memory along channels, where these agree: a join writes them all out."""
    if places.ndim < 2 or places.stride(-1) == 0 or bool((places != places[..., :1]).any()):
        return places
    return places[..., :1].clone().expand(places.shape)


def layout(places: Tensor | None) -> Layout | None:
    """The token layout in the places of a sequence `[B, N, D]`: one grid, complete, row by row, without a gap."""
    if places is None or places.ndim != 3 or (places.stride(-1) and bool((places[..., :1] != places).any())):
        return None
    if bool((places[..., 0] != places[0, :, 0]).any()):
        return None  # another order in each image
    codes = [int(code) for code in places[0, :, 0]]
    inside = [i for i, code in enumerate(codes) if code != NOWHERE]
    if not inside:
        return None
    offset, grid = inside[0], codes[inside[0]] >> _CELL_BITS
    height, width = grid >> 16, grid & (1 << 16) - 1
    wanted = [(grid << _CELL_BITS) + cell for cell in range(height * width)]
    return Layout((height, width), offset, len(codes)) if codes[offset : inside[-1] + 1] == wanted else None
