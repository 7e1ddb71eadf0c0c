"""The data of the experiments, in parts for training, validation and test."""

from __future__ import annotations

import io
import itertools
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...datasets.fashion import fashion_mnist
from ...datasets.scenes import digit_scenes


@dataclass(frozen=True)
class Split:
    """Inputs and labels of the three parts of a data set."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    def first(self, limit: int | None) -> Split:
        """The same with fewer training examples, for a try."""
        x, labels = self.train
        return Split((x[:limit], labels[:limit]), self.validation, self.test)


@cache
def fashion() -> Split:
    """Pixels / 255; the last 6,000 training images are for validation, as in the paper's code."""
    (train, named), (test, truth) = fashion_mnist("train"), fashion_mnist("test")
    x, count = train.float() / 255, 6000
    return Split((x[:-count], named[:-count]), (x[-count:], named[-count:]), (test.float() / 255, truth))


def cifar(part: str) -> tuple[Tensor, Tensor]:
    """Images `[n, 3, 32, 32]`, uint8, and labels, in an order drawn once: the files are sorted by class.

    Args:
        part: "train" or "test".

    Raises:
        FileNotFoundError: `XATTR_DATA` names no folder with the files.
    """
    from PIL import Image

    path = Path(os.environ.get("XATTR_DATA", "")) / f"cifar10_{part}.npz"
    if not path.is_file():
        raise FileNotFoundError(
            f"CIFAR-10 was not found at {str(path)!r}; let XATTR_DATA name a folder with cifar10_train.npz and "
            f"cifar10_test.npz, JPEG bytes as `jpeg`, `offsets` and `labels`."
        )
    found = np.load(path)
    data = found["jpeg"].tobytes()
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(data[a:b]))) for a, b in itertools.pairwise(found["offsets"])])
    order = np.random.RandomState(0).permutation(len(pixels))
    images = torch.from_numpy(pixels[order]).permute(0, 3, 1, 2).contiguous()
    return images, torch.from_numpy(found["labels"][order]).long()


@cache
def cifar_10() -> Split:
    """All of CIFAR-10; a tenth of the training images is for validation."""
    (x, named), test = cifar("train"), cifar("test")
    return Split((x[:45_000], named[:45_000]), (x[45_000:], named[45_000:]), test)


@cache
def cifar_some() -> Split:
    """10,000 training images of CIFAR-10, a tenth of them for validation, and 5,000 test images."""
    whole = cifar_10()
    (x, named), (test, truth) = whole.train, whole.test
    return Split((x[:9_000], named[:9_000]), (x[9_000:10_000], named[9_000:10_000]), (test[:5_000], truth[:5_000]))


@cache
def digits() -> Split:
    """Scenes of digits; no digit of a test scene is in a training scene."""
    parts = (digit_scenes("train", 6000), digit_scenes("tuning", 1000), digit_scenes("report", 4000))
    train, validation, test = ((part.images, part.labels) for part in parts)
    return Split(train, validation, test)
