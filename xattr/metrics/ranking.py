"""How well numbers rank: the area under the ROC curve, and correlation of ranks."""

from __future__ import annotations

import numpy as np
import scipy.stats
import torch
from torch import Tensor


def auroc(scores: Tensor, positive: Tensor) -> Tensor:
    """Chance that a positive has a higher score than a negative, ties counting half, along the last axis.

    Args:
        scores: `[..., n]`.
        positive: boolean, of the same shape.

    Returns:
        `[...]`, 0 to 1, in float64; NaN where all or none are positive.

    Example:
        >>> import torch
        >>> from xattr.metrics import auroc
        >>> auroc(torch.tensor([0.1, 0.4, 0.4, 0.9]), torch.tensor([False, True, False, True]))
        tensor(0.8750, dtype=torch.float64)
    """
    if scores.shape != positive.shape or scores.ndim == 0:
        raise ValueError(f"scores {list(scores.shape)} and positive {list(positive.shape)}; expected the same shape.")
    ranks = np.asarray(scipy.stats.rankdata(scores.detach().double().cpu().numpy(), axis=-1))
    inside = positive.detach().cpu().double()
    ones = inside.sum(-1)
    zeros = inside.shape[-1] - ones
    above = (torch.from_numpy(ranks) * inside).sum(-1) - ones * (ones + 1) / 2
    return above / torch.where(ones * zeros > 0, ones * zeros, torch.nan)


def rank_correlation(one: Tensor, other: Tensor) -> Tensor:
    """Spearman's correlation of each row, `[n]`, in float64; NaN where a row is constant."""
    ranks = [
        torch.from_numpy(np.asarray(scipy.stats.rankdata(t.detach().double().cpu().numpy(), axis=1)))
        for t in (one, other)
    ]
    return correlation(*ranks)


def correlation(one: Tensor, other: Tensor) -> Tensor:
    """Pearson's correlation along the last axis, `[...]` from `[..., n]`; NaN where one of them is constant."""
    a, b = (t - t.mean(-1, keepdim=True) for t in (one, other))
    size = (a.square().sum(-1) * b.square().sum(-1)).sqrt()
    return (a * b).sum(-1) / torch.where(size > 0, size, torch.nan)
