"""Does a map say what the model does? Correlations and checks on the perturbation engine, one value for each image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..trace import Target
from ..trace.run import Score
from .curves import bound_of
from .features import Unit, draws, ranked
from .fills import Baseline
from .perturber import Binds, Bound
from .ranking import correlation, rank_correlation


def leave_one_out(
    forward_func: Callable[..., Any] | Binds | Bound,
    inputs: Any,
    attributions: Tensor,
    target: Target = None,
    *,
    unit: Unit = None,
    baseline: Baseline = None,
    score: Score = "prob",
    show_progress: bool = False,
) -> Tensor:
    """Spearman's correlation of the map with what the score loses without each feature; higher is better.

    Args:
        forward_func: a module or any callable; or a `Perturber`, bound or not, that holds the settings.
        inputs: images `[B, C, H, W]`.
        attributions: maps `[B, C, h, w]`, or values of features `[B, F]`; signs count.
        target: class index, or one for each image; `None` is the predicted class.
        unit: as in `deletion`.
        baseline: as in `deletion`.
        score: as in `deletion`.
        show_progress: whether to draw a progress bar.

    Returns:
        `[B]` in float64; NaN where the map or the effects are constant.

    Cost: one score for each feature, and one of the whole image.

    Example:
        >>> import torch
        >>> from xattr.metrics import leave_one_out
        >>> f, x = lambda z: z.sum((1, 2, 3))[:, None], torch.rand(2, 1, 3, 3)
        >>> leave_one_out(f, x, x, unit="pixel", baseline=0).tolist()
        [1.0, 1.0]
    """
    bound = bound_of(forward_func, inputs, target, unit, baseline, score)
    features = bound.features
    alone = torch.eye(features.count, dtype=torch.bool, device=features.valid.device)
    values, drops = features.values(attributions), _drops(bound, alone[None], show_progress)
    rows = [rank_correlation(v[k][None], d[k][None]) for v, d, k in zip(values, drops, features.valid, strict=True)]
    return torch.cat(rows)


def violations(
    forward_func: Callable[..., Any] | Binds | Bound,
    inputs: Any,
    attributions: Tensor,
    target: Target = None,
    *,
    unit: Unit = None,
    baseline: Baseline = None,
    score: Score = "prob",
) -> Tensor:
    """Whether the sign of the strongest feature is wrong (Faithfulness Violation Test); their share, lower is better.

        phi_i * (f(x) - f(x without i)) < 0   for the feature i with the largest |phi_i|

    A map without negative values is only asked whether the score falls: judge signed methods by their signed map.
    Arguments as in `leave_one_out`. Cost: two scores an image.

    Returns:
        Boolean, `[B]`.
    """
    bound = bound_of(forward_func, inputs, target, unit, baseline, score)
    features = bound.features
    values = features.values(attributions).masked_fill(~features.valid, 0)
    first = ranked(values.abs(), valid=features.valid)[0][:, :1]
    gone = torch.zeros_like(features.valid).scatter(1, first, True)[:, None]
    return (values.gather(1, first) * _drops(bound, gone))[:, 0] < 0


def sensitivity_n(
    forward_func: Callable[..., Any] | Binds | Bound,
    inputs: Any,
    attributions: Tensor,
    target: Target = None,
    *,
    sizes: Sequence[float] = (0.05, 0.1, 0.2, 0.4, 0.8),
    samples: int = 32,
    unit: Unit = None,
    baseline: Baseline = None,
    score: Score = "prob",
    seed: int = 0,
    show_progress: bool = False,
) -> Tensor:
    """Pearson's correlation of the map's sum over random sets of features with what the score loses without them.

    Sensitivity-n (Ancona et al., arXiv:1711.06104), averaged over sizes of the sets; higher is better. The sets are the
    same for every image.

    Args:
        forward_func: as in `leave_one_out`.
        inputs: images.
        attributions: maps; signs count.
        target: class index, or one for each image.
        sizes: shares of the features in a set.
        samples: sets of each size.
        unit: as in `deletion`.
        baseline: as in `deletion`.
        score: as in `deletion`.
        seed: of the sets.
        show_progress: whether to draw a progress bar.

    Returns:
        `[B]` in float64; NaN where sums or effects are constant for all sizes.

    Raises:
        ValueError: fewer than 3 sets, or a size outside 0..1.
    """
    if samples < 3 or not all(0 < size < 1 for size in sizes):
        raise ValueError(
            f"samples={samples!r}, sizes={list(sizes)}; expected at least 3 sets, and shares between 0 and 1."
        )
    bound = bound_of(forward_func, inputs, target, unit, baseline, score)
    features = bound.features
    values = features.values(attributions).masked_fill(~features.valid, 0)
    keys = torch.from_numpy(draws(features.count, len(sizes) * samples, seed)).to(values.device).mT
    rank = keys.masked_fill(~features.valid[:, None], torch.inf).argsort(2).argsort(2)  # [B, sets, F]
    counts = torch.tensor(sizes, device=values.device) * features.valid.sum(1, keepdim=True)
    gone = rank < counts.round().clamp_min(1).repeat_interleave(samples, 1)[..., None]
    pairs = (gone * values[:, None]).sum(2), _drops(bound, gone, show_progress)
    return correlation(*(t.unflatten(1, (len(sizes), samples)) for t in pairs)).nanmean(1)


def saco(
    forward_func: Callable[..., Any] | Binds | Bound,
    inputs: Any,
    attributions: Tensor,
    target: Target = None,
    *,
    groups: int = 10,
    unit: Unit = None,
    baseline: Baseline = None,
    score: Score = "prob",
) -> Tensor:
    """Salience-guided faithfulness coefficient (SaCo): do groups of more relevant features matter more? -1 to 1.

    Features are cut by rank into groups. For each pair the difference of their summed salience counts for the map if
    removing the more salient group costs at least as much, else against it; the sum is divided by that of the absolute
    differences. Arguments as in `leave_one_out`, `groups` is their number, at
    most one a feature. Higher is better.

    Returns:
        `[B]` in float64; NaN where all groups are equally salient.
    """
    bound = bound_of(forward_func, inputs, target, unit, baseline, score)
    features = bound.features
    values = features.values(attributions)
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 2:
        raise ValueError(f"groups={groups!r}; expected a whole number from 2.")
    order, _ = ranked(values, valid=features.valid)
    rank, sizes = order.argsort(1), features.valid.sum(1, keepdim=True)
    group = torch.div(rank * sizes.clamp_max(groups), sizes, rounding_mode="floor")
    members = (group[:, None] == torch.arange(groups, device=values.device)[:, None]) & features.valid[:, None]
    drops = _drops(bound, members)
    salience = (members * values.masked_fill(~features.valid, 0)[:, None]).sum(2)
    some = members.any(2)
    pairs = (some[:, :, None] & some[:, None]).triu(1)
    weight = (salience[:, :, None] - salience[:, None]) * pairs
    agrees = torch.where(drops[:, :, None] >= drops[:, None], 1.0, -1.0)
    total = weight.abs().sum((1, 2))
    return (weight * agrees).sum((1, 2)) / torch.where(total > 0, total, torch.nan)


def _drops(bound: Bound, gone: Tensor, show_progress: bool = False) -> Tensor:
    """What the score loses without sets of features, `[B, S]` from a boolean `[B, S, F]` or `[1, S, F]`."""
    whole = bound.features.valid[:, None]
    scores = bound.score(torch.cat([whole, whole & ~gone], 1), show_progress)
    return scores[:, :1] - scores[:, 1:]
