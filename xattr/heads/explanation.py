"""What a head says about its own decision."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class HeadExplanation:
    """The logits of a head, taken apart by layer. L counts the layers, C the classes.

    The head is linear behind its weights, so `contributions.sum(1) + bias` *is* `logits`.

    Attributes:
        logits: `[B, C]`.
        alpha: weight of each layer, `[B, L]`; rows sum to 1.
        scores: what the softmax of `alpha` takes, before the temperature, `[B, L]`.
        contributions: signed share of each layer in each logit, `alpha_i * (w_c . z_i)`, `[B, L, C]`.
        bias: of the classifier, `[C]`.
        z: the adapted features, `[B, L, width]`.
    """

    logits: Tensor
    alpha: Tensor
    scores: Tensor
    contributions: Tensor
    bias: Tensor
    z: Tensor
