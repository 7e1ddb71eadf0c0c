"""Heads to compare with, whose decision does not come apart by layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ._parts import Adapters, checked_features, checked_widths, positive


class ProbeHead(nn.Module):
    """A linear classifier on one layer.

    Args:
        widths: width of each layer's feature.
        num_classes: number of classes.
        layer: the layer, counted from 0, or from -1 for the last.
    """

    def __init__(self, widths: Sequence[int], num_classes: int, *, layer: int = -1) -> None:
        super().__init__()
        self.widths = checked_widths(widths)
        if isinstance(layer, bool) or not isinstance(layer, int) or not -len(self.widths) <= layer < len(self.widths):
            raise ValueError(f"layer={layer!r}; expected one of 0..{len(self.widths) - 1}, or from -1 for the last.")
        self.layer = layer % len(self.widths)
        self.classifier = nn.Linear(self.widths[self.layer], positive("num_classes", num_classes))

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Logits `[B, C]` from the features of all layers."""
        logits: Tensor = self.classifier(checked_features(features, self.widths)[self.layer])
        return logits


class LastLayerHead(ProbeHead):
    """The usual head: a linear classifier on the last layer.

    Args:
        widths: width of each layer's feature.
        num_classes: number of classes.
    """

    def __init__(self, widths: Sequence[int], num_classes: int) -> None:
        super().__init__(widths, num_classes)


class LastLayerMLPHead(nn.Module):
    """One hidden layer on the last layer, with about as many parameters as another head, so that size is no excuse.

    Args:
        widths: width of each layer's feature.
        num_classes: number of classes.
        parameters: how many it should have; `None` for those of a `LayaHead` with its defaults and this `width`.
        width: of the `LayaHead` that it is matched with.
    """

    def __init__(
        self, widths: Sequence[int], num_classes: int, *, parameters: int | None = None, width: int = 128
    ) -> None:
        super().__init__()
        from .mixing import LayaHead

        self.widths = checked_widths(widths)
        if parameters is None:
            parameters = sum(p.numel() for p in LayaHead(widths, num_classes, width=width).parameters())
        classes, last = positive("num_classes", num_classes), self.widths[-1]
        hidden = max(1, round((positive("parameters", parameters) - classes) / (last + 1 + classes)))
        self.net = nn.Sequential(nn.Linear(last, hidden), nn.GELU(), nn.Linear(hidden, classes))

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Logits `[B, C]` from the features of all layers."""
        logits: Tensor = self.net(checked_features(features, self.widths)[-1])
        return logits


class ConcatHead(nn.Module):
    """All adapted layers side by side, one hidden layer, a classifier.

    Args:
        widths: width of each layer's feature.
        num_classes: number of classes.
        width: width of each adapted feature and of the hidden layer.
        pre_norm: whether a LayerNorm stands in front of each adapter.
    """

    def __init__(self, widths: Sequence[int], num_classes: int, *, width: int = 128, pre_norm: bool = True) -> None:
        super().__init__()
        self.adapters = Adapters(widths, width, pre_norm)
        self.post = nn.Sequential(nn.Linear(len(self.adapters.widths) * width, width), nn.GELU())
        self.classifier = nn.Linear(width, positive("num_classes", num_classes))

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of each layer's feature."""
        return self.adapters.widths

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Logits `[B, C]` from the features of all layers."""
        joined: Tensor = torch.flatten(self.adapters(features), 1)
        logits: Tensor = self.classifier(self.post(joined))
        return logits
