"""A head without some of its layers, in each of the ways in which a layer can be left out."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..heads._parts import checked_features
from ..heads.checks import _others
from ..heads.mixing import MixingHead

Operator = Literal["drop", "renormalise", "zero_rescore", "mean", "mean_rescore", "resample"]
Measure = Literal["logit", "log_prob", "prob"]
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True)
class LayerProtocol:
    """How a layer is left out, and what is measured then; `str` gives "drop/prob/predicted/signed".

    A choice that is not listed is a `ValueError`.

    Attributes:
        operator: "drop" removes the term `alpha_i z_i`; "renormalise" also divides the other weights by their sum,
            `1 - alpha_i` (equal weights where all are 0); "zero_rescore" sets `z_i = 0` and computes the scores again;
            "mean" sets `z_i` to its mean over samples, "mean_rescore" also computes the scores again; "resample" sets
            `z_i` to that of another sample. Weights are frozen where nothing else is said.
        target: `f`, of one class: its "logit", "log_prob" (natural logarithm) or "prob".
        class_: the one "predicted" with all layers, or that of `labels`, be it "true" or otherwise "given".
        sign: whether effects are ranked "signed" or by size, "abs". A deletion is signed under either.
    """

    operator: Operator = "drop"
    target: Measure = "prob"
    class_: Literal["predicted", "true", "given"] = "predicted"
    sign: Literal["signed", "abs"] = "signed"

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name}={getattr(self, name)!r}; expected one of {list(get_args(kind))}.")

    def __str__(self) -> str:
        return f"{self.operator}/{self.target}/{self.class_}/{self.sign}"


DEFAULT = LayerProtocol()


@dataclass(frozen=True)
class Ablation:
    """A head on some samples, ready to lose layers; `of` makes one.

    Attributes:
        head: a copy in float64 and evaluation mode.
        protocol: what is done and measured.
        z: the adapted features, `[B, L, width]`, with their weights `alpha`, `[B, L]`, and `logits`, `[B, C]`.
        other: what takes the place of `z` where layers are left out, `[B, L, width]`.
        classes: that `f` is of, `[B, 1]`.
    """

    head: MixingHead
    protocol: LayerProtocol
    z: Tensor
    alpha: Tensor
    logits: Tensor
    other: Tensor
    classes: Tensor

    @classmethod
    def of(cls, head: MixingHead, features: Sequence[Tensor], protocol: LayerProtocol, labels: Tensor | None,
           reference: Sequence[Tensor] | None, seed: int) -> Ablation:  # fmt: skip
        """Arguments and errors as of `layers.leave_one_layer_out`."""
        if not isinstance(head, MixingHead):
            raise TypeError(f"found a {type(head).__name__}; expected a head that mixes layers, such as LayaHead.")
        head = copy.deepcopy(head).double().eval().requires_grad_(False)
        wide = lambda given: [h.detach().to(head.classifier.weight) for h in checked_features(given, head.widths)]
        seen = head.explain(wide(features))
        n, classes = seen.logits.shape
        if not n or not bool(seen.logits.isfinite().all()) or (classes < 2 and protocol.target != "logit"):
            raise ValueError(f"logits [{n}, {classes}]; expected samples, finite numbers, 2 classes for probabilities.")
        source = seen.z if reference is None else head.adapters(wide(reference))
        other = torch.zeros_like(seen.z)
        if protocol.operator.startswith("mean"):
            other = source.mean(0).expand_as(seen.z)
        elif protocol.operator == "resample":
            if reference is None and n < 2:
                raise ValueError('operator="resample" found 1 sample; expected another one, or reference features.')
            draw = torch.from_numpy(np.random.RandomState(seed).randint(0, len(source), n))
            other = source[(_others(n, seed) if reference is None else draw).to(source.device)]
        found = seen.logits.argmax(1) if protocol.class_ == "predicted" else labels
        fits = isinstance(found, Tensor) and found.shape == (n,) and found.dtype in _WHOLE
        if found is None or not fits or not 0 <= int(found.min()) <= int(found.max()) < classes:
            shown = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f'class_="{protocol.class_}", labels {shown}; expected [{n}], whole, 0 to {classes - 1}.')
        which = found.to(seen.z.device, torch.int64)[:, None]
        return cls(head, protocol, seen.z, seen.alpha, seen.logits, other, which)

    def value(self, gone: Tensor) -> Tensor:
        """`f(x without)`, `[B]`; `gone`, `[L]` or `[B, L]`, is true at the layers left out."""
        logits = self.logits - self._change(gone)
        if self.protocol.target == "logit":
            return logits.gather(1, self.classes)[:, 0].cpu()
        odds = self._log_odds(logits)
        return (F.logsigmoid(odds) if self.protocol.target == "log_prob" else odds.sigmoid()).cpu()

    def effect(self, gone: Tensor) -> Tensor:
        """`f(x) - f(x without)`, signed, `[B]`, with more digits than the difference of two values has."""
        change = self._change(gone)
        if self.protocol.target == "logit":
            return change.gather(1, self.classes)[:, 0].cpu()
        before, after = self._log_odds(self.logits), self._log_odds(self.logits - change)
        if self.protocol.target == "log_prob":
            return (F.logsigmoid(before) - F.logsigmoid(after)).cpu()
        # Near p = 1 a difference is a multiple of 6e-8 in float32 and of 1e-16 in float64, so that layers tie which do
        # not. As p is sigmoid(log-odds), this product is the same difference with all its digits.
        high, low = torch.maximum(before, after), torch.minimum(before, after)
        return ((before - after).sign() * high.sigmoid() * (-low).sigmoid() * -torch.expm1(low - high)).cpu()

    def _change(self, gone: Tensor) -> Tensor:
        """What the logits lose, `[B, C]`."""
        gone, operator = gone.to(self.z.device), self.protocol.operator
        z, alpha = torch.where(gone[..., None], self.other, self.z), self.alpha
        if operator.endswith("rescore"):
            alpha = self.head.weigh(self.head.scores(z))
        elif operator == "renormalise":
            # Their own sum and not 1 - alpha_i, which has lost its digits where alpha_i is near 1.
            kept, equal = alpha.masked_fill(gone, 0), (~gone).double()
            rest = kept.sum(1, keepdim=True)
            alpha = torch.where(rest > 0, kept / rest, equal / equal.sum(-1, keepdim=True).clamp_min(1))
        # Term by term, so that a layer that stays adds no rounding: what "drop" changes is alpha_i w_c . z_i.
        return (self.alpha[..., None] * self.z - alpha[..., None] * z).sum(1) @ self.head.classifier.weight.mT

    def _log_odds(self, logits: Tensor) -> Tensor:
        """Of the class against all others, `[B]`."""
        rivals = logits.scatter(1, self.classes, -torch.inf).logsumexp(1)
        return logits.gather(1, self.classes)[:, 0] - rivals

    def each(self, k: int = 1) -> Tensor:
        """Effect of leaving out each subset of k layers, `[B, subsets]`; for k = 1 layer by layer."""
        layers = range(self.z.shape[1])
        subsets = [torch.tensor([i in s for i in layers]) for s in itertools.combinations(layers, k)]
        return torch.stack([self.effect(gone) for gone in subsets], 1)

    def checked(self, scores: Tensor, name: str = "scores") -> Tensor:
        """Scores `[B, L]` in float64."""
        shape = list(self.alpha.shape)
        if not isinstance(scores, Tensor) or list(scores.shape) != shape or not bool(scores.isfinite().all()):
            shown = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(f"{name}: found {shown}; expected finite numbers {shape}, one for each sample and layer.")
        return scores.detach().double().cpu()
