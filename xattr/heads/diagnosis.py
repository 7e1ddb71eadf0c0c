"""Can the depth at which a head looks tell that it errs? Beside what its probabilities tell."""

from __future__ import annotations

import torch
from torch import Tensor

from ..metrics.ranking import auroc
from ..trace import InputError
from .explanation import HeadExplanation
from .profiles import Profile


def error_detection(explanation: HeadExplanation, labels: Tensor, profile: Profile) -> dict[str, float]:
    """How well some scores rank wrong predictions above right ones, as areas under the ROC curve.

    Args:
        explanation: of a head, of examples that the profile was not made from.
        labels: their true classes, `[n]`.
        profile: mean `alpha` by *predicted* class, of training or validation data.

    Returns:
        AUROC of the distance of `alpha` from the predicted class's profile ("profile"), of one minus the highest
        probability ("max_softmax"), of the entropy, and of minus the lead over the second class ("margin"). A profile
        that does no better than the others is no evidence of anything. NaN where all are right, or all wrong.

    Raises:
        InputError: the profile is by true label, which is not known where errors are to be found.
    """
    if profile.by != "predicted":
        raise InputError('the profile is by true label; expected profile(..., by="predicted").')
    logits = explanation.logits.detach().double().cpu()
    predicted, p = logits.argmax(1), logits.softmax(1)
    usual = profile.mean[1:][predicted].double()
    usual = torch.where(usual.isnan(), profile.mean[0].double(), usual)  # a class that was never predicted
    top = p.topk(2, 1).values
    wrong = predicted != labels.cpu()
    scores = {
        "profile": (explanation.alpha.detach().double().cpu() - usual).abs().sum(1),
        "max_softmax": 1 - top[:, 0],
        "entropy": -(p * p.clamp_min(1e-300).log()).sum(1),
        "margin": top[:, 1] - top[:, 0],
    }
    return {name: float(auroc(score, wrong)) for name, score in scores.items()}
