"""Removing and adding features in the order of a map: deletion, insertion, and what two curves say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..trace import Target
from ..trace.run import Score
from .features import Features, Unit, ranked
from .fills import Baseline
from .perturber import Binds, Bound, Perturber


@dataclass(frozen=True)
class Protocol:
    """How a number came about; two numbers with different protocols cannot be compared.

    Attributes:
        metric: its name.
        unit: what was removed: "patch", "pixel", "region", "token" or "layer".
        operator: how: "drop_tokens", "mean", "black", "blur", "road", ...
        score: what was measured: "prob", "logit", ...
        steps: number of steps behind the first point.
        class_: "predicted" or "given".
        images: number of images.
        empty: the operator where nothing is kept, if it is another one.
    """

    metric: str
    unit: str
    operator: str
    score: str
    steps: int
    class_: str
    images: int
    empty: str | None = None


@dataclass(frozen=True)
class Curve:
    """The score while features are removed or added, for each image, and the area below it.

    Attributes:
        value: area for each image, divided by the range of fractions, `[B]`.
        inner: area without the point at which nothing is kept, divided likewise: what `value` is where that point is
            measured by another operator (`protocol.empty`), which makes the curve jump. NaN for one step.
        curve: scores, `[B, S + 1]`; an image with fewer features than others has some points several times.
        fractions: share of features removed (deletion) or kept (insertion), 0 and 1 included, `[B, S + 1]`.
        ties: share of features whose value is that of another, `[B]`.
        higher_is_better: how to read `value`.
        protocol: how it was measured.
    """

    value: Tensor
    inner: Tensor
    curve: Tensor
    fractions: Tensor
    ties: Tensor
    higher_is_better: bool
    protocol: Protocol


@dataclass(frozen=True)
class CurvePair:
    """Deletion and insertion with one operator, which share their end points.

    Insertion is the curve of the least relevant features removed first (LeRF), deletion that of the most relevant first
    (MoRF).

    Attributes:
        deletion: most relevant features go first.
        insertion: most relevant features come first.
        difference: insertion less deletion, which is SRG and ABPC, higher is better, `[B]`.
        aopc: mean drop below the first point of the deletion curve, higher is better, `[B]`.
    """

    deletion: Curve
    insertion: Curve
    difference: Tensor
    aopc: Tensor


def deletion(
    forward_func: Callable[..., Any] | Binds | Bound,
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
        forward_func: a module or any callable; or a `Perturber`, bound or not, that holds the settings.
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
    forward_func: Callable[..., Any] | Binds | Bound,
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
    forward_func: Callable[..., Any] | Binds | Bound,
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
    # Few features have their points several times.
    new = torch.nn.functional.pad(first.fractions.diff(dim=1) > 0, (1, 0), value=True)
    aopc = ((first.curve[:, :1] - first.curve) * new).sum(1) / new.sum(1)
    return CurvePair(first, second, second.value - first.value, aopc)


def _curves(
    forward_func: Any, inputs: Any, attributions: Tensor, settings: tuple[Any, ...], wanted: tuple[str, ...]
) -> dict[str, Curve]:
    target, unit, baseline, score, steps, seed, extra, show_progress = settings
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps={steps!r}; expected a positive whole number.")
    bound = bound_of(forward_func, inputs, target, unit, baseline, score, extra, seed)
    features = bound.features
    values = features.values(attributions)
    order, ties = ranked(values, seed, features.valid)
    rank = order.argsort(1)
    sizes = features.valid.sum(1)
    steps = min(steps, int(sizes.max()))
    number = (torch.arange(steps + 1, device=values.device) * sizes[:, None] / steps).round().long()
    first = rank[:, None] < number[..., None]  # [B, S + 1, F]
    if wanted == ("insertion",):
        curves = {"insertion": bound.score(first, show_progress)}
    elif wanted == ("deletion",):
        curves = {"deletion": bound.score(~first, show_progress)}
    else:
        scores = bound.score(torch.cat([~first, first[:, 1:-1]], 1), show_progress)
        gone, come = scores[:, : steps + 1], scores[:, steps + 1 :]
        curves = {"deletion": gone, "insertion": torch.cat([gone[:, -1:], come, gone[:, :1]], 1)}
    fractions = number.double() / sizes[:, None]
    return {name: _curve(name, curve, fractions, ties, features) for name, curve in curves.items()}


def _curve(name: str, curve: Tensor, fractions: Tensor, ties: Tensor, features: Features) -> Curve:
    steps, insertion = curve.shape[1] - 1, name == "insertion"
    # Of few features some fractions come twice, so that the empty picture may be more than one point.
    empty = fractions == (0 if insertion else 1)
    between = fractions.diff(dim=1).masked_fill(empty[:, 1:] | empty[:, :-1], 0)
    width, area = between.sum(1), (between * (curve[:, 1:] + curve[:, :-1]) / 2).sum(1)
    return Curve(
        value=torch.trapezoid(curve, fractions, dim=1),
        inner=torch.where(width > 0, area / width.where(width > 0, 1), torch.nan),
        curve=curve,
        fractions=fractions,
        ties=ties,
        higher_is_better=insertion,
        protocol=Protocol(
            metric=name,
            unit=features.unit,
            operator=features.operator,
            score=features.score,
            steps=steps,
            class_=features.class_,
            images=len(curve),
            empty=features.empty,
        ),
    )


def bound_of(
    forward_func: Callable[..., Any] | Binds | Bound,
    inputs: Any,
    target: Target,
    unit: Unit,
    baseline: Baseline,
    score: Score,
    extra: Any = None,
    seed: int = 0,
) -> Bound:
    """A perturber of a model, bound to examples.

    Raises:
        ValueError: a perturber is given, and settings beside it; or it is bound to other pictures.
    """
    if not isinstance(forward_func, (Bound, Binds)):
        return Perturber(forward_func, unit, baseline, score, extra, seed=seed).bind(inputs, target)
    settings = {"unit": unit, "baseline": baseline, "score": None if score == "prob" else score, "extra": extra}
    settings["target"] = target if isinstance(forward_func, Bound) else None
    if given := [name for name, value in settings.items() if value is not None]:
        raise ValueError(f"found a perturber, and {', '.join(given)} beside it; expected them in the perturber.")
    if not isinstance(forward_func, Bound):
        return forward_func.bind(inputs, target)
    bound = forward_func.features.inputs
    if isinstance(inputs, Tensor) and bound is not None and inputs is not bound and not _same(inputs, bound):
        raise ValueError("the perturber is bound to other inputs than these; bind one to these.")
    return forward_func


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.to(other), other)
