"""Published protocols of removing and adding features, to the letter: numbers that may stand beside those of a paper.

`deletion` and `insertion` measure as this package thinks best. Papers differ in what they remove, how much a step, what
takes its place, and what they average: a `Preset` holds these choices, `PRESETS` has those of papers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..trace import Target
from ..trace.run import Score
from ._presets_table import PRESETS, Preset
from .curves import Protocol
from .features import Features, ranked
from .fills import Baseline
from .perturber import Bound, Perturber

__all__ = ["PRESETS", "Preset", "PresetResult", "evaluate_preset"]

_AT_ONCE = 2**28  # entries of the masks that are made at once: a mask for each step and pixel adds up


@dataclass(frozen=True)
class PresetResult:
    """What a protocol measures, for each image; the paper's number is the mean over images.

    Attributes:
        values: by the names that the paper uses, `[B]` in float64; shares, not percent.
        higher_is_better: how to read each of them.
        curves: the scores behind the values, `[B, points]`.
        fractions: share of the features that is gone (that is shown, for an insertion) at each point, `[B, points]`;
            percentages as they are called, not as they are rounded.
        ties: share of features whose value is that of another, `[B]`.
        protocols: how each curve was measured; the operator is the one that was used.
        preset: what was asked for.
    """

    values: dict[str, Tensor]
    higher_is_better: dict[str, bool]
    curves: dict[str, Tensor]
    fractions: dict[str, Tensor]
    ties: Tensor
    protocols: dict[str, Protocol]
    preset: Preset


def evaluate_preset(
    forward_func: Callable[..., Any] | Perturber,
    inputs: Any,
    attributions: Tensor,
    preset: str | Preset,
    target: Target = None,
    *,
    seed: int = 0,
    additional_forward_args: Any = None,
    show_progress: bool = False,
) -> PresetResult:
    """Faithfulness of maps as a paper measures it.

    Args:
        forward_func: a module or any callable; or a `Perturber` with what protocols do not decide: further arguments,
            budget, batch size, precision, seed of the noise.
        inputs: images `[B, C, H, W]`, preprocessed as in the paper.
        attributions: maps `[B, C, h, w]`, or values of features `[B, F]`; channels are summed first, signs count.
        preset: a name in `PRESETS`, or a protocol of your own.
        target: class index, or one for each image; `None` is the predicted class.
        seed: of the order among ties, and of the noise of "road" where no perturber holds it.
        additional_forward_args: what else the model takes.
        show_progress: whether to draw progress bars.

    Returns:
        One value of each kind for each image; nothing depends on the other images.

    Cost: one forward for each point of each curve, another for each operator; "aopc" takes the first curve twice.

    Raises:
        ValueError: there is no such protocol, it needs a target, maps do not fit, a perturber decides what the protocol
            does, accuracy is asked of a single output, or "black" of a model that does not say how it normalises (then
            replace `deletion` and `insertion` in the preset).
        UnsupportedModelError: patches are asked for, and the model has none (then replace `unit`).

    Example:
        >>> import torch
        >>> from xattr.metrics.presets import evaluate_preset
        >>> f = lambda z: torch.stack([z.sum((1, 2, 3)), -z.sum((1, 2, 3))], 1)
        >>> found = evaluate_preset(f, torch.ones(2, 3, 8, 8), torch.rand(2, 1, 8, 8), "rise")
        >>> found.higher_is_better, found.curves["deletion"].shape
        ({'deletion': False, 'insertion': True}, torch.Size([2, 9]))
    """
    chosen = PRESETS.get(preset) if isinstance(preset, str) else preset
    if not isinstance(chosen, Preset):
        raise ValueError(f"preset={preset!r}; expected a Preset, or one of {', '.join(PRESETS)}.")
    if chosen.class_ == "truth" and target is None:
        raise ValueError(f"target=None; this protocol ({chosen.source}) explains the true class: give target=labels.")
    settings = _settings(forward_func, additional_forward_args, seed)

    def bind(baseline: Baseline, score: Score) -> Bound:
        return dataclasses.replace(settings, unit=chosen.unit, baseline=baseline, score=score).bind(inputs, target)

    values, better, curves, fractions, protocols = {}, {}, {}, {}, {}
    bound = bind(chosen.deletion, chosen.score)
    ties = ranked(_values(bound.features, attributions, chosen), valid=bound.features.valid)[1]
    for name, order in zip(chosen.names, ("deletion", chosen.second), strict=False):
        if order != "deletion" and chosen.insertion is not chosen.deletion:
            bound = bind(chosen.insertion, chosen.score)
        curves[name], fractions[name] = _curve(bound, attributions, chosen, order, seed, show_progress)
        values[name] = _area(curves[name], fractions[name], chosen.area)
        better[name], protocols[name] = order != "deletion", _protocol(name, bound, fractions[name])
    if chosen.difference:
        (name, factor), (first, second) = chosen.difference, values.values()
        values[name], better[name] = factor * (second - first), True
    if chosen.complement:
        name = chosen.names[0]
        values[f"100 - {name}"], better[f"100 - {name}"] = 100 - 100 * values[name], True
    if chosen.aopc:
        bound, whole = bind(chosen.deletion, "prob"), dataclasses.replace(chosen, start="measured")
        scores, shares = _curve(bound, attributions, whole, "deletion", seed, show_progress)
        curves["aopc"], fractions["aopc"] = scores[:, :1] - scores[:, 1:], shares[:, 1:]
        values["aopc"], better["aopc"] = curves["aopc"].mean(1), True
        protocols["aopc"] = _protocol("aopc", bound, fractions["aopc"])
    return PresetResult(values, better, curves, fractions, ties, protocols, chosen)


def _settings(forward_func: Any, extra: Any, seed: int) -> Perturber:
    """The perturber that holds what no protocol decides."""
    if isinstance(forward_func, Bound):
        raise ValueError("found a bound perturber; expected a model or a Perturber, because the protocol binds it.")
    if not isinstance(forward_func, Perturber):
        return Perturber(forward_func, additional_forward_args=extra, seed=seed)
    taken = {"unit": forward_func.unit, "baseline": forward_func.baseline, "additional_forward_args": extra}
    taken["score"] = None if forward_func.score == "prob" else forward_func.score
    if given := [name for name, value in taken.items() if value is not None]:
        raise ValueError(
            f"found a perturber, and {', '.join(given)} given; expected unit, baseline and score from the protocol, "
            f"and further arguments in the perturber."
        )
    return forward_func


def _values(features: Features, maps: Tensor, preset: Preset) -> Tensor:
    """One value for each feature, `[B, F]`, from maps of the size that the protocol wants."""
    assert features.labels is not None
    size = tuple(features.labels.shape[-2:])
    fits = [list(size)] + ([list(features.grid)] if features.grid else [])
    if maps.ndim in (3, 4) and list(maps.shape[-2:]) not in fits:
        if preset.resize == "none":
            wanted = " or ".join(str(one) for one in fits)
            raise ValueError(f"maps of {list(maps.shape[-2:])}; this protocol does not resize, expected {wanted}.")
        if preset.resize == "nearest":
            maps = maps[:, None] if maps.ndim == 3 else maps
            maps = torch.nn.functional.interpolate(maps.detach().double(), size=size, mode="nearest")
    return features.values(maps)


def _curve(
    bound: Bound, maps: Tensor, preset: Preset, order: str, seed: int, show_progress: bool
) -> tuple[Tensor, Tensor]:
    """Scores and shares of features, `[B, points]` each."""
    features, valid = bound.features, bound.features.valid
    values = _values(features, maps, preset)
    if preset.ties == "random":
        by_value = ranked(values, seed, valid)[0]
    else:
        by_value = values.masked_fill(~valid, -torch.inf).argsort(dim=1, stable=True).flip(1)
    rank, sizes = by_value.argsort(1)[:, None], valid.sum(1)[:, None]
    numbers, shares = _points(features, preset, sizes)
    parts = []
    for part in numbers.split(max(1, _AT_ONCE // rank.numel()), dim=1):
        if order == "deletion":
            keep = rank >= part[..., None]
        else:
            keep = rank < (part if order == "insertion" else sizes - part)[..., None]
        parts.append(bound.score(keep, show_progress))
    scores = torch.cat(parts, 1)
    if preset.start == "zero" and order == "deletion":
        scores, shares = (torch.nn.functional.pad(x, (1, 0)) for x in (scores, shares))
    return scores, shares


def _points(features: Features, preset: Preset, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """How many features are gone (or shown) at each point, and their share, `[B, points]`."""
    steps = preset.steps
    if isinstance(steps, tuple):
        parts, whole = torch.tensor(steps), 100
    else:
        if steps == "row":
            if features.unit != "pixel":
                raise ValueError(f'steps="row" takes pixels; found unit {features.unit!r}. Give a number of steps.')
            assert features.labels is not None
            steps = features.labels.shape[0]
        whole = min(steps, int(sizes.max()))
        parts = torch.arange(1, whole + 1)
    if preset.start == "measured":
        parts = torch.nn.functional.pad(parts, (1, 0))
    product = parts.to(sizes.device) * sizes
    down = torch.div(product, whole, rounding_mode="floor")
    numbers = down if preset.rounding == "down" else (product.double() / whole).round().long()
    exact = numbers.double() / sizes
    return numbers, parts.double().to(sizes.device).expand_as(exact) / 100 if isinstance(preset.steps, tuple) else exact


def _area(curve: Tensor, shares: Tensor, area: str) -> Tensor:
    if area == "mean":
        return curve.mean(1)
    total = torch.trapezoid(curve, shares, dim=1)
    if area == "plain":
        return total
    width = shares[:, -1] - shares[:, 0]
    return torch.where(width > 0, total / width.where(width > 0, 1), curve[:, 0])


def _protocol(name: str, bound: Bound, shares: Tensor) -> Protocol:
    at, steps = bound.features, int((shares[0] > 0).sum())
    return Protocol(name, at.unit, at.operator, at.score, steps, at.class_, len(shares), at.empty)
