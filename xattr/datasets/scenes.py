"""Scenes whose truth is exact: a digit that decides the class, among shuffled digits that do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Split = Literal["train", "tuning", "report"]
"""Which source digits a scene may use; no digit belongs to two splits."""

CELL = 8
GRID = 3
SIZE = CELL * GRID
_CELLS = GRID * GRID
_SHARES = {"train": 1257, "tuning": 180, "report": 360}
_PARTITION_SEED = 1797
_SCENE_SEED = 0
_DISTRACTORS = (3, 6)  # how many other cells hold a shuffled digit, both ends included
_PAIR_DISTRACTORS = (2, 5)

_Batch = TypeVar("_Batch", bound="_Sliceable")
_Index = int | slice | Tensor | Sequence[int]


class _Sliceable:
    """Indexing of a frozen dataclass of tensors along their common first dimension."""

    def __len__(self) -> int:
        return len(self.images)  # type: ignore[attr-defined]

    def __getitem__(self: _Batch, index: _Index) -> _Batch:
        # An integer keeps the batch dimension, so that `model(scenes[3].images)` works; the IndexError ends a for loop.
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"scene {index} of {len(self)}")
            index = slice(index, index + 1 or None)
        return type(self)(*(getattr(self, field.name)[index] for field in fields(self)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Scenes(_Sliceable):
    """One true digit per image, with the pixels and the cell it occupies.

    Attributes:
        images: float32 ``[n, 1, 24, 24]`` in [0, 1]; models take them as they are.
        labels: int64 ``[n]``, the class of the true digit.
        masks: bool ``[n, 1, 24, 24]``, the ink (value > 0) of the true digit.
        boxes: int64 ``[n, 4]``, ``x1, y1, x2, y2`` of the *cell* of the true digit, the ends exclusive.
        cells: int64 ``[n]``, that cell's number, 0 to 8 row by row.
        sources: int64 ``[n, 9]``, the index of the digit in each cell (shuffled or not), -1 for an empty cell.
    """

    images: Tensor
    labels: Tensor
    masks: Tensor
    boxes: Tensor
    cells: Tensor
    sources: Tensor


@dataclass(frozen=True)
class Pairs(_Sliceable):
    """Two true digits of different classes per image: does a map follow the class that is asked for?

    Attributes:
        images: float32 ``[n, 1, 24, 24]`` in [0, 1].
        labels: int64 ``[n, 2]``, two different classes.
        masks: bool ``[n, 2, 1, 24, 24]``, the ink of each digit; the two never overlap.
        cells: int64 ``[n, 2]``, their cells, 0 to 8 row by row.
        sources: int64 ``[n, 9]``, the index of the digit in each cell (shuffled or not), -1 for an empty cell.
    """

    images: Tensor
    labels: Tensor
    masks: Tensor
    cells: Tensor
    sources: Tensor


@cache
def _digits() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """The 1,797 digits ``[1797, 8, 8]`` in [0, 1] and their classes ``[1797]``."""
    with np.load(Path(__file__).with_name("digits.npz")) as stored:
        return stored["images"].astype(np.float32) / 16, stored["labels"].astype(np.int64)


def _pool(split: str) -> npt.NDArray[np.int64]:
    """Indices of the source digits of a split: always the same, never shared between splits."""
    if split not in _SHARES:
        raise ValueError(f"unknown split {split!r}; choose one of {', '.join(get_args(Split))}")
    # RandomState, here and below, because its stream is frozen for all versions of numpy; default_rng's is not.
    order = np.random.RandomState(_PARTITION_SEED).permutation(sum(_SHARES.values()))
    start = 0
    for name, share in _SHARES.items():
        if name == split:
            break
        start += share
    return np.sort(order[start : start + share]).astype(np.int64)


def _compose(
    split: str, n: int, seed: int | None, items: int, distractors: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Images ``[n, 1, 24, 24]``, labels ``[n, items]``, masks ``[n, items, 1, 24, 24]``, cells and sources."""
    if n < 1:
        raise ValueError(f"n must be at least 1, found {n}")
    images, classes = _digits()
    pool = _pool(split)
    rng = np.random.RandomState([list(_SHARES).index(split), items, _SCENE_SEED if seed is None else seed])
    # One row of uniform numbers makes one scene, so the first scenes are the same however many are asked for.
    chance = rng.random_sample((n, 2 * _CELLS + 1 + _CELLS * CELL**2))
    place, source, count, shuffle = np.split(chance, [_CELLS, 2 * _CELLS, 2 * _CELLS + 1], axis=1)

    places = np.argsort(place, axis=1, kind="stable")  # true digits take the first, distractors the next
    low, high = distractors
    filled = items + low + np.floor(count * (high - low + 1)).astype(np.int64)  # [n, 1]
    rank = np.argsort(places, axis=1, kind="stable")  # rank[cell] = position of that cell in `places`

    ranked = pool[np.floor(source * len(pool)).astype(np.int64)]  # [n, 9], by rank
    for later in range(1, items):
        # A later item must differ in class, so it is drawn again, among the digits of the classes not yet taken.
        for row in range(n):
            taken = classes[ranked[row, :later]]
            others = pool[~np.isin(classes[pool], taken)]
            ranked[row, later] = others[int(source[row, later] * len(others))]
    sources = np.take_along_axis(ranked, rank, axis=1)  # [n, 9], by cell

    ink = images[sources].reshape(n, _CELLS, CELL**2)
    order = np.argsort(shuffle.reshape(ink.shape), axis=2, kind="stable")
    ink = np.where((rank < items)[..., None], ink, np.take_along_axis(ink, order, axis=2))
    ink = np.where((rank < filled)[..., None], ink, np.float32(0))
    sources = np.where(rank < filled, sources, -1)

    cells = places[:, :items]
    masks = np.stack([ink * (rank == item)[..., None] > 0 for item in range(items)], axis=1)
    return (
        torch.from_numpy(_tile(ink))[:, None],
        torch.from_numpy(classes[np.take_along_axis(sources, cells, axis=1)]),
        torch.from_numpy(_tile(masks))[:, :, None],
        torch.from_numpy(cells.copy()),
        torch.from_numpy(sources),
    )


