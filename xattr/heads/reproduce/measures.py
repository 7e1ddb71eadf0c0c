"""What is measured of a trained model, as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...metrics.cost import count_flops
from ...metrics.ranking import rank_correlation
from ...trace.modules import in_evaluation_mode
from ..checks import conditioning, effective_weights, scorer_randomisation
from ..collect import collect
from ..diagnosis import error_detection
from ..explanation import HeadExplanation
from ..mixing import LayaHead, MixingHead
from ..model import LayaModel
from ..plain import ProbeHead
from ..profiles import Profile, profile
from ..training import fit
from ..truncation import TruncatedModel, exits

MOMENTS = ("mean", "std", "half_width")
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999)
KEPT = 300
"""Test samples whose weights are kept in a result, so that runs can be compared sample by sample."""

_CHUNK = 1000


def in_chunks(function: Callable[[Any], Tensor], features: Sequence[Tensor]) -> Tensor:
    """A function of the features of all samples, on some at a time."""
    with torch.no_grad():
        return torch.cat([function(list(part)) for part in zip(*(h.split(_CHUNK) for h in features), strict=True)])


def right(logits: Tensor, labels: Tensor) -> float:
    """Share of samples whose highest logit is their label."""
    return float((logits.argmax(1) == labels).double().mean())


def macro_f1(predicted: Tensor, labels: Tensor) -> float:
    """Mean over the classes of the harmonic mean of precision and recall."""
    scores = []
    for c in labels.unique():
        hits = float(((predicted == c) & (labels == c)).sum())
        scores.append(2 * hits / float((predicted == c).sum() + (labels == c).sum()))
    return sum(scores) / len(scores)


def sizes(model: LayaModel, image: Tensor) -> dict[str, Any]:
    """Parameters, and FLOPs of one example, of the backbone and of the head."""
    with torch.no_grad(), in_evaluation_mode(model):
        features = model.features(image)
        whole, head = count_flops(lambda: model(image)), count_flops(lambda: model.head(features))
    return {
        "parameters": {
            "backbone": sum(p.numel() for p in model.backbone.parameters()),
            "head": sum(p.numel() for p in model.head.parameters()),
        },
        "flops": {"backbone": whole - head, "head": head},
    }


def profiles(attribution: Tensor, labels: Tensor, predicted: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Mean attribution by true and by predicted class, of all samples, of those predicted rightly and wrongly."""
    found: dict[str, Any] = {}
    by: Any
    which: Any
    for by in ("label", "predicted"):
        for which in ("all", "correct", "wrong"):
            one = profile(attribution, labels, predicted, by=by, which=which, classes=classes)
            found[f"{by}/{which}"] = {
                "counts": one.counts.tolist(),
                **{moment: _rounded(getattr(one, moment)) for moment in MOMENTS},
            }
    return found


def profile_of(stored: dict[str, Any], by: str, which: Any, classes: Sequence[str]) -> Profile:
    """A stored profile as an object again."""
    tensors = (torch.tensor([[torch.nan if v is None else v for v in row] for row in stored[k]]) for k in MOMENTS)
    mean, std, half = tensors
    return Profile(("all", *classes), torch.tensor(stored["counts"]), mean, std, half, by, which)


