"""What heads are made of, and the checks on their sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def checked_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """Widths of the layers as a tuple.

    Raises:
        ValueError: there are none, or one is no positive whole number.
    """
    found = tuple(widths)
    if not found or any(isinstance(w, bool) or not isinstance(w, int) or w < 1 for w in found):
        raise ValueError(f"widths={list(found)}; expected the width of each layer, at least one positive whole number.")
    return found


def positive(name: str, value: Any) -> int:
    """A size that is a positive whole number.

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r}; expected a positive whole number.")
    return value


def checked_features(features: Sequence[Tensor], widths: tuple[int, ...]) -> list[Tensor]:
    """Features of all layers, `[B, d_i]` each.

    Raises:
        ValueError: their number or a shape does not fit.
    """
    if isinstance(features, Tensor) or len(features) != len(widths):
        found = f"one tensor {list(features.shape)}" if isinstance(features, Tensor) else f"{len(features)} tensors"
        raise ValueError(f"the head takes a list with the features of {len(widths)} layers; found {found}.")
    for i, (feature, width) in enumerate(zip(features, widths, strict=True)):
        if feature.ndim != 2 or feature.shape[1] != width or len(feature) != len(features[0]):
            raise ValueError(
                f"feature {i} has the shape {list(feature.shape)}; expected [{len(features[0])}, {width}]: pool tokens "
                f"or cells first."
            )
    return list(features)


class Adapters(nn.Module):
    """One linear map `d_i -> width` a layer, behind a LayerNorm if `pre_norm`.

    Args:
        widths: width of each layer.
        width: common width.
        pre_norm: whether to normalise each feature first.
    """

    def __init__(self, widths: Sequence[int], width: int, pre_norm: bool) -> None:
        super().__init__()
        self.widths = checked_widths(widths)
        self.norms = nn.ModuleList(nn.LayerNorm(d) if pre_norm else nn.Identity() for d in self.widths)
        self.maps = nn.ModuleList(nn.Linear(d, positive("width", width)) for d in self.widths)

    def forward(self, features: Sequence[Tensor], partial: bool = False) -> Tensor:
        """Features `[B, d_i]` to `[B, L, width]`; with `partial` the first layers will do."""
        count = min(len(features), len(self.widths)) if partial else len(self.widths)
        found = checked_features(features, self.widths[:count])
        return torch.stack([self.maps[i](self.norms[i](h)) for i, h in enumerate(found)], 1)


def glorot(module: nn.Module) -> None:
    """Glorot's uniform weights and zero biases in every linear map, as Keras begins."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def temperature(value: Any) -> float:
    """A temperature.

    Raises:
        ValueError: it is not a finite number above 0.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"temperature={value!r}; expected a finite number above 0.")
    return float(value)


def rate(name: str, value: Any) -> float:
    """A probability below 1.

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f"{name}={value!r}; expected a probability from 0 to below 1.")
    return float(value)
