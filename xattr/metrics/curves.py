"""Removing and adding features in the order of a map: deletion, insertion, and what two curves say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..trace import Target
from .features import Unit, feature_values, ranked
from .fills import Baseline
from .perturber import Bound, Perturber, Score


@dataclass(frozen=True)
class Protocol:
    """How a number came about; two numbers with different protocols cannot be compared.

    Attributes:
        metric: its name.
        unit: what was removed: "patch", "pixel", "region" or "layer".
        operator: how: "drop_tokens", "mean", "black", "blur", "road", ...
        score: "prob" or "logit".
        steps: number of steps behind the first point.
        class_: "predicted" or "given".
        images: number of images.
    """

    metric: str
    unit: str
    operator: str
    score: str
    steps: int
    class_: str
    images: int


@dataclass(frozen=True)
class Curve:
    """The score while features are removed or added, for each image, and the area below it.

    Attributes:
        value: area for each image, divided by the range of fractions, `[B]`.
        curve: scores, `[B, S + 1]`.
        fractions: share of features removed (deletion) or kept (insertion), 0 and 1 included, `[B, S + 1]`.
        ties: share of features whose value is that of another, `[B]`.
        higher_is_better: how to read `value`.
        protocol: how it was measured.
    """

    value: Tensor
    curve: Tensor
    fractions: Tensor
    ties: Tensor
    higher_is_better: bool
    protocol: Protocol


@dataclass(frozen=True)
class CurvePair:
    """Deletion and insertion with one operator, which share their end points.

    Insertion is the curve of the least relevant features removed first (LeRF), deletion that of the most relevant first
    (MoRF), so that `difference` is insertion less deletion, SRG and ABPC at once.

    Attributes:
        deletion: most relevant features go first.
        insertion: most relevant features come first.
        difference: insertion less deletion, higher is better, `[B]`.
        aopc: mean drop below the first point of the deletion curve, higher is better, `[B]`.
    """

    deletion: Curve
    insertion: Curve
    difference: Tensor
    aopc: Tensor


def deletion(
    forward_func: Callable[..., Any] | Bound,
    inputs: Any,
    attributions: Tensor,
    target: Target = None,
    *,
    unit: Unit = None,
    baseline: Baseline = None,
    score: Score = "prob",
    steps: int = 28,
    seed: int = 0,
    additional_forward_args: Any = None,
    show_progress: bool = False,
) -> Curve:
    """The class's score while its most relevant features are removed; a lower area is better.

        value = integral over q in [0, 1] of f(x without the first q F features)

    Args:
        forward_func: a module or any callable, or a bound perturber.
        inputs: images `[B, C, H, W]`.
        attributions: maps `[B, C, h, w]`; channels are summed first, signs count.
        target: class index, or one for each image; `None` is the predicted class.
        unit: "patch", "pixel", or labels of regions; `None` for patches where the model has them.
        baseline: how features are removed; `None` for "drop_tokens" where that can be done, else "mean".
        score: softmax probability or logit.
        steps: how many; more than there are features means one feature a step.
        seed: of the order among ties.
        additional_forward_args: what else the model takes.
        show_progress: whether to draw a progress bar.

    Returns:
        One area and one curve for each image; nothing depends on the other images.

    Raises:
        ValueError: maps that do not fit the images, or a setting that is none of its choices.

    Example:
        >>> from xattr.attr import GradSkip
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> from xattr.metrics import deletion
        >>> model, x = embedded_model("class-token"), digit_scenes("report", n=2).images
        >>> found = deletion(model, x, GradSkip(model).attribute(x, upsample=None))
        >>> found.curve.shape, found.protocol.operator
        (torch.Size([2, 29]), 'drop_tokens')
    """
    settings = (target, unit, baseline, score, steps, seed, additional_forward_args, show_progress)
    return _curves(forward_func, inputs, attributions, settings, ("deletion",))["deletion"]


def insertion(
    forward_func: Callable[..., Any] | Bound,
    inputs: Any,
    attributions: Tensor,
    target: Target = None,
    *,
    unit: Unit = None,
    baseline: Baseline = None,
    score: Score = "prob",
    steps: int = 28,
    seed: int = 0,
    additional_forward_args: Any = None,
    show_progress: bool = False,
) -> Curve:
    """The class's score while its most relevant features come back; a higher area is better. Arguments as `deletion`.

    value = integral over q in [0, 1] of f(x with the first q F features only)
    """
    settings = (target, unit, baseline, score, steps, seed, additional_forward_args, show_progress)
    return _curves(forward_func, inputs, attributions, settings, ("insertion",))["insertion"]


def insertion_deletion(
    forward_func: Callable[..., Any] | Bound,
    inputs: Any,
    attributions: Tensor,
    target: Target = None,
    *,
    unit: Unit = None,
    baseline: Baseline = None,
    score: Score = "prob",
    steps: int = 28,
    seed: int = 0,
    additional_forward_args: Any = None,
    show_progress: bool = False,
) -> CurvePair:
    """Both curves at once: their end points are the same, so a pair costs `2 steps` scores. Arguments as `deletion`."""
    settings = (target, unit, baseline, score, steps, seed, additional_forward_args, show_progress)
    found = _curves(forward_func, inputs, attributions, settings, ("deletion", "insertion"))
    first, second = found["deletion"], found["insertion"]
    aopc = (first.curve[:, :1] - first.curve).mean(1)
    return CurvePair(first, second, second.value - first.value, aopc)


def _curves(
    forward_func: Any, inputs: Any, attributions: Tensor, settings: tuple[Any, ...], wanted: tuple[str, ...]
) -> dict[str, Curve]:
    target, unit, baseline, score, steps, seed, extra, show_progress = settings
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps={steps!r}; expected a positive whole number.")
    bound = bound_of(forward_func, inputs, target, unit, baseline, score, extra, seed)
    values = values_of(bound, attributions)
    batch = len(values)
    # Features that an image does not have come last and are never counted.
    order, ties = ranked(values.masked_fill(~bound.valid, -torch.inf), seed)
    rank = order.argsort(1)
    sizes = bound.valid.sum(1)
    steps = min(steps, int(sizes.max()))
    number = (torch.arange(steps + 1, device=values.device) * sizes[:, None] / steps).round().long()
    gone = rank[:, None] < number[..., None]  # [B, S + 1, F]
    keeps = {"deletion": ~gone, "insertion": gone}
    joined = [keeps["deletion"]] if wanted == ("deletion",) else [keeps["insertion"]]
    if len(wanted) == 2:
        joined = [keeps["deletion"], keeps["insertion"][:, 1:-1]]
    scores = bound.score(torch.cat(joined, 1), show_progress)
    curves = {wanted[0]: scores[:, : steps + 1]}
    if len(wanted) == 2:
        first = curves["deletion"]
        curves["insertion"] = torch.cat([first[:, -1:], scores[:, steps + 1 :], first[:, :1]], 1)
    fractions = number / sizes[:, None]
    return {
        name: Curve(
            value=torch.trapezoid(curve, fractions.to(curve.dtype), dim=1),
            curve=curve,
            fractions=fractions,
            ties=ties,
            higher_is_better=name == "insertion",
            protocol=Protocol(
                metric=name,
                unit=bound.unit,
                operator=bound.operator,
                score=score,
                steps=steps,
                class_="predicted" if target is None else "given",
                images=batch,
            ),
        )
        for name, curve in curves.items()
    }


def bound_of(
    forward_func: Any,
    inputs: Any,
    target: Target,
    unit: Unit,
    baseline: Baseline,
    score: Score,
    extra: Any = None,
    seed: int = 0,
) -> Bound:
    """What is given if it is bound already, else a perturber of a model, bound to images."""
    if isinstance(forward_func, Bound):
        return forward_func
    return Perturber(forward_func, unit, baseline, score, extra, seed=seed).bind(inputs, target)


def values_of(bound: Bound, attributions: Tensor) -> Tensor:
    """One value for each feature, `[B, F]`."""
    batch = len(bound.valid)
    if len(attributions) != batch:
        raise ValueError(f"found {len(attributions)} attributions for {batch} images; expected one for each.")
    if attributions.ndim == 2 and attributions.shape[1] == bound.count:
        return attributions.detach().double()
    if bound.labels is None:
        raise ValueError(f"attributions {list(attributions.shape)}; expected [B, {bound.count}].")
    return feature_values(attributions, bound.labels, bound.count, bound.grid)
