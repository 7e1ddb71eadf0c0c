"""Which cell of a grid, in which image, each entry of a tensor comes from, followed through what moves entries.

Beside the image stands a tensor of the same shape that holds for each entry the number of the image, the size of the
grid and the cell, row by row. A convolution, a pooling or a resize of a picture in order begins a new grid. Views,
joins and shuffles are replayed; what acts on each entry by itself keeps the places; everything else loses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._nested import replace_tensors, tensors_in
from ..rules.names import BY_FIRST, MOVES
from .functions import BY_ENTRY, JOINS, REGRIDS, rule_name

NOWHERE = -1
CELL, SIDE = 26, 13  # bits of a cell's number and of each side of a grid; the rest is the image's number
IMAGE = CELL + 2 * SIDE

Lookup = Callable[[Any], Tensor | None]


def of_picture(picture: Tensor) -> Tensor | None:
    """The places of a picture or feature map in order, `[B, C, h, w]`; without memory along channels."""
    if picture.ndim != 4 or max(picture.shape[2:]) >= 1 << SIDE:
        return None
    batch, _, height, width = picture.shape
    grid = (height << SIDE | width) << CELL
    cells = (torch.arange(height * width, device="cpu") + grid).view(1, 1, height, width)
    images = (torch.arange(batch, device="cpu") << IMAGE).view(-1, 1, 1, 1)
    return (images + cells).expand(picture.shape)


def carried(
    func: Any, name: str, args: Any, kwargs: Any, outputs: list[Tensor], place: Lookup, varies: Callable[[Any], bool]
) -> list[Tensor | None]:
    """The places of what an operation returned, `None` where they are lost.

    Args:
        func: the function.
        name: its name.
        args: its positional arguments.
        kwargs: its keyword arguments.
        outputs: what it returned.
        place: the places of an argument.
        varies: whether an argument depends on the image: without places it has unknown ones, a constant has none.
    """
    lost: list[Tensor | None] = [None] * len(outputs)
    first = place(args[0]) if args else None
    if name in MOVES:
        return _moved(func, name, args, kwargs, outputs, place, varies) or lost
    if len(outputs) != 1 or not any(place(t) is not None for t in tensors_in((args, kwargs))):
        return lost
    (out,) = outputs
    if name == "pad" and first is not None:
        return [_padded(func, first, args, kwargs)]
    if name in REGRIDS:
        return [of_picture(out) if first is not None and _in_order(first, _reach(name, args, kwargs)) else None]
    if name == "__setitem__" and first is not None:
        return [None if varies(args[2]) and place(args[2]) is None else _assigned(first, args, place)]
    if name in BY_FIRST and first is not None:
        return [first.expand(out.shape) if name == "expand_as" else first.reshape(out.shape)]
    if name == "linear" and first is not None:
        cells = first[..., :1] if first.stride(-1) == 0 else _joined(first)
        return [None if cells is None else cells.expand(*first.shape[:-1], out.shape[-1])]
    if rule_name(name) not in BY_ENTRY:
        return lost
    return [_agreed([p for p in map(place, tensors_in((args, kwargs))) if p is not None and p.shape == out.shape])]


def _agreed(alike: list[Tensor]) -> Tensor | None:
    """The places that tensors share; what comes from nowhere agrees with all."""
    if not alike:
        return None
    result = alike[0]
    for other in alike[1:]:
        if other is result or torch.equal(other, result):
            continue
        if bool(((other != result) & (other != NOWHERE) & (result != NOWHERE)).any()):
            return None
        result = torch.where(result == NOWHERE, other, result)
    return result


def _in_order(places: Tensor, margin: int = 0) -> bool:
    """Whether a picture lies in order, but for a margin from nowhere of less than `margin` entries on each side."""
    if margin and places.ndim == 4 and bool((places[0, 0] == NOWHERE).any()):
        known = places[0, 0] != NOWHERE
        rows, columns = (torch.nonzero(known.any(axis))[:, 0] for axis in (1, 0))
        if not len(rows):
            return False
        (top, bottom), (left, right) = rows.aminmax(), columns.aminmax()
        sides = top, known.shape[0] - 1 - bottom, left, known.shape[1] - 1 - right
        if max(map(int, sides)) >= margin:
            return False
        places = places[..., top : bottom + 1, left : right + 1]
    wanted = of_picture(places)
    if wanted is None or not torch.equal(places[:, :1], wanted[:, :1]):
        return False
    return places.stride(1) == 0 or bool((places == places[:, :1]).all())


def _reach(name: str, args: Any, kwargs: Any) -> int:
    """The longer side of the window of a convolution or pooling."""
    if "conv" in name:
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        return int(max(weight.shape[-2:]))
    size = args[1] if len(args) > 1 else kwargs.get("kernel_size", 0)
    if "adaptive" in name or name in ("interpolate", "upsample"):
        return 0
    return int(max(size)) if isinstance(size, (tuple, list)) else int(size or 0)


def _moved(
    func: Any,
    name: str,
    args: Any,
    kwargs: Any,
    outputs: list[Tensor],
    place: Lookup,
    varies: Callable[[Any], bool],
) -> list[Tensor | None] | None:
    def stand_in(tensor: Tensor) -> Tensor:
        found = place(tensor)
        if found is not None:
            return found
        # indices stay what they are; other tensors hold no place
        return tensor.cpu() if not tensor.is_floating_point() else nowhere(tensor.shape)

    operands = list(tensors_in((args, kwargs)))
    if name in JOINS:
        # A single token cannot hold a grid: it comes from nowhere.
        axis = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        operands = [t for t in operands if place(t) is not None or t.shape[axis] > 1]
    unknown = (varies(t) and t.is_floating_point() and place(t) is None for t in operands)
    if any(unknown) or all(place(t) is None for t in operands):
        return None
    moved = replayed(func, args, kwargs, stand_in, outputs)
    if moved is None:
        return None
    if name == "__getitem__":
        moved = [of_picture(m) if _is_lattice(m) else m for m in moved]  # type: ignore[misc]
    return list(map(_light, moved))


def replayed(
    func: Any, args: Any, kwargs: Any, stand_in: Callable[[Tensor], Tensor], outputs: list[Tensor]
) -> list[Tensor] | None:
    """What a move makes of stand-ins for its operands; `None` if they do not move like the operands."""
    try:
        moved = list(tensors_in(func(*replace_tensors(args, stand_in), **replace_tensors(kwargs, stand_in))))
    except (RuntimeError, TypeError, IndexError):
        return None
    fits = len(moved) == len(outputs) and all(m.shape == o.shape for m, o in zip(moved, outputs, strict=True))
    return moved if fits else None


def _joined(places: Tensor) -> Tensor | None:
    """The cells `[..., 1]` of a coarser grid, where the last axis holds the entries of one rectangle of cells each."""
    if bool((places == NOWHERE).any()):
        return None
    image, grid, cell = places >> IMAGE, (places & (1 << IMAGE) - 1) >> CELL, places & (1 << CELL) - 1
    if bool((grid != grid.flatten()[0]).any()) or bool((image != image[..., :1]).any()):
        return None
    height, width = int(grid.flatten()[0]) >> SIDE, int(grid.flatten()[0]) & (1 << SIDE) - 1
    (top, bottom), (left, right) = (cell // width).aminmax(dim=-1), (cell % width).aminmax(dim=-1)
    rows, columns = (int((last - first).flatten()[0]) + 1 for first, last in ((top, bottom), (left, right)))
    shape = height // rows, width // columns
    regular = (bottom - top + 1 == rows) & (right - left + 1 == columns) & (top % rows == 0) & (left % columns == 0)
    if height % rows or width % columns or shape[0] * shape[1] < 2 or not bool(regular.all()):
        return None
    code = (shape[0] << SIDE | shape[1]) << CELL
    return ((image[..., 0] << IMAGE) + code + top // rows * shape[1] + left // columns)[..., None]


def _padded(func: Any, places: Tensor, args: Any, kwargs: Any) -> Tensor | None:
    """The margin comes from nowhere, also where it repeats a part of the picture."""
    amounts = list(args[1] if len(args) > 1 else kwargs["pad"])
    return _light(torch.nn.functional.pad(places, amounts, value=NOWHERE))


def _is_lattice(places: Tensor) -> bool:
    """Whether every n-th row and every m-th column of a picture is there: a coarser picture."""
    if places.ndim != 4 or places.stride(1) != 0 or min(places.shape[2:]) < 2 or bool((places == NOWHERE).any()):
        return False
    grid, cell = (places[0, 0, 0, 0] & (1 << IMAGE) - 1) >> CELL, places[:, 0] & (1 << CELL) - 1
    height, width = int(grid) >> SIDE, int(grid) & (1 << SIDE) - 1
    rows, columns = cell // width, cell % width
    step, stride = int(rows[0, 1, 0] - rows[0, 0, 0]), int(columns[0, 0, 1] - columns[0, 0, 0])
    top, left = int(rows[0, 0, 0]), int(columns[0, 0, 0])
    if step < 1 or stride < 1 or step * stride == 1 or top >= step or left >= stride:
        return False
    wanted = [torch.arange(a, n, by) for a, n, by in ((top, height, step), (left, width, stride))]
    same = cell.shape[1:] == (len(wanted[0]), len(wanted[1]))
    same = same and torch.equal(cell, (wanted[0][:, None] * width + wanted[1]).expand_as(cell))
    return same and images_in_order(places, len(places))


def _assigned(places: Tensor, args: Any, place: Lookup) -> Tensor:
    _, index, value = args
    found = place(value)
    result = places.clone()
    result[replace_tensors(index, Tensor.cpu)] = found if found is not None else NOWHERE
    return _light(result)


def nowhere(shape: torch.Size) -> Tensor:
    """Places of something that holds none."""
    return torch.full((), NOWHERE, device="cpu").expand(shape)


def _light(places: Tensor) -> Tensor:
    """The same places without memory along the last axis, where they agree: a join writes them all out."""
    if places.ndim < 2 or places.stride(-1) == 0 or bool((places != places[..., :1]).any()):
        return places
    return places[..., :1].clone().expand(places.shape)


def images_in_order(places: Tensor | None, batch: int) -> bool:
    """Whether image i fills the i-th of `batch` equal parts of the first axis; assumed where places are unknown."""
    if places is None or batch == 1:
        return True
    if len(places) % batch:
        return False
    for axis in range(1, places.ndim):
        if places.stride(axis) == 0:
            places = places.narrow(axis, 0, 1)
    owner = torch.where(places == NOWHERE, NOWHERE, places >> IMAGE).flatten(1)
    wanted = torch.arange(batch, device="cpu").repeat_interleave(len(places) // batch)[:, None]
    return bool(((owner == wanted) | (owner == NOWHERE)).all())
