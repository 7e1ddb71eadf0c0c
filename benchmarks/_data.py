"""The models and pictures of the benchmarks; tuning and report pictures are disjoint."""

from __future__ import annotations

import io
import os
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageFile
from torch import Tensor
from train_cifar import photographs

from xattr.datasets import MODELS, Pairs, Scenes, cell_masks, cifar_model, digit_scenes, embedded_model, pair_scenes
from xattr.datasets.borrowed import region_score, saliency_vit
from xattr.trace import preprocessing

__all__ = ["MODELS", "WALLABY", "cifar", "kangaroos", "on_grid", "scenes", "wallabies"]

SCENES, PAIRS, KANGAROOS = 200, 100, {"tuning": 32, "report": 48}
WALLABY = 104  # its class in ImageNet


def scenes(name: str, seed: int, split: Any) -> tuple[Any, Scenes, Pairs]:
    return embedded_model(name, seed), digit_scenes(split, SCENES), pair_scenes(split, PAIRS)


def on_grid(cells: Tensor) -> Tensor:
    """Cells as masks on the grid of 6 x 6 tokens, `[n, 6, 6]`."""
    return cell_masks(cells)[:, 0, ::4, ::4]


def cifar(seed: int, split: str) -> tuple[Any, Tensor, Tensor]:
    """Test images that the model classifies right, of all classes (the file is sorted by them)."""
    model = cifar_model(seed)
    images, labels = photographs("test")
    every = slice(0 if split == "tuning" else 1, None, 30)
    some, named = images[every].float() / 127.5 - 1, labels[every]
    with torch.inference_mode():
        right = model(some).argmax(1) == named
    return model, some[right], named[right].long()


def kangaroos(split: str) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """A model that scores its region of the picture, the picture, and its boxes on the 16 x 16 tokens, `[1, 16, 16]`.

    Those in which the model finds nothing, and those full of kangaroo, are left out.
    """
    model = saliency_vit()
    prepare = preprocessing(model.backbone)
    found = 0
    for image, boxes in photographs_of_kangaroos(split):
        covered = torch.zeros(1, 1, 224, 224)
        for x1, y1, x2, y2 in boxes:
            x, y = 224 / image.width, 224 / image.height
            covered[..., round(y1 * y) : round(y2 * y), round(x1 * x) : round(x2 * x)] = 1
        on_tokens = torch.nn.functional.avg_pool2d(covered, 14)[:, 0] > 0.5
        x = prepare(image)
        with torch.inference_mode():
            sees = bool((model(x) > 0).any())
        if sees and 0.02 < on_tokens.float().mean() < 0.9:
            yield region_score(model, x), x, on_tokens
            found += 1
        if found == KANGAROOS[split]:
            return


def wallabies(model: Any, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Report photographs that an ImageNet model calls wallabies, and their boxes as pixels, `[1, 1, H, W]`.

    The boxes go through the model's own resizing and cropping as a white and black picture.
    """
    prepare, found = preprocessing(model), 0
    middle = torch.tensor([(0.5 - m) / s for m, s in zip(prepare.mean, prepare.std, strict=True)])
    for image, boxes in photographs_of_kangaroos("report"):
        x, drawn = prepare(image), Image.new("RGB", image.size)
        for box in boxes:
            drawn.paste((255, 255, 255), tuple(round(v) for v in box))
        with torch.inference_mode():
            known = int(model(x).argmax()) == WALLABY
        if known:
            yield x, (prepare(drawn) > middle.view(1, -1, 1, 1)).all(1, keepdim=True)
            found += 1
        if found == count:
            return


def photographs_of_kangaroos(split: str) -> Iterator[tuple[Image.Image, list[tuple[float, ...]]]]:
    """Pictures and boxes `x1, y1, x2, y2`; every second photograph is for tuning."""
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    with tarfile.open(Path(os.environ["XATTR_DATA"]) / "kangaroo.tar") as tar:
        for name in sorted(name for name in tar.getnames() if name.endswith(".xml"))[split != "tuning" :: 2]:
            root = ElementTree.fromstring(tar.extractfile(name).read())  # type: ignore[union-attr]
            picture = tar.extractfile(f"images/{Path(name).stem}.jpg").read()  # type: ignore[union-attr]
            boxes = [
                tuple(float(box.findtext(key)) for key in ("xmin", "ymin", "xmax", "ymax"))  # type: ignore[arg-type]
                for box in root.iter("bndbox")
            ]
            yield Image.open(io.BytesIO(picture)).convert("RGB"), boxes
