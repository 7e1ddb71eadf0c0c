"""Do scores of layers say what happens without them? Every attribution, beside chance, an oracle and depth alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...attr.laya_post_hoc import post_hoc
from ...metrics.layer_ablation import LayerProtocol
from ...metrics.layers import _of_top, leave_one_layer_out
from ...metrics.ranking import rank_correlation
from ..checks import effective_weights
from ..explanation import HeadExplanation
from ..mixing import MixingHead

PROTOCOLS = {
    str(one): one
    for one in (
        LayerProtocol(),
        LayerProtocol(sign="abs"),
        LayerProtocol(target="logit"),
        LayerProtocol("renormalise"),
        LayerProtocol("renormalise", sign="abs"),
        LayerProtocol("zero_rescore"),
        LayerProtocol("mean"),
        LayerProtocol("mean_rescore"),
    )
}
"""What is done to a layer and measured then; the first fits the paper's numbers best."""

ALPHA, CONTRIBUTION, DEPTH, MEAN = "alpha", "contribution", "depth prior", "mean alpha"
OF_CLASS = "mean alpha of the predicted class"
IG = "integrated gradients, prob"


def attributions(head: MixingHead, features: Sequence[Tensor], reference: Sequence[Tensor]) -> dict[str, Tensor]:
    """Scores of the layers of each sample for the predicted class, `[n, L]`, by name.

    Args:
        head: a head in float64.
        features: of the samples, `[n, d_i]` each.
        reference: features that the mean of `alpha` is taken over.
    """
    with torch.no_grad():
        seen, usual = head.explain(features), head.explain(reference)
    mean, classes = usual.alpha.mean(0), seen.logits.argmax(1)
    exact = seen.contributions[torch.arange(len(classes)), :, classes]
    found = {
        ALPHA: seen.alpha,
        CONTRIBUTION: exact,
        "size of contribution": exact.abs(),
        "alpha x length": effective_weights(seen),
    }
    of: Any
    for of in ("logit", "prob"):
        found[f"gradient x input, {of}"] = post_hoc(head, seen.z, classes, "gradient_x_input", output=of)
        found[f"integrated gradients, {of}"] = post_hoc(head, seen.z, classes, "integrated_gradients", output=of)
    found["gradient norm, logit"] = post_hoc(head, seen.z, classes, "gradient_norm")
    found["Grad-CAM, logit"] = post_hoc(head, seen.z, classes, "grad_cam")
    found[MEAN] = mean.expand_as(seen.alpha)
    found[OF_CLASS] = of_class(usual, mean)[classes]
    found[DEPTH] = torch.arange(seen.alpha.shape[1], dtype=mean.dtype).expand_as(seen.alpha)
    return found


def of_class(seen: HeadExplanation, mean: Tensor) -> Tensor:
    """Mean weights of the samples predicted as each class, `[C, L]`; `mean` for a class that never was."""
    predicted = seen.logits.argmax(1)
    of = lambda c: seen.alpha[predicted == c].mean(0) if bool((predicted == c).any()) else mean
    return torch.stack([of(c) for c in range(seen.logits.shape[1])])


def faithfulness(head: MixingHead, features: Sequence[Tensor], reference: Sequence[Tensor]) -> dict[str, Any]:
    """Faithfulness and Deletion@1 of each attribution under each protocol, for the predicted class.

    Args:
        head: trained; it stays as it is.
        features: of the samples, `[n, d_i]` each.
        reference: features that means are taken over.

    Returns:
        Protocol -> attribution -> Spearman's correlation over layers, mean over the samples where it is defined
        ("faithfulness"), number of the others ("undefined"), and the mean drop without the highest-scored layer
        ("deletion"). "random" is what chance gives in expectation, "oracle" the effects themselves.
    """
    head = copy.deepcopy(head).double().eval().requires_grad_(False)
    wide = [h.double() for h in features]
    scores = attributions(head, wide, [h.double() for h in reference])
    found: dict[str, Any] = {}
    for name, protocol in PROTOCOLS.items():
        signed = LayerProtocol(protocol.operator, protocol.target, protocol.class_)
        effects = leave_one_layer_out(head, wide, protocol=signed, reference=reference)
        ranked = effects.abs() if protocol.sign == "abs" else effects
        rows = {row: _row(given, ranked, effects) for row, given in scores.items()}
        rows["random"] = {"faithfulness": 0.0, "undefined": 0, "deletion": float(effects.mean())}
        rows["oracle"] = {"faithfulness": 1.0, "undefined": 0, "deletion": float(effects.amax(1).mean())}
        found[name] = rows
    return found


def completeness(head: MixingHead, features: Sequence[Tensor]) -> float:
    """Error of integrated gradients of the logit: mean size of what their sum lacks, over the mean size of the sum."""
    head = copy.deepcopy(head).double().eval().requires_grad_(False)
    seen = head.explain([h.double() for h in features])
    classes = seen.logits.argmax(1)
    found = post_hoc(head, seen.z, classes, "integrated_gradients").sum(1)
    wanted = seen.logits.amax(1) - head.classifier.bias[classes]  # the logit without any layer is the bias
    return float((found - wanted).abs().mean() / wanted.abs().mean())


def _row(scores: Tensor, ranked: Tensor, effects: Tensor) -> dict[str, float]:
    value = rank_correlation(scores, ranked)
    return {
        "faithfulness": float(value.nanmean()),
        "undefined": int(value.isnan().sum()),
        "deletion": float(_of_top(effects, scores).mean()),
    }
