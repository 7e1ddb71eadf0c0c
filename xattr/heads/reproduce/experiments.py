"""What each experiment is: data, backbone, heads, seeds and budget. Nothing is tuned per head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...datasets.cifar import CIFAR_CLASSES
from ...datasets.fashion import FASHION_CLASSES
from .._parts import glorot
from ..layers import Layers, Pool
from ..model import LayaModel
from .data import Split, cifar_10, cifar_some, digits, fashion
from .networks import cifar_vit, depthwise_cnn, digits_vit, lite0, mlp, overwritten_vit

_SEEDS = (1337, 0, 1, 2, 3, 4, 5, 6, 7, 8)
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
_DIGITS = tuple(map(str, range(10)))


@dataclass(frozen=True)
class Experiment:
    """One comparison of heads on one backbone and one data set.

    Attributes:
        name: of the folder of its results.
        title: for people.
        data: loads the data.
        backbone: makes the network.
        heads: name in the results -> name in `xattr.heads.HEADS` and options; the first is the one examined.
        layers: names of the layers, for tables and pictures.
        classes: names of the classes.
        find: which layers the head reads, as `LayaModel` takes it.
        pool: how a layer becomes a vector, as `LayaModel` takes it.
        freeze: the backbone is trained already, and the head alone is trained.
        seeds: of weights and order, the more important first.
        lr: learning rate of Adam.
        epochs: at most.
        probed: heads in whose runs a linear probe is trained on each layer.
        note: what has to be said with every number.
    """

    name: str
    title: str
    data: Callable[[], Split]
    backbone: Callable[[], nn.Module]
    heads: Mapping[str, tuple[str, Mapping[str, Any]]]
    layers: tuple[str, ...]
    classes: tuple[str, ...]
    find: Layers = "blocks"
    pool: Pool = None
    freeze: bool = False
    seeds: tuple[int, ...] = _SEEDS
    lr: float = 3e-4
    epochs: int = 50
    probed: tuple[str, ...] = ("laya", "last", "laya-causal")
    note: str = ""

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Adam as in Keras."""
        return torch.optim.Adam(parameters, lr=self.lr, eps=1e-7)

    def build(self, head: str, seed: int) -> LayaModel:
        """Backbone and head with the weights of a seed; torch's global generator is left as it was."""
        kind, options = self.heads[head]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            backbone = self.backbone()
            model = LayaModel(
                backbone,
                len(self.classes),
                layers=self.find,
                pool=self.pool,
                head=kind,
                freeze=self.freeze,
                example=self.data().test[0][:1],
                **options,
            )
            if not self.freeze:
                glorot(model)
        return model


def _heads(laya: str, parameters: int, pre_norm: bool, **sizes: Any) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """All heads with the same common width; the MLP on the last layer has as many parameters as LAYA."""
    common = {"width": sizes["width"], "pre_norm": pre_norm}
    return {
        "laya": (laya, sizes),
        "last": ("last", {}),
        "concat": ("concat", common),
        "scalar-mix": ("scalar-mix", common),
        "mean": ("mean", common),
        "last-mlp": ("last-mlp", {"parameters": parameters}),
        "laya-causal": ("laya", {**sizes, "pre_norm": pre_norm, "causal": True}),
    }


def _mlp(name: str, title: str, widths: tuple[int, ...], layers: tuple[str, ...], parameters: int,
         seeds: tuple[int, ...]) -> Experiment:  # fmt: skip
    heads = _heads("laya-paper", parameters, False, width=96, hidden=192, temperature=1.5)
    return Experiment(name, title, fashion, lambda: mlp(widths), heads, layers, FASHION_CLASSES, seeds=seeds)


def _frozen(name: str, title: str, data: Callable[[], Split], backbone: Callable[[], nn.Module], depth: int,
            parameters: int, **more: Any) -> Experiment:  # fmt: skip
    layers = tuple(f"{'stage' if depth == 5 else 'block'} {i + 1}" for i in range(depth))
    heads = _heads("laya", parameters, True, width=128)
    classes = _DIGITS if data is digits else CIFAR_CLASSES
    return Experiment(name, title, data, backbone, heads, layers, classes, freeze=True, lr=1e-3, **more)


EXPERIMENTS = {
    one.name: one
    for one in (
        _mlp("fashion-mnist", "Fashion-MNIST, MLP of 512, 256 and 128 units", (512, 256, 128),
             ("512 units", "256 units", "128 units"), 143_341, _SEEDS),
        _mlp("fashion-mnist-6", "Fashion-MNIST, MLP of 512, 512, 256, 256, 128 and 128 units",
             (512, 512, 256, 256, 128, 128), ("512 a", "512 b", "256 a", "256 b", "128 a", "128 b"), 285_520,
             _SEEDS[:5]),
        Experiment("cifar-10", "CIFAR-10, depthwise-separable CNN of 32, 64 and 128 channels", cifar_10,
                   lambda: depthwise_cnn((32, 64, 128), CIFAR_MEAN, CIFAR_STD),
                   _heads("laya-paper", 80_013, False, width=128, hidden=128, temperature=1.0),
                   ("stage 1", "stage 2", "stage 3"), CIFAR_CLASSES, find=("stage1", "stage2", "stage3"),
                   seeds=_SEEDS[1:4], lr=1e-3, epochs=15),
        _frozen("frozen-efficientnet", "EfficientNet-Lite0 (ImageNet), frozen; 10,000 images of CIFAR-10", cifar_some,
                lite0, 5, 233_871, find="stages"),
        _frozen("frozen-cifar-vit", "ViT of 8 blocks trained on CIFAR-10, frozen; 10,000 images of CIFAR-10",
                cifar_some, cifar_vit, 8, 341_650, pool="cls",
                note="The backbone was trained on these training images too, so all heads see features of images that "
                     "it knows."),
        _frozen("frozen-digits-vit", "ViT of 8 blocks trained on scenes of digits, frozen; scenes of digits", digits,
                digits_vit, 8, 316_690, pool="cls",
                note="The backbone was trained on scenes of the same training digits."),
        _frozen("frozen-overwritten", "Backbone whose last blocks were overwritten (ViT-S/14), frozen; 10,000 images "
                "of CIFAR-10", cifar_some, overwritten_vit, 12, 998_422, pool="cls",
                note="Backbone whose last blocks were overwritten: LastLayer must lose here, which proves nothing."),
    )
}  # fmt: skip
"""All experiments by name."""

GROUPS = {
    "fashion-mnist": ("fashion-mnist",),
    "fashion-mnist-6": ("fashion-mnist-6",),
    "cifar-10": ("cifar-10",),
    "frozen": ("frozen-efficientnet", "frozen-cifar-vit", "frozen-digits-vit", "frozen-overwritten"),
}
"""What the command is given -> experiments."""
