"""Fashion-MNIST, where it is installed."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

__all__ = ["FASHION_CLASSES", "fashion_mnist"]

FASHION_CLASSES = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
"""Names of the ten classes."""

_SYSTEM = Path("/usr/share/datasets/fashion-mnist")


def fashion_mnist(split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
    """Images ``[n, 28, 28]``, uint8, and labels ``[n]`` (H. Xiao, K. Rasul and R. Vollgraf, arXiv:1708.07747; MIT).

    Args:
        split: ``"train"`` (60,000) or ``"test"`` (10,000).

    Raises:
        FileNotFoundError: the files are in none of the places looked at; the message says how to get them.
    """
    if split not in ("train", "test"):
        raise ValueError(f'split={split!r}; expected "train" or "test".')
    name = "train" if split == "train" else "t10k"
    places = [Path(os.environ["XATTR_FASHION_MNIST"])] if "XATTR_FASHION_MNIST" in os.environ else []
    for place in [*places, _SYSTEM]:
        images, labels = (place / f"{name}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
        if images.is_file() and labels.is_file():
            pixels = np.frombuffer(gzip.decompress(images.read_bytes()), np.uint8, offset=16).reshape(-1, 28, 28)
            named = np.frombuffer(gzip.decompress(labels.read_bytes()), np.uint8, offset=8)
            return torch.from_numpy(pixels.copy()), torch.from_numpy(named.astype(np.int64))
    raise FileNotFoundError(
        f"Fashion-MNIST was found in none of {[str(p) for p in [*places, _SYSTEM]]}; install Debian's package "
        f"dataset-fashion-mnist, or let XATTR_FASHION_MNIST name a folder with its four .gz files (torchvision's "
        f"FashionMNIST/raw)."
    )
