"""Heads that classify a weighted sum of all layers: what each layer contributes can be read off exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._parts import Adapters, glorot, positive, rate
from ._parts import temperature as _temperature
from .explanation import HeadExplanation


class MixingHead(nn.Module):
    """`y = W sum_i alpha_i z_i + b` with adapted features `z_i` and weights `alpha` that sum to 1.

    A head of this kind says how `alpha` comes about, in `scores`; everything else is here.

    Args:
        widths: width of each layer's feature.
        num_classes: number of classes.
        width: common width of the adapted features.
        pre_norm: whether a LayerNorm stands in front of each adapter.
        temperature: what scores are divided by.
        layer_dropout: probability with which a layer is left out for an image in training, its weight shared among the
            others; at least one stays.
    """

    def __init__(
        self,
        widths: Sequence[int],
        num_classes: int,
        *,
        width: int = 128,
        pre_norm: bool = True,
        temperature: float = 1.0,
        layer_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.adapters = Adapters(widths, width, pre_norm)
        self.classifier = nn.Linear(width, positive("num_classes", num_classes))
        self.temperature = _temperature(temperature)
        self.layer_dropout = rate("layer_dropout", layer_dropout)

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of each layer's feature."""
        return self.adapters.widths

    def scores(self, z: Tensor) -> Tensor:
        """One score for each layer from the adapted features `[B, L, width]`, `[B, L]`."""
        raise NotImplementedError

    def weigh(self, scores: Tensor) -> Tensor:
        """`alpha`, the softmax of `scores / temperature`; in training some layers may be left out."""
        if self.training and self.layer_dropout > 0:
            left_out = torch.rand_like(scores) < self.layer_dropout
            left_out &= ~left_out.all(1, keepdim=True)
            scores = scores.masked_fill(left_out, -torch.inf)
        return (scores / self.temperature).softmax(1)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Logits `[B, C]` from the features of all layers, `[B, d_i]` each."""
        z = self.adapters(features)
        logits: Tensor = self.classifier((self.weigh(self.scores(z))[..., None] * z).sum(1))
        return logits

    def explain(self, features: Sequence[Tensor]) -> HeadExplanation:
        """The logits and what each layer contributes to them, with gradients where they are on."""
        z = self.adapters(features)
        scores = self.scores(z)
        return self._explained(z, scores, self.weigh(scores))

    def _explained(self, z: Tensor, scores: Tensor, alpha: Tensor) -> HeadExplanation:
        contributions = alpha[..., None] * (z @ self.classifier.weight.mT)
        logits = contributions.sum(1) + self.classifier.bias
        return HeadExplanation(logits, alpha, scores, contributions, self.classifier.bias, z)


class LayaHead(MixingHead):
    """Layer-wise attention (LAYA, arXiv:2511.12723): the weights of the layers are computed from all of them.

        z_i = g_i(h_i)    s = MLP([psi(z_1), .., psi(z_L)])    alpha = softmax(s / temperature)
        y = W sum_i alpha_i z_i + b

    `alpha` says where the head looks, but its scale is not identified: a small weight on a long `z_i` can count for
    more than a large one on a short `z_j`. The exact share of layer i in logit c is `alpha_i * (w_c . z_i)`, which
    `explain` returns.

    Args:
        widths: width of each layer's feature.
        num_classes: number of classes.
        width: common width of the adapted features, `d*` in the paper.
        hidden: width of the scorer's hidden layer; `None` for twice `width`.
        psi: what the scorer sees of each `z_i`: "identity", or an "mlp" of two layers, the same for all.
        temperature: fixed and above 0.
        pre_norm: whether a LayerNorm stands in front of each adapter, for features that are not normalised.
        causal: score layer i from layers 1 to i alone, so that `prefix_logits` can stop early.
        layer_dropout: probability of leaving a layer out in training.
        zero_scores: start with equal weights (the scorer's last layer is 0); otherwise as torch initialises.

    Example:
        >>> import torch
        >>> from xattr.heads import LayaHead
        >>> head = LayaHead([16, 32], num_classes=3, width=8)
        >>> seen = head.explain([torch.randn(5, 16), torch.randn(5, 32)])
        >>> seen.alpha.shape, bool(torch.allclose(seen.contributions.sum(1) + seen.bias, seen.logits))
        (torch.Size([5, 2]), True)
    """

    def __init__(
        self,
        widths: Sequence[int],
        num_classes: int,
        *,
        width: int = 128,
        hidden: int | None = None,
        psi: Literal["identity", "mlp"] = "identity",
        temperature: float = 1.0,
        pre_norm: bool = True,
        causal: bool = False,
        layer_dropout: float = 0.0,
        zero_scores: bool = True,
    ) -> None:
        super().__init__(
            widths,
            num_classes,
            width=width,
            pre_norm=pre_norm,
            temperature=temperature,
            layer_dropout=layer_dropout,
        )
        if psi not in ("identity", "mlp"):
            raise ValueError(f'psi={psi!r}; expected "identity" or "mlp".')
        hidden = positive("hidden", 2 * width if hidden is None else hidden)
        count = len(self.widths)
        self.causal = bool(causal)
        self.psi: nn.Module = nn.Identity()
        if psi == "mlp":
            self.psi = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.scorer = nn.Sequential(nn.Linear(count * width, hidden), nn.GELU(), nn.Linear(hidden, count))
        if zero_scores:
            last = self.scorer[-1]
            nn.init.zeros_(last.weight)  # type: ignore[arg-type]
            nn.init.zeros_(last.bias)  # type: ignore[arg-type]

    @classmethod
    def paper(cls, widths: Sequence[int], num_classes: int, *, width: int = 96, hidden: int = 192,
              temperature: float = 1.5) -> LayaHead:  # fmt: skip
        """As the paper's Fashion-MNIST configuration: no norm in front, Glorot's weights, zero biases."""
        head = cls(
            widths, num_classes, width=width, hidden=hidden, temperature=temperature, pre_norm=False, zero_scores=False
        )
        glorot(head)
        return head

    def scores(self, z: Tensor) -> Tensor:
        """One score for each layer, `[B, L]`; of a causal head also for the first layers alone."""
        seen = self.psi(z)
        if not self.causal:
            joint: Tensor = self.scorer(seen.flatten(1))
            return joint
        so_far = torch.ones(z.shape[1], z.shape[1], dtype=z.dtype, device=z.device).tril()
        # Layer i is scored with the later ones set to 0.
        each = so_far[None, :, :, None] * seen[:, None]
        missing = len(self.widths) - z.shape[1]
        scored: Tensor = self.scorer(F.pad(each, (0, 0, 0, missing)).flatten(2))
        return scored.diagonal(dim1=1, dim2=2)

    def prefix_logits(self, features: Sequence[Tensor]) -> Tensor:
        """Logits after each layer, from the layers so far alone, `[B, L, C]`; the last are those of `forward`.

        Args:
            features: of all layers, or of the first alone.

        Raises:
            ValueError: the head is not causal: each of its scores needs all layers.
        """
        if not self.causal:
            raise ValueError("prefix_logits needs LayaHead(..., causal=True): a joint scorer needs all layers first.")
        z = self.adapters(features, partial=True)
        scores = self.scores(z)
        later = torch.ones(scores.shape[1], scores.shape[1], dtype=torch.bool, device=z.device).triu(1)
        alpha = (scores[:, None] / self.temperature).masked_fill(later, -torch.inf).softmax(2)
        logits: Tensor = self.classifier(alpha @ z)
        return logits


class ScalarMixHead(MixingHead):
    """One global weight for each layer, learned: `alpha = softmax(s)` (as in ELMo, arXiv:1802.05365).

    Args:
        widths: width of each layer's feature.
        num_classes: number of classes.
        width: common width of the adapted features.
        pre_norm: whether a LayerNorm stands in front of each adapter.
        layer_dropout: probability of leaving a layer out in training.
    """

    def __init__(
        self,
        widths: Sequence[int],
        num_classes: int,
        *,
        width: int = 128,
        pre_norm: bool = True,
        layer_dropout: float = 0.0,
    ) -> None:
        super().__init__(widths, num_classes, width=width, pre_norm=pre_norm, layer_dropout=layer_dropout)
        self.mix = nn.Parameter(torch.zeros(len(self.widths)))

    def scores(self, z: Tensor) -> Tensor:
        """The same scores for every image, `[B, L]`."""
        return self.mix.to(z.dtype).expand(len(z), -1)


class MeanHead(MixingHead):
    """The plain mean of all adapted layers.

    Args:
        widths: width of each layer's feature.
        num_classes: number of classes.
        width: common width of the adapted features.
        pre_norm: whether a LayerNorm stands in front of each adapter.
    """

    def __init__(self, widths: Sequence[int], num_classes: int, *, width: int = 128, pre_norm: bool = True) -> None:
        super().__init__(widths, num_classes, width=width, pre_norm=pre_norm)

    def scores(self, z: Tensor) -> Tensor:
        """Zeros, `[B, L]`."""
        return z.new_zeros(z.shape[:2])
