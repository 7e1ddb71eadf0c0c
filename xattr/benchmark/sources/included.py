"""Data that travel with this package, and Fashion-MNIST where it is installed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from ...datasets import CIFAR_CLASSES, Scenes, cell_masks, cifar_photographs, digit_scenes
from ...datasets.fashion import fashion_mnist
from ...trace import Preprocessing
from ...trace.errors import InputError, LoadError
from .examples import Examples, Source
from .pictures import PictureSource, Row, chosen, shown

__all__ = ["SceneSource", "fashion", "photographs", "scenes"]


@dataclass(frozen=True)
class SceneSource:
    """Scenes of digits, made for the embedded models, which take them as they are; a `Source`.

    Attributes:
        scenes: the scenes.
        masks: of the true digit.
        split: where they are from.
    """

    scenes: Scenes
    masks: Tensor
    split: str
    has_labels: bool = True
    has_masks: bool = True

    def __len__(self) -> int:
        return len(self.scenes)

    def digest(self, rows: range) -> str:
        """See `Source`."""
        found = hashlib.sha256()
        for i in rows:
            found.update(f"{self.split}/{i} {int(self.scenes.labels[i])} ".encode())
            found.update(self.scenes.images[i].numpy().tobytes())
            found.update(self.masks[i].numpy().tobytes())
        return found.hexdigest()

    def load(self, rows: range, preprocessing: Preprocessing | None) -> Examples:
        """See `Source`; without preprocessing the images are in 0..1."""
        if not rows or min(rows) < 0 or max(rows) >= len(self):
            raise InputError(f"found {rows}; expected at least one row, from 0 to {len(self) - 1}.")
        index = list(rows)
        scenes = images = self.scenes.images[index]
        if preprocessing is not None:
            if preprocessing.size != tuple(scenes.shape[2:]):
                raise InputError(
                    f"scenes are 24 x 24, the model takes {preprocessing.size[0]} x {preprocessing.size[1]}; expected "
                    f"a model for them, such as embedded/class-token, or other pictures."
                )
            mean, std = (scenes.new_tensor(part)[:, None, None] for part in (preprocessing.mean, preprocessing.std))
            images = (scenes - mean) / std
        names = tuple(f"{self.split}/{i}" for i in rows)
        return Examples(images, shown(scenes), self.scenes.labels[index], self.masks[index], names)


def scenes(
    relative_to: Path,
    *,
    split: Literal["report", "tuning"] = "report",
    n: int = 200,
    seed: int | None = None,
    mask: Literal["cell", "ink"] = "cell",
) -> Source:
    """Digits among shuffled digits (`xattr.datasets.digit_scenes`).

    Args:
        relative_to: not used.
        split: "tuning" for choices, "report" for claims.
        n: how many.
        seed: another seed gives other scenes.
        mask: the cell of the true digit, or the pixels of its ink.
    """
    found = digit_scenes(split, n, seed)
    return SceneSource(found, cell_masks(found.cells) if mask == "cell" else found.masks, split)


def fashion(
    relative_to: Path, *, split: Literal["train", "test"] = "test", n: int | None = None, start: int = 0
) -> Source:
    """Fashion-MNIST where it is installed (`xattr.datasets.fashion.fashion_mnist`); no masks.

    Args:
        relative_to: not used.
        split: which images.
        n: how many.
        start: the first of them.

    Raises:
        LoadError: it is not installed.
    """
    from PIL import Image

    try:
        images, labels = fashion_mnist(split)
    except FileNotFoundError as error:
        raise LoadError(str(error)) from error
    wanted = chosen(len(images), n, start)
    row = lambda i: Row(Image.fromarray(images[wanted[i]].numpy()), int(labels[wanted[i]]))
    return PictureSource("Fashion-MNIST", tuple(f"{split}/{i}" for i in wanted), row, has_labels=True)


def photographs(relative_to: Path) -> Source:
    """The free photographs for `xattr.datasets.cifar_model`; no masks. A demonstration: the model is right on them.

    Args:
        relative_to: not used.
    """
    found = cifar_photographs()
    names = tuple(found)
    row = lambda i: Row(found[names[i]], CIFAR_CLASSES.index(names[i]))
    return PictureSource("photographs", names, row, has_labels=True)
