"""How to read a tensor as tokens, from the places of its entries: the token layout, and which axis is which."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .places import CELL, IMAGE, NOWHERE, SIDE, images_in_order
from .record import Layout


def layout_and_order(places: Tensor | None) -> tuple[Layout | None, bool]:
    """The token layout of `[B, N, D]`, or else of `[N, B, D]`; whether it is the second."""
    found = layout(places)
    if found is not None or places is None or places.ndim != 3:
        return found, False
    found = layout(places.transpose(0, 1))
    return found, found is not None


@dataclass(frozen=True)
class Geometry:
    """How to read a tensor as tokens.

    Attributes:
        layout: where the image's cells lie among the tokens.
        order: the tensor's axes as images, tokens, channels.
        tokens: number of axes that count tokens.
    """

    layout: Layout
    order: tuple[int, ...]
    tokens: int

    def as_tokens(self, tensor: Tensor) -> Tensor:
        """`[B, N, C]`."""
        return tensor.permute(self.order).flatten(1, self.tokens).flatten(2)


def geometry_of(places: Tensor | None) -> Geometry | None:
    """How to read a tensor with these places: the axes along which they stay the same are channels.

    Images are the first axis, or the second where tokens come first.
    """
    if places is None or places.ndim < 3:
        return None
    alike = [
        axis
        for axis in range(places.ndim)
        if places.stride(axis) == 0 or bool((places == places.narrow(axis, 0, 1)).all())
    ]
    for images in (0, 1):
        channels = [axis for axis in alike if axis != images]
        tokens = [axis for axis in range(places.ndim) if axis not in (images, *channels)]
        if not tokens or not channels:
            continue
        thin = places
        for axis in channels:
            thin = thin.narrow(axis, 0, 1)
        order = (images, *tokens, *channels)
        found = layout(thin.permute(order).flatten(1, len(tokens)).flatten(2))
        if found is not None:
            return Geometry(found, order, len(tokens))
    return None


def layout(places: Tensor | None) -> Layout | None:
    """The token layout in the places of a sequence `[B, N, D]`: one grid, complete, row by row, without a gap."""
    if places is None or places.ndim != 3 or not images_in_order(places, len(places)):
        return None
    if places.stride(-1) and bool((places != places[..., :1]).any()):
        return None
    cells = torch.where(places[..., 0] == NOWHERE, NOWHERE, places[..., 0] & (1 << IMAGE) - 1)
    if bool((cells != cells[0]).any()):
        return None  # another order in each image
    codes = cells[0].tolist()
    inside = [i for i, code in enumerate(codes) if code != NOWHERE]
    if not inside:
        return None
    offset, grid = inside[0], codes[inside[0]] >> CELL
    height, width = grid >> SIDE, grid & (1 << SIDE) - 1
    wanted = [(grid << CELL) + cell for cell in range(height * width)]
    return Layout((height, width), offset, len(codes)) if codes[offset : inside[-1] + 1] == wanted else None
