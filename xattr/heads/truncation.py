"""Using fewer layers: cutting a backbone off, and stopping early where the head is sure; measured, not believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..metrics.cost import count_flops
from ..trace import InputError
from ..trace.modules import in_evaluation_mode
from .cache import Data
from .collect import collect
from .mixing import LayaHead, MixingHead
from .model import LayaModel
from .training import accuracy


class TruncatedModel(nn.Module):
    """A trained model that runs only up to one of its layers; the rest of the backbone does not run.

    The scorer sees the mean of each missing feature, and the missing weights are shared among the others. Small weights
    do not say that a block is useless: later blocks are computed from it. So a backbone is cut off behind a layer and
    never in front of one.

    Args:
        model: a trained model with a head that mixes layers.
        keep: number of layers, from the first.
        features: of a data set, `[n, d_i]` for each layer, for the means.

    Raises:
        InputError: another head, or another number of layers.
    """

    def __init__(self, model: LayaModel, keep: int, features: Sequence[Tensor]) -> None:
        super().__init__()
        if not isinstance(model.head, MixingHead):
            raise InputError(f"a {type(model.head).__name__} needs all layers; LayaHead, ScalarMixHead do not.")
        if not 1 <= keep <= len(model.layers):
            raise InputError(f"keep={keep!r}; expected 1 to {len(model.layers)} layers.")
        self.model, self.keep = model, keep
        with torch.no_grad(), in_evaluation_mode(model.head):
            self.register_buffer("mean", model.head.adapters(features).mean(0))

    def forward(self, inputs: Any) -> Tensor:
        """Logits `[B, C]`."""
        model = self.model
        with torch.no_grad(), in_evaluation_mode(model.backbone):
            enough = lambda found: len(found) == self.keep
            return self.classify(collect(model.backbone, model.layers, inputs, model._pool, enough))

    def classify(self, features: Sequence[Tensor]) -> Tensor:
        """Logits `[B, C]` from the features of the layers kept, or of all layers."""
        head = self.model.head
        assert isinstance(head, MixingHead) and isinstance(self.mean, Tensor)
        known = head.adapters(features[: self.keep], partial=True)
        z = torch.cat([known, self.mean[self.keep :].expand(len(known), -1, -1)], 1)
        alpha = head.weigh(head.scores(z)[:, : self.keep])
        logits: Tensor = head.classifier((alpha[..., None] * known).sum(1))
        return logits


@dataclass(frozen=True)
class Truncation:
    """A backbone cut off behind one layer.

    Attributes:
        keep: number of layers kept.
        accuracy: on the data, without training anew.
        cost: FLOPs of one example, as a share of the whole model's.
    """

    keep: int
    accuracy: float
    cost: float


def truncations(model: LayaModel, features: Sequence[Tensor], data: Data, example: Any) -> list[Truncation]:
    """Accuracy and cost of a trained model cut off behind each of its layers.

    Args:
        model: a trained model with a head that mixes layers.
        features: of the training data, for the means of what is missing.
        data: inputs and labels on which to measure.
        example: one input, for the FLOPs.
    """

    def flops(module: nn.Module) -> int:
        with torch.no_grad(), in_evaluation_mode(module):
            return count_flops(lambda: module(example))

    whole = flops(model)
    found = []
    for keep in range(1, len(model.layers) + 1):
        cut = TruncatedModel(model, keep, features)
        found.append(Truncation(keep, accuracy(cut, data), flops(cut) / whole))
    return found


class EarlyExitModel(nn.Module):
    """Stops the backbone as soon as a causal head is sure of every example in the batch.

    Args:
        model: a trained model with `LayaHead(causal=True)`.
        threshold: probability of the predicted class at which an example is decided.

    Raises:
        InputError: the head is not causal: a joint scorer needs all layers before it gives the first weight.

    Example:
        >>> import torch
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> from xattr.heads import EarlyExitModel, LayaModel
        >>> model = LayaModel(embedded_model("class-token"), 10, pool="cls", causal=True)
        >>> logits, used = EarlyExitModel(model, threshold=0.0).decide(digit_scenes("report", n=3).images)
        >>> logits.shape, used.tolist()
        (torch.Size([3, 10]), [1, 1, 1])
    """

    def __init__(self, model: LayaModel, threshold: float) -> None:
        super().__init__()
        if not (isinstance(model.head, LayaHead) and model.head.causal):
            raise InputError("early exit needs a LayaModel with head='laya', causal=True, trained as such.")
        self.model, self.threshold = model, threshold

    def forward(self, inputs: Any) -> Tensor:
        """Logits `[B, C]` of each example where it was decided."""
        return self.decide(inputs)[0]

    @torch.no_grad()
    def decide(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Logits, and the number of layers that each example needed, `[B]`."""
        model, head = self.model, self.model.head
        assert isinstance(head, LayaHead)
        with in_evaluation_mode(self.model):
            enough = lambda found: bool(exits(head.prefix_logits(found), self.threshold)[1].all())
            prefixes = head.prefix_logits(collect(model.backbone, model.layers, inputs, model._pool, enough))
        used, _ = exits(prefixes, self.threshold)
        return prefixes[torch.arange(len(prefixes)), used - 1], used


def exits(prefix_logits: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """After how many layers each example is decided, `[B]` (all of them if never), and whether it is, `[B]`.

    Args:
        prefix_logits: logits after each layer, `[B, L, C]`.
        threshold: probability of the predicted class at which an example is decided.
    """
    sure = prefix_logits.softmax(2).amax(2) >= threshold
    first = sure.double().argmax(1) + 1
    decided = sure.any(1)
    return torch.where(decided, first, prefix_logits.shape[1]), decided
