"""The backbones of the paper's experiments, and frozen ones in the place of those that cannot be had."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ...datasets.borrowed import efficientnet_lite0, saliency_vit
from ...datasets.cifar import cifar_model
from ...datasets.models import embedded_model
from .._parts import glorot

_HALF = (0.5, 0.5, 0.5)


def mlp(widths: Iterable[int], inputs: int = 784) -> nn.Sequential:
    """Linear, LayerNorm, GELU for each width, as Keras begins: Glorot's weights, zero biases, an epsilon of 1e-3."""
    parts: list[nn.Module] = [nn.Flatten()]
    before = inputs
    for width in widths:
        parts += [nn.Linear(before, width), nn.LayerNorm(width, eps=1e-3), nn.GELU()]
        before = width
    network = nn.Sequential(*parts)
    glorot(network)
    return network


class Pixels(nn.Module):
    """Pixels from 0 to 255, channel by channel less a mean and over a standard deviation (both of pixels / 255)."""

    def __init__(self, mean: Iterable[float], std: Iterable[float]) -> None:
        super().__init__()
        self.register_buffer("mean", 255 * torch.tensor(list(mean))[:, None, None])
        self.register_buffer("std", 255 * torch.tensor(list(std))[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """`[n, C, h, w]` in float."""
        assert isinstance(self.mean, Tensor) and isinstance(self.std, Tensor)
        normalised = (images - self.mean) / self.std
        return normalised.contiguous(memory_format=torch.channels_last)


class ChannelNorm(nn.LayerNorm):
    """A LayerNorm over the channels of each cell of `[n, C, h, w]`."""

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def separable(before: int, width: int, stride: int) -> nn.Sequential:
    """Depthwise 3 x 3, pointwise, LayerNorm over channels, GELU."""
    return nn.Sequential(
        nn.Conv2d(before, before, 3, stride, 1, groups=before),
        nn.Conv2d(before, width, 1),
        ChannelNorm(width, eps=1e-3),
        nn.GELU(),
    )


def depthwise_cnn(widths: Iterable[int], mean: Iterable[float], std: Iterable[float]) -> nn.Sequential:
    """Stages of two separable convolutions; the second of each but the last halves height and width."""
    widths = list(widths)
    parts: dict[str, nn.Module] = {"pixels": Pixels(mean, std)}
    before = 3
    for i, width in enumerate(widths):
        stride = 1 if i + 1 == len(widths) else 2
        parts[f"stage{i + 1}"] = nn.Sequential(separable(before, width, 1), separable(width, width, stride))
        before = width
    network = nn.Sequential()
    for name, part in parts.items():
        network.add_module(name, part)
    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.xavier_uniform_(part.weight)
            assert part.bias is not None
            nn.init.zeros_(part.bias)
    return network


class Resized(nn.Module):
    """A network that wants larger images than there are."""

    def __init__(self, network: nn.Module, pixels: Pixels, size: int) -> None:
        super().__init__()
        self.pixels, self.network, self.size = pixels, network, size

    def forward(self, images: Tensor) -> Tensor:
        """What the network returns for the images, enlarged bilinearly."""
        made: Tensor = self.network(
            nn.functional.interpolate(self.pixels(images), size=(self.size, self.size), mode="bilinear")
        )
        return made


def lite0() -> nn.Module:
    """EfficientNet-Lite0, trained on ImageNet, on images enlarged to 160 x 160."""
    return Resized(efficientnet_lite0(), Pixels(_HALF, _HALF), 160)


def cifar_vit() -> nn.Module:
    """The library's transformer of 8 blocks, trained on CIFAR-10."""
    return nn.Sequential(Pixels(_HALF, _HALF), cifar_model())


def digits_vit() -> nn.Module:
    """The library's transformer of 8 blocks, trained on scenes of digits."""
    return embedded_model("class-token")


def overwritten_vit() -> nn.Module:
    """A ViT-S/14 that was fine-tuned to mark objects, on images enlarged to 112 x 112."""
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    backbone = saliency_vit().backbone
    backbone.set_input_size((112, 112))
    return Resized(backbone, Pixels(mean, std), 112)
