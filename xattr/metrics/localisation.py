"""Where a map lies, compared with a mask of the thing explained. Higher is better in all of them.

Channels are summed first. Each image gets one number, which depends neither on the rest of the batch nor on a positive
factor of the map. With an empty mask there is nothing to find, so the number is NaN, neither a hit nor a miss: leave
such images out of a mean and say how many they were. A map that holds NaN gets NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import scipy.ndimage
import torch
from torch import Tensor

from ._maps import paired


def energy(maps: Tensor, masks: Tensor) -> Tensor:
    """Share of the positive mass of each map that lies inside its mask.

    `sum of max(map, 0) over the mask / sum of max(map, 0)` (energy-based pointing game, Wang et al., 2020,
    arXiv:1910.01279). A constant positive map scores the share of the picture that the mask covers.

    Args:
        maps: `[B, C, H, W]`; channels are summed first, then negative values are set to 0.
        masks: boolean, `[B, 1, H, W]`.

    Returns:
        `[B]`, 0 to 1; 0 for a map without positive values, NaN for an empty mask.

    Example:
        >>> import torch
        >>> energy(torch.tensor([[[[3.0, 1.0]]]]), torch.tensor([[[[True, False]]]]))
        tensor([0.7500])
    """
    values, inside = paired(maps, masks)
    positive = values.clamp_min(0)
    positive = positive / positive.amax(1, keepdim=True).where(
        positive.amax(1, keepdim=True) > 0, 1
    )  # sums may overflow
    total = positive.sum(1)
    return _defined((positive * inside).sum(1) / total.where(total > 0, 1), values, inside)


def pointing(maps: Tensor, masks: Tensor, *, tolerance: float = 0) -> Tensor:
    """Pointing game: whether the largest value of each map lies inside its mask.

    Where several places share the largest value, the share of them that lies inside: the expected result of breaking
    the tie at random. Zhang et al., 2016, arXiv:1608.00507, count what lies within 15 pixels of the object as well.

    Args:
        maps: `[B, C, H, W]`; channels are summed first.
        masks: boolean, `[B, 1, H, W]`.
        tolerance: pixels of the map; how far from the mask the largest value may lie (Euclidean, between centres of
            pixels).

    Returns:
        `[B]`, 0 to 1; NaN for an empty mask.

    Raises:
        ValueError: shapes that do not fit, masks that are not boolean, or a tolerance that is no distance.

    Example:
        >>> import torch
        >>> heat, mask = torch.tensor([[[[1.0, 1.0, 0.0, 0.0]]]]), torch.tensor([[[[True, False, True, False]]]])
        >>> pointing(heat, mask), pointing(heat, mask, tolerance=1)
        (tensor([0.5000]), tensor([1.]))
    """
    if not tolerance >= 0:  # NaN is not either
        raise ValueError(f"tolerance is {tolerance}; expected a number of pixels, 0 or more.")
    values, inside = paired(maps, masks)
    near = _within(masks, tolerance).flatten(1) if tolerance else inside
    top = values == values.amax(1, keepdim=True)
    return _defined((top & near).sum(1).to(values.dtype) / top.sum(1), values, inside)


def grid_pointing(maps: Tensor, cells: Tensor, grid: tuple[int, int] = (2, 2)) -> Tensor:
    """Grid pointing game: `energy` in one cell of a picture that was put together from pictures of other classes.

    Boehle et al., 2021, arXiv:2104.00032. Chance is 1 over the number of cells.

    Args:
        maps: `[B, C, H, W]`; one picture explained for each of its classes takes one row for each.
        cells: cell of the explained class, integer `[B]`, counted from 0 row by row.
        grid: rows and columns of the picture.

    Returns:
        `[B]`, 0 to 1; 0 for a map without positive values.

    Raises:
        ValueError: cells that the grid lacks or that are not one integer a map, or a map that the grid does not divide.

    Example:
        >>> import torch
        >>> grid_pointing(torch.tensor([[[[3.0, 1.0], [0.0, 0.0]]]]).expand(2, 1, 2, 2), torch.tensor([0, 3]))
        tensor([0.7500, 0.0000])
    """
    (rows, columns), (height, width) = grid, maps.shape[-2:]
    if min(rows, columns) < 1 or height % rows or width % columns:
        raise ValueError(
            f"maps of {height} x {width} do not divide into {rows} x {columns} cells of whole pixels; bring them to "
            f"the size of the picture first."
        )
    cells, numbers = cells.to(maps.device), torch.arange(rows * columns, device=maps.device)
    if cells.shape != maps.shape[:1] or not bool(torch.isin(cells, numbers).all()):
        raise ValueError(
            f"cells are {cells.dtype} {list(cells.shape)}, {cells.flatten()[:8].tolist()}; expected integers from 0 to "
            f"{rows * columns - 1}, one for each map, [{len(maps)}]."
        )
    number = numbers.view(grid).repeat_interleave(height // rows, 0).repeat_interleave(width // columns, 1)
    return energy(maps, number == cells.view(-1, 1, 1, 1))


def top_k_intersection(maps: Tensor, masks: Tensor, k: int | None = None) -> Tensor:
    """Share of the `k` largest values of each map that lies inside its mask.

    `number of the k largest inside the mask / k` (Theiner et al., 2022, arXiv:2104.14995). Where several places share
    the k-th value, the expected result of drawing among them at random: a constant map scores the share of the picture
    that the mask covers. With a `k` above the size of the mask, even a perfect map stays below 1.

    Args:
        maps: `[B, C, H, W]`; channels are summed first, then the signed values are ranked.
        masks: boolean, `[B, 1, H, W]`.
        k: how many values; `None` for as many as the mask of the image has pixels.

    Returns:
        `[B]`, 0 to 1; NaN for an empty mask.

    Raises:
        ValueError: shapes that do not fit, masks that are not boolean, or a `k` that the maps do not hold.

    Example:
        >>> import torch
        >>> heat, mask = torch.tensor([[[[4.0, 3.0, 2.0, 1.0]]]]), torch.tensor([[[[True, False, True, False]]]])
        >>> top_k_intersection(heat, mask), top_k_intersection(heat, mask, k=1)
        (tensor([0.5000]), tensor([1.]))
    """
    values, inside = paired(maps, masks)
    if k is not None and not 1 <= k <= values.shape[1]:
        raise ValueError(f"k is {k}; expected 1 to {values.shape[1]}, the number of values of a map.")
    size = inside.sum(1, keepdim=True)
    count = size.clamp_min(1) if k is None else torch.full_like(size, k)  # 0, of an empty mask, has no last value
    last = values.sort(1, descending=True).values.gather(1, count - 1)
    above, tied = values > last, values == last
    drawn = (count - above.sum(1, keepdim=True)).to(values.dtype) / tied.sum(1, keepdim=True)  # share of the tied taken
    hits = (above & inside).sum(1) + drawn[:, 0] * (tied & inside).sum(1)
    return _defined(hits / count[:, 0], values, inside)


def average_precision(maps: Tensor, masks: Tensor) -> Tensor:
    """How well the values of a map tell the mask from the rest, over all thresholds.

    `sum over thresholds of (recall - recall at the threshold before) * precision`, a threshold at each distinct value,
    from the highest down, without interpolation: equal values enter together. A constant map scores the share of the
    picture that the mask covers, a random one slightly more on average.

    Args:
        maps: `[B, C, H, W]`; channels are summed first, then the signed values are ranked.
        masks: boolean, `[B, 1, H, W]`.

    Returns:
        `[B]`, 0 to 1; NaN for an empty mask.

    Example:
        >>> import torch
        >>> average_precision(torch.tensor([[[[3.0, 2.0, 1.0]]]]), torch.tensor([[[[True, False, True]]]]))
        tensor([0.8333])
    """
    values, inside = paired(maps, masks)
    ordered, order = values.sort(1, descending=True)
    found = inside.gather(1, order)
    size = values.shape[1]
    place = torch.arange(size, device=values.device)
    # Each value belongs to the threshold at the last place that holds the same value: the nearest end of a run of ties.
    ends = place.expand_as(order).where(ordered != ordered.roll(-1, 1), size - 1)
    ends = ends.flip(1).cummin(1).values.flip(1)
    precision = (found.cumsum(1).to(values.dtype) / (place + 1)).gather(1, ends)
    return _defined((precision * found).sum(1) / inside.sum(1), values, inside)


def class_sensitivity(maps_a: Tensor, maps_b: Tensor, mask_a: Tensor) -> Tensor:
    """On images with two items: energy in item A of the map for class A, less that of the map for class B.

    A map that does not depend on the class scores 0, one that moves wholly to the named item 1.

    Args:
        maps_a: maps for the class of item A, `[B, C, H, W]`.
        maps_b: maps of the same images for the class of item B.
        mask_a: mask of item A, `[B, 1, H, W]`.

    Returns:
        `[B]`, -1 to 1; NaN for an empty mask.
    """
    return energy(maps_a, mask_a) - energy(maps_b, mask_a)


def boxes_as_masks(boxes: Tensor | Sequence[Tensor], size: tuple[int, int]) -> Tensor:
    """Masks of the pixels whose centres lie in a box of their image.

    A pixel in column `x` has its centre at `x + 0.5`, so with whole numbers the columns `x1` to `x2 - 1` are inside.
    What sticks out of the picture is cut off; an image all of whose boxes lie outside gets an empty mask.

    Args:
        boxes: `x1, y1, x2, y2` in pixels, the ends exclusive; the first axis counts images. `[B, 4]`, one box for each
            image; or `[B, n, 4]`, or for each image a tensor `[n, 4]`, `n` from 0 up: the union of its boxes.
        size: height and width of the picture.

    Returns:
        bool `[B, 1, H, W]`, on the device of the boxes.

    Raises:
        ValueError: not four numbers a box, or a box without an inside or an end.

    Example:
        >>> import torch
        >>> boxes_as_masks(torch.tensor([[1, 0, 3, 1]]), size=(2, 3)).int()
        tensor([[[[0, 1, 1],
                  [0, 0, 0]]]], dtype=torch.int32)
    """
    found = []
    for image, given in enumerate(boxes):
        own = torch.as_tensor(given)
        own = own.view(0, 4) if own.shape == (0,) else own[None] if own.ndim == 1 else own
        if own.ndim != 2 or own.shape[1] != 4:
            raise ValueError(f"boxes of image {image} have the shape {list(own.shape)}; expected [4] or [n, 4].")
        wrong = ~(torch.isfinite(own).all(1) & (own[:, :2] < own[:, 2:]).all(1))
        if bool(wrong.any()):
            raise ValueError(
                f"a box of image {image} is {own[wrong][0].tolist()}; expected finite x1, y1, x2, y2 with x1 < x2 and "
                f"y1 < y2 (not x, y, width, height)."
            )
        y, x = (torch.arange(side, device=own.device) + 0.5 for side in size)
        rows, columns = ((at >= own[:, i, None]) & (at < own[:, i + 2, None]) for i, at in ((1, y), (0, x)))
        found.append((rows[:, :, None] & columns[:, None, :]).any(0))
    return torch.stack(found)[:, None] if found else torch.zeros(0, 1, *size, dtype=torch.bool)


def _within(masks: Tensor, tolerance: float) -> Tensor:
    near = ~masks.cpu()
    for mask in near.numpy():  # shares the memory
        mask[0] = scipy.ndimage.distance_transform_edt(mask[0]) <= tolerance
    return near.to(masks.device)


def _defined(result: Tensor, values: Tensor, inside: Tensor) -> Tensor:
    return result.where(inside.any(1) & ~values.isnan().any(1), torch.nan)
