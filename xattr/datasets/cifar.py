"""A small trained Vision Transformer for photographs of ten everyday classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .models import shipped_or_checkout

if TYPE_CHECKING:
    from PIL.Image import Image
    from timm.models.vision_transformer import VisionTransformer

__all__ = ["CIFAR_CLASSES", "cifar_model", "cifar_photographs"]

CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""What the outputs of `cifar_model` mean."""


class ConvolutionStem(nn.Module):
    """Two convolutions of stride 2 with batch norm, in place of timm's patch embedding."""

    def __init__(self, img_size: int = 32, embed_dim: int = 72, **_: Any) -> None:
        super().__init__()
        half = embed_dim // 2
        self.layers = nn.Sequential(
            nn.Conv2d(3, half, 3, 2, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(),
            nn.Conv2d(half, embed_dim, 3, 2, 1, bias=False),
            nn.BatchNorm2d(embed_dim),
        )
        self.num_patches = (img_size // 4) ** 2

    def forward(self, x: Tensor) -> Tensor:
        """Images to tokens, `[n, 64, embed_dim]`."""
        tokens: Tensor = self.layers(x).flatten(2).transpose(1, 2)
        return tokens


def untrained_cifar_model(seed: int = 0) -> VisionTransformer:
    """The architecture of `cifar_model` with initial weights; torch's global generator is left as it was."""
    from timm.models.vision_transformer import VisionTransformer

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        stem: Any = ConvolutionStem
        model: Any = VisionTransformer(
            img_size=32, num_classes=10, embed_dim=72, depth=8, num_heads=6, mlp_ratio=3.0, embed_layer=stem
        )
    half = (0.5, 0.5, 0.5)
    model.pretrained_cfg = {
        "input_size": (3, 32, 32),
        "mean": half,
        "std": half,
        "crop_pct": 1.0,
        "num_classes": 10,
        "label_names": CIFAR_CLASSES,
    }
    ready: VisionTransformer = model.eval()
    return ready


def cifar_model(seed: int = 0) -> VisionTransformer:
    """A timm Vision Transformer with a convolution stem and a class token, trained on CIFAR-10.

    8 blocks of 72 channels and 6 heads on 8 x 8 tokens, 452 thousand parameters, right on 74.5 % of the test images.
    Trained by ``benchmarks/train_cifar.py`` on the training images of CIFAR-10 (A. Krizhevsky, Learning Multiple Layers
    of Features from Tiny Images, 2009), which are not part of this package.

    Args:
        seed: 0 is part of the installed library; 1 is in its source repository.

    Returns:
        The model in ``eval()``, float32, on the CPU; it maps ``[n, 3, 32, 32]`` in [-1, 1] to ``[n, 10]``, the classes
        of `CIFAR_CLASSES`.

    Raises:
        FileNotFoundError: the weights of this seed live in the repository and this is an installed copy.

    Example:
        >>> import torch
        >>> from xattr.datasets import cifar_model
        >>> cifar_model()(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """
    from safetensors.torch import load_file

    model = untrained_cifar_model()
    stored = load_file(shipped_or_checkout(f"cifar-{seed}.safetensors", seed))
    model.load_state_dict({key: v.float() if v.is_floating_point() else v for key, v in stored.items()})
    return model


def cifar_card(seed: int = 0) -> dict[str, Any]:
    """Data, command, versions and test accuracy of `cifar_model`, as written right after the training."""
    card: dict[str, Any] = json.loads(shipped_or_checkout(f"cifar-{seed}.json", seed).read_text(encoding="utf-8"))
    return card


def cifar_photographs() -> dict[str, Image]:
    """Free photographs of objects in three of the classes, 224 x 224, by the name of the class.

    They and their crops were chosen because the model with seed 0 is right on them, so they say nothing about how good
    it is. Authors and licences (CC0 and public domain) stand beside them in ``photographs/LICENCES.md``.

    Example:
        >>> from xattr.datasets import cifar_photographs
        >>> sorted(cifar_photographs())
        ['deer', 'horse', 'ship']
    """
    from PIL import Image

    found = {}
    for path in sorted(Path(__file__).with_name("photographs").glob("*.jpg")):
        with Image.open(path) as picture:
            found[path.stem] = picture.convert("RGB")
    return found
