"""Layers of a head as what can be removed, so that every ordering metric works on scores of layers.

A layer loses its path to the head here; the backbone stays whole. `xattr.metrics.layers` has the same ablations with
intervals, chance and an oracle beside them. L counts layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor
from tqdm import tqdm

from ..heads.mixing import MixingHead
from ..trace import Target
from ..trace.outputs import resolve
from .features import Features
from .layer_ablation import Ablation, LayerProtocol, Measure, Operator
from .perturber import Bound


@dataclass(frozen=True)
class LayerPerturber:
    """How layers are removed from a head that mixes them, `y = W sum_i alpha_i z_i + b`.

    Features come from the images by `LayaModel.features`:

        bound = LayerPerturber(model.head).bind(model.features(images))
        deletion(bound, images, scores)  # scores [B, L], for instance of LayaLayerAttribution; images are not read

    All is computed in float64 on the head's device, which must have it (MPS has not), by a copy of the head; scores are
    on the CPU. Differences of probabilities near 1 lose their digits, and layers tie that do not: `score="log_prob"`
    keeps them. Under "drop" the logit without a set of layers is that of all less the sum of their contributions.

    Args:
        head: a trained `LayaHead`, `ScalarMixHead` or `MeanHead`; it stays as it is.
        operator: "drop", "renormalise", "zero_rescore", "mean", "mean_rescore" or "resample", as in `LayerProtocol`.
        score: softmax probability, its natural logarithm, or logit of the class.
        reference: features, `[n, d_i]` each, that means and other examples are taken from. `None` for the given ones:
            scores under "mean", "mean_rescore" and "resample", and only they, then depend on the other examples.
        seed: of "resample", which draws by the place of an example in the batch.

    Example:
        >>> import torch
        >>> from xattr.heads import ScalarMixHead
        >>> from xattr.metrics import leave_one_out
        >>> from xattr.metrics.layer_features import LayerPerturber
        >>> head, features = ScalarMixHead([4, 4, 4], num_classes=3), [torch.randn(5, 4) for _ in range(3)]
        >>> bound, seen = LayerPerturber(head, score="logit").bind(features, target=1), head.explain(features)
        >>> [round(value, 6) for value in leave_one_out(bound, features, seen.contributions[..., 1]).tolist()]
        [1.0, 1.0, 1.0, 1.0, 1.0]
    """

    head: MixingHead
    operator: Operator = "drop"
    score: Measure = "prob"
    reference: Sequence[Tensor] | None = None
    seed: int = 0

    def bind(self, features: Sequence[Tensor], target: Target = None) -> Bound:
        """Fix examples and classes; without a target the predicted classes. Cost: one pass of the head.

        A score costs one mixture of the head for each step, and holds one at a time.

        Args:
            features: of all layers, `[B, d_i]` each.
            target: class index, or one for each example.

        Raises:
            TypeError: the head does not mix layers.
            ValueError: a setting is none of its choices, or features, classes or logits do not fit the head.
        """
        if self.score not in get_args(Measure):
            raise ValueError(f"score={self.score!r}; expected one of {list(get_args(Measure))}.")
        protocol = LayerProtocol(self.operator, self.score)
        found = Ablation.of(self.head, features, protocol, None, self.reference, self.seed)
        if target is None:
            return _Layers(found, "predicted")
        classes = torch.as_tensor(resolve(target, found.logits), device=found.z.device) % found.logits.shape[1]
        return _Layers(dataclasses.replace(found, classes=classes.expand(len(found.z))[:, None]), "given")


class _Layers:
    """Removed layers do not reach the head."""

    def __init__(self, ablation: Ablation, class_: str) -> None:
        self._ablation, protocol = ablation, ablation.protocol
        valid = torch.ones(ablation.alpha.shape, dtype=torch.bool)
        self.features = Features(valid, "layer", protocol.operator, protocol.target, class_)

    def score(self, keep: Tensor, show_progress: bool = False) -> Tensor:
        steps = tqdm(keep.unbind(1), disable=not show_progress)
        return torch.stack([self._ablation.value(~kept) for kept in steps], 1)