def _tile(cells: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """``[..., 9, 64]`` -> ``[..., 24, 24]``."""
    grid = cells.reshape(*cells.shape[:-2], GRID, GRID, CELL, CELL)
    return np.ascontiguousarray(np.swapaxes(grid, -3, -2)).reshape(*cells.shape[:-2], SIZE, SIZE)


def cell_masks(cells: Tensor) -> Tensor:
    """Masks of one cell in each image: the finest that a grid of 4 x 4 patches resolves.

    Args:
        cells: numbers of the cells, int64 ``[n]``, 0 to 8 row by row.

    Returns:
        bool ``[n, 1, 24, 24]``.

    Example:
        >>> import torch
        >>> from xattr.datasets import cell_masks
        >>> cell_masks(torch.tensor([1])).nonzero()[0].tolist()
        [0, 0, 0, 8]
    """
    chosen = torch.zeros(len(cells), _CELLS, dtype=torch.bool).scatter(1, cells[:, None], True)
    return chosen.view(-1, 1, GRID, GRID).repeat_interleave(CELL, 2).repeat_interleave(CELL, 3)


def digit_scenes(split: Split, n: int = 500, seed: int | None = None) -> Scenes:
    """Scenes of one digit among shuffled digits, with the exact pixels that decide the class.

    One true digit lies in one cell, drawn uniformly, of a 3 x 3 grid of 8 x 8 cells. Three to six of the other cells
    hold *pixel-shuffled* digits of any class: the values of a digit at randomly permuted places of its cell. The rest
    is empty. A shuffled digit is as bright as a true one, so neither brightness nor place gives the answer; only the
    arrangement of the pixels does. The brightest pixel lies in the digit in a fifth of the scenes, the centre in a
    tenth. The first scenes of a longer call are those of a shorter one.

    Source: the 1,797 test digits of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI
    Machine Learning Repository, 1998, https://doi.org/10.24432/C50P49), as scikit-learn distributes them. Licence:
    CC BY 4.0.

    Args:
        split: ``"train"`` (1,257 source digits), ``"tuning"`` (180) for choices or ``"report"`` (360) for claims.
        n: how many scenes.
        seed: another seed gives other scenes of the same source digits; ``None`` is the split's fixed seed.

    Returns:
        ``n`` scenes, on the CPU; the same call gives the same scenes bit for bit.

    Example:
        >>> from xattr.datasets import digit_scenes
        >>> scenes = digit_scenes("report", n=4)
        >>> tuple(scenes.images.shape), tuple(scenes.masks.shape), len(scenes[:2])
        ((4, 1, 24, 24), (4, 1, 24, 24), 2)
    """
    images, labels, masks, cells, sources = _compose(split, n, seed, 1, _DISTRACTORS)
    cell = cells[:, 0]
    x, y = cell % GRID * CELL, cell // GRID * CELL
    boxes = torch.stack([x, y, x + CELL, y + CELL], dim=1)
    return Scenes(images, labels[:, 0], masks[:, 0], boxes, cell, sources)


def pair_scenes(split: Split = "report", n: int = 200, seed: int | None = None) -> Pairs:
    """Scenes of two true digits of different classes, for tests of class sensitivity.

    As in `digit_scenes`, with two true digits in two cells and two to five shuffled ones: a map for one class should
    point at that digit, a map for the other class at the other. The embedded models were trained on such pairs as well,
    with half the probability for each class, so they see both digits. Source and licence as there.

    Args:
        split: ``"train"``, ``"tuning"`` or ``"report"``.
        n: how many scenes.
        seed: another seed gives other scenes; ``None`` is the split's fixed seed.

    Returns:
        ``n`` scenes, on the CPU; the same call gives the same scenes bit for bit.

    Example:
        >>> from xattr.datasets import pair_scenes
        >>> pairs = pair_scenes(n=3)
        >>> bool((pairs.labels[:, 0] != pairs.labels[:, 1]).all())
        True
    """
    return Pairs(*_compose(split, n, seed, 2, _PAIR_DISTRACTORS))