def attention(seen: HeadExplanation, labels: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Profiles of the weights and of the contributions to the predicted class, and the weights of the first samples."""
    predicted = seen.logits.argmax(1)
    exact = seen.contributions[torch.arange(len(predicted)), :, predicted]
    found: dict[str, Any] = {
        "mean_of_highest_alpha": float(seen.alpha.amax(1).mean()),
        "alpha": profiles(seen.alpha, labels, predicted, classes),
        "contribution": profiles(exact, labels, predicted, classes),
    }
    if not bool((seen.alpha == seen.alpha[0]).all()):
        found["alpha_of_first"] = [[float(f"{a:.4g}") for a in row] for row in seen.alpha[:KEPT].tolist()]
    return found


def checks(head: MixingHead, features: Sequence[Tensor], seen: HeadExplanation, labels: Tensor) -> dict[str, Any]:
    """Does the attention mean anything: other weights, a scorer drawn anew, features rescaled to one length.

    "rescaled": adapters and weights are changed together so that every layer's feature is one long; no logit changes,
    and `alpha` becomes `effective_weights`. Stored are its agreement with `alpha` and in how many samples another layer
    is then the highest.
    """
    swapped = conditioning(head, features, labels)
    lengths = effective_weights(seen)
    found: dict[str, Any] = {
        "conditioning": {k: getattr(swapped, k) for k in ("own", "permuted", "mean", "uniform")},
        "rescaled": {
            "rank_correlation": float(rank_correlation(lengths.double(), seen.alpha.double()).nanmean()),
            "other_top": float((lengths.argmax(1) != seen.alpha.argmax(1)).double().mean()),
            "mean": _rounded(lengths.mean(0)[None])[0],
            "length": _rounded(torch.linalg.vector_norm(seen.z, dim=-1).mean(0)[None])[0],
        },
    }
    if isinstance(head, LayaHead):
        found["scorer_randomisation"] = scorer_randomisation(head, features).tolist()
    return found


def flagging(head: MixingHead, validation: HeadExplanation, named: Tensor, test: HeadExplanation,
             truth: Tensor) -> dict[str, float]:  # fmt: skip
    """AUROC of finding errors, by the distance of `alpha` from its profile and by what the probabilities say."""
    classes = [str(c) for c in range(test.logits.shape[1])]
    usual = profile(validation.alpha, named, validation.logits.argmax(1), by="predicted", classes=classes)
    return error_detection(test, truth, usual)


def truncated(model: LayaModel, train: Sequence[Tensor], test: Sequence[Tensor], labels: Tensor,
              image: Tensor) -> list[dict[str, float]]:  # fmt: skip
    """Accuracy of the model cut off behind each layer, not trained anew, and its share of the whole's FLOPs."""
    with torch.no_grad(), in_evaluation_mode(model):
        whole, found = count_flops(lambda: model(image)), []
        for keep in range(1, len(model.layers) + 1):
            cut = TruncatedModel(model, keep, train)
            logits = in_chunks(cut.classify, test)
            cost = count_flops(lambda: cut(image))  # noqa: B023
            found.append({"keep": keep, "accuracy": right(logits, labels), "cost": cost / whole})
    return found


def depths(model: LayaModel, image: Tensor) -> list[float]:
    """FLOPs of the backbone up to each layer, as a share of all of its FLOPs; heads are not counted."""
    with torch.no_grad(), in_evaluation_mode(model):
        whole, found = count_flops(lambda: model.backbone(image)), []
        for keep in range(1, len(model.layers) + 1):
            enough = lambda so_far: len(so_far) == keep  # noqa: B023
            cost = count_flops(lambda: collect(model.backbone, model.layers, image, model._pool, enough))  # noqa: B023
            found.append(cost / whole)
    return found


def probes(train: tuple[Sequence[Tensor], Tensor], validation: tuple[Sequence[Tensor], Tensor],
           test: Sequence[Tensor], seed: int) -> Tensor:  # fmt: skip
    """Logits of a linear classifier trained on each layer alone, `[n, L, C]`; features are standardised first."""
    (features, labels), (held_out, named) = train, validation
    found = []
    for i in range(len(features)):
        mean, std = features[i].mean(0), features[i].std(0).clamp_min(1e-6)
        scaled = lambda given: [(given[i] - mean) / std]  # noqa: B023
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            probe = ProbeHead([features[i].shape[1]], int(labels.max()) + 1)
        fit(probe, (scaled(features), labels), (scaled(held_out), named), epochs=30, patience=3, seed=seed)
        found.append(in_chunks(probe, scaled(test)))
    return torch.stack(found, 1)


def early_exits(logits: Tensor, labels: Tensor, costs: Sequence[float]) -> list[dict[str, float]]:
    """Accuracy, and mean share of the backbone's FLOPs, when a sample stops at the first layer that is sure of a class.

    Args:
        logits: after each layer, `[n, L, C]`.
        labels: `[n]`.
        costs: share of the backbone's FLOPs up to each layer.
    """
    found = []
    for threshold in THRESHOLDS:
        used, _ = exits(logits, threshold)
        chosen = logits[torch.arange(len(logits)), used - 1]
        cost = torch.tensor(costs, dtype=torch.float64)[used - 1].mean()
        found.append({"threshold": threshold, "accuracy": right(chosen, labels), "cost": float(cost),
                      "layers": float(used.double().mean())})  # fmt: skip
    return found


def explained(head: nn.Module, features: Sequence[Tensor]) -> HeadExplanation | None:
    """The explanation of all samples, or `None` of a head that does not mix layers."""
    if not isinstance(head, MixingHead):
        return None
    with torch.no_grad(), in_evaluation_mode(head):
        return head.explain(features)


def _rounded(values: Tensor) -> list[list[float | None]]:
    return [[None if v != v else round(v, 4) for v in row] for row in values.tolist()]
