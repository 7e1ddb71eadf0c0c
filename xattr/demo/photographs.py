"""Photographs, explained with a trained model that travels with the library, and with some from other packages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import attr
from .._pictures import save_picture
from ..datasets import CIFAR_CLASSES, cifar_model, cifar_photographs
from ..datasets.borrowed import efficientnet_lite0, photograph, quokka, region_score, saliency_vit
from ..loading import label_names, short_name
from ..metrics import energy
from ..trace import preprocessing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PHOTOGRAPHS", "Photographs"]

# Name in the picture -> class and arguments of `attribute`.
CNN_ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "GradCam": ("GradCam", {}),
    "LRP, gamma": ("LRP", {"rule": "gamma"}),
    "LRP, epsilon": ("LRP", {"rule": "epsilon"}),
    "IntegratedGradients": ("IntegratedGradients", {"n_steps": 25}),
}
VIT_ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "GradSkip": ("GradSkip", {}),
    "GradientXToken": ("GradientXToken", {}),
    "AttentionRollout": ("AttentionRollout", {}),
    "GradCam": ("GradCam", {}),
    "LRP, attnlrp": ("LRP", {"rule": "attnlrp"}),
    "LRP, gamma": ("LRP", {"rule": "gamma"}),
    "RandomMap": ("RandomMap", {}),
    "CentreMap": ("CentreMap", {}),
    "BrightnessMap": ("BrightnessMap", {}),
    "EdgeMap": ("EdgeMap", {}),
}
CONTROLS = ("RandomMap", "CentreMap", "BrightnessMap", "EdgeMap")


@dataclass(frozen=True)
class Photographs:
    """Photographs and their maps.

    Attributes:
        name: what the file is called.
        figure: the picture.
        table: what is known of it, as text.
    """

    name: str
    figure: Figure
    table: str

    def save(self, folder: str | Path = ".") -> Path:
        """Write the picture as `xattr-<name>.png` into an existing folder.

        Raises:
            FileNotFoundError: there is no such folder.
        """
        return save_picture(self.figure, folder, f"xattr-{self.name}")


def small() -> Photographs:
    """Free photographs and the small CIFAR-10 transformer, which travel with the library."""
    from ..visualization import comparison

    model, pictures = cifar_model(), cifar_photographs()
    prepare = preprocessing(model)
    x = torch.cat([prepare(picture) for picture in pictures.values()])
    shown = torch.stack([torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255 for picture in pictures.values()])
    with torch.no_grad():
        best, target = model(x).softmax(1).max(1)
    rows = {name: row for name, row in VIT_ROWS.items() if name not in CONTROLS}
    rows["IntegratedGradients"] = ("IntegratedGradients", {"n_steps": 25})
    labels = [f"{CIFAR_CLASSES[i]} {p:.0%}" for i, p in zip(target.tolist(), best.tolist(), strict=True)]
    figure = comparison(
        shown,
        {name: F.interpolate(heat, shown.shape[-2:]) for name, heat in _maps(model, x, target, rows).items()},
        labels=labels,
        title="A small transformer, CIFAR-10, which sees 32 x 32 pixels: red speaks for the class, blue against it",
        percentile=99,
    )
    lines = ["Small vision transformer (CIFAR-10, 452 thousand parameters) on photographs chosen because it is right"]
    lines += [f"{name}: {label}" for name, label in zip(pictures, labels, strict=True)]
    return Photographs("small-photographs", figure, "\n".join(lines))


def imagenet(names: tuple[str, ...] = ("chelsea", "coffee")) -> Photographs:
    """EfficientNet-Lite0 on free photographs of scikit-image.

    Raises:
        ModuleNotFoundError: the extra `demo` is missing; the message says how to install it.
    """
    from ..visualization import comparison

    model = efficientnet_lite0()
    prepare, classes = preprocessing(model), label_names(model)
    assert classes is not None
    x = torch.cat([prepare(photograph(name)) for name in names])
    with torch.no_grad():
        best, target = model(x).softmax(1).max(1)
    labels = [short_name(classes[i]) for i in target.tolist()]
    figure = comparison(
        prepare.inverse(x),
        _maps(model, x, target, CNN_ROWS),
        labels=labels,
        title="EfficientNet-Lite0, ImageNet: red speaks for the class, blue against it",
        percentile=99,
    )
    lines = ["EfficientNet-Lite0 (ImageNet) on photographs of scikit-image"]
    lines += [f"{name}: {label}, {p:.0%}" for name, label, p in zip(names, labels, best.tolist(), strict=True)]
    return Photographs("photographs", figure, "\n".join(lines))


def salient_quokka() -> Photographs:
    """A ViT-S/14 that marks salient objects, explained by its mean logit over the quokka that it marks.

    Raises:
        ModuleNotFoundError: a package is missing; the message says how to install it.
    """
    from ..visualization import comparison

    model = saliency_vit()
    picture, outline = quokka()
    prepare = preprocessing(model.backbone)
    x = prepare(picture)
    mask = torch.nn.functional.interpolate(torch.tensor(outline)[None, None].float(), size=x.shape[-2:]) > 0.5
    maps = _maps(region_score(model, x), x, 0, VIT_ROWS)
    figure = comparison(
        prepare.inverse(x),
        {name: heat for name, heat in maps.items() if name not in CONTROLS},
        masks=mask,
        title="ViT-S/14 marking salient objects: what speaks for the region that it marks; outlined: the true one",
        percentile=99,
    )
    width = max(map(len, maps))
    lines = [f"ViT-S/14 on one photograph of a quokka, which covers {float(mask.float().mean()):.0%} of it"]
    lines += [f"{'method':{width}}  positive mass in it"]
    lines += [f"{name:{width}}  {float(energy(heat, mask)):19.2f}" for name, heat in maps.items()]
    return Photographs("quokka", figure, "\n".join(lines))


PHOTOGRAPHS: dict[str, Callable[[], Photographs]] = {
    "small-photographs": small,
    "photographs": imagenet,
    "quokka": salient_quokka,
}
"""What there is, by name; the first needs nothing, the others packages of their own."""


def _maps(model: Any, x: Tensor, target: Any, rows: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Tensor]:
    maps = {}
    for name, (kind, arguments) in rows.items():
        heat: Tensor = getattr(attr, kind)(model).attribute(x, target=target, **arguments)
        maps[name] = heat.sum(1, keepdim=True)
    return maps
