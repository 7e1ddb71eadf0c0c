"""Scores that several metrics and explainers ask for are computed once."""

from __future__ import annotations

import torch
from torch import Tensor

from .perturber import Bound


class Remembered:
    """A bound perturber that computes no score twice.

    The whole picture, the empty one, and the picture without each single feature are the same for every map, so
    comparing many explainers by `leave_one_out` costs as much as one. What is remembered is one number for each image
    and set of features.

    Args:
        bound: what `Perturber.bind` returned.

    Attributes:
        features: those of `bound`.

    Example:
        >>> import torch
        >>> from xattr.metrics import Perturber, Remembered, leave_one_out
        >>> calls, f = [], lambda z: calls.append(len(z)) or z.sum((1, 2, 3))[:, None]
        >>> x = torch.rand(2, 1, 3, 3)
        >>> bound = Remembered(Perturber(f, unit="pixel", baseline=0, score="logit").bind(x))
        >>> first, before = leave_one_out(bound, x, x), len(calls)
        >>> other = leave_one_out(bound, x, -x)
        >>> first.tolist(), other.tolist(), len(calls) == before
        ([1.0, 1.0], [-1.0, -1.0], True)
    """

    def __init__(self, bound: Bound) -> None:
        self._bound, self.features = bound, bound.features
        self._known: dict[bytes, Tensor] = {}

    def score(self, keep: Tensor, show_progress: bool = False) -> Tensor:
        """As that of the bound perturber, `[B, S]` from `[B, S, F]`."""
        steps = keep.cpu().transpose(0, 1).contiguous()
        keys = [step.numpy().tobytes() for step in steps]
        missing = {key: s for s, key in enumerate(keys) if key not in self._known}
        if missing:
            found = self._bound.score(keep[:, list(missing.values())], show_progress)
            self._known |= dict(zip(missing, found.unbind(1), strict=True))
        return torch.stack([self._known[key] for key in keys], 1)
