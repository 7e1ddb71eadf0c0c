"""From runs to what may be said of them: means over seeds with intervals, and differences on the same seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats
import torch

from ..checks import stability

Run = dict[str, Any]
Value = Callable[[Run], float]


@dataclass(frozen=True)
class Mean:
    """Mean over n runs with its two-sided 95 % t interval; the interval and `std` are NaN below two runs."""

    mean: float
    low: float
    high: float
    std: float
    n: int

    def __str__(self) -> str:
        if not self.n:
            return ""
        if self.n < 2:
            return f"{self.mean:.4f} (1 run)"
        return f"{self.mean:.4f} [{self.low:.4f}, {self.high:.4f}]"

    @property
    def signed(self) -> str:
        """With the sign of each number, for a difference."""
        if not self.n:
            return ""
        if self.n < 2:
            return f"{self.mean:+.4f} (1 run)"
        return f"{self.mean:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"

    @property
    def short(self) -> str:
        """Mean and half width, three digits."""
        if not self.n:
            return ""
        half = (self.high - self.low) / 2
        return f"{self.mean:.3f}" if self.n < 2 or self.std == 0 else f"{self.mean:.3f} ± {half:.3f}"


def mean_of(values: Iterable[float]) -> Mean:
    """Mean and interval of one value a run.

    Example:
        >>> from xattr.heads.reproduce.summary import mean_of
        >>> print(mean_of([0.88, 0.89, 0.90]))
        0.8900 [0.8652, 0.9148]
    """
    found = [value for value in values if not math.isnan(value)]
    n = len(found)
    if n < 2:
        return Mean(found[0] if found else math.nan, math.nan, math.nan, math.nan, n)
    mean, std = float(np.mean(found)), float(np.std(found, ddof=1))
    half = float(scipy.stats.t.ppf(0.975, n - 1)) * std / math.sqrt(n)
    return Mean(mean, mean - half, mean + half, std, n)


def of_head(runs: Sequence[Run], head: str) -> list[Run]:
    """The runs of one head, in order of their seeds."""
    return sorted((run for run in runs if run["head"] == head), key=lambda run: run["seed"])


def paired(runs: Sequence[Run], one: str, other: str, value: Value) -> Mean:
    """Mean difference of a value, one head less another, over the seeds that both have."""
    first, second = ({run["seed"]: value(run) for run in of_head(runs, head)} for head in (one, other))
    return mean_of(first[seed] - second[seed] for seed in sorted(first.keys() & second.keys()))


def variance_ratio(runs: Sequence[Run], one: str, other: str, value: Value) -> Mean:
    """Ratio of the variances over seeds of two heads, with the 95 % interval of normal values (F)."""
    first, second = (mean_of(value(run) for run in of_head(runs, head)) for head in (one, other))
    if min(first.n, second.n) < 3 or second.std == 0:
        return Mean(math.nan, math.nan, math.nan, math.nan, 0)
    ratio = (first.std / second.std) ** 2
    quantile = lambda q: float(scipy.stats.f.ppf(q, first.n - 1, second.n - 1))
    return Mean(ratio, ratio / quantile(0.975), ratio / quantile(0.025), math.nan, min(first.n, second.n))


def accuracy(run: Run) -> float:
    """Accuracy on the test samples."""
    return float(run["accuracy"])


def score(protocol: str, row: str, what: str = "faithfulness") -> Value:
    """Faithfulness (or "deletion") of an attribution under a protocol."""
    return lambda run: float(run["faithfulness"][protocol][row][what])


def lead(protocol: str, row: str, other: str, what: str = "faithfulness") -> Value:
    """Of one attribution over another in the same run."""
    return lambda run: score(protocol, row, what)(run) - score(protocol, other, what)(run)


def mean_alpha(run: Run) -> list[float]:
    """Mean weight of each layer over all test samples."""
    found: list[float] = run["attention"]["alpha"]["label/all"]["mean"][0]
    return found


def by_class(run: Run, of: str = "alpha", group: str = "label/all") -> torch.Tensor:
    """Mean of each class and layer, `[C, L]`; NaN for a class without samples."""
    rows = run["attention"][of][group]["mean"][1:]
    return torch.tensor([[math.nan if v is None else v for v in row] for row in rows])


def explained_by_class(run: Run) -> float:
    """Share of the variance of `alpha` over samples (all layers together) that lies between predicted classes.

    At 1 the attention is a code of the predicted class and says nothing about the single sample.
    """
    found = run["attention"]["alpha"]["predicted/all"]
    counts = torch.tensor(found["counts"], dtype=torch.float64)
    rows = [[math.nan if v is None else v for v in row] for row in found["std"]]
    std = torch.tensor(rows, dtype=torch.float64)
    within = ((counts[1:, None] - 1).clamp_min(0) * std[1:].nan_to_num() ** 2).sum()
    whole = ((counts[0] - 1) * std[0] ** 2).sum()
    return float(1 - within / whole) if whole > 0 else math.nan


def agreement_of_runs(runs: Sequence[Run]) -> dict[str, tuple[float, float, float]]:
    """Do trainings with other seeds look at the same layers? Mean, lowest and highest over all pairs of runs.

    "rank correlation" of the weights of the same samples; "same top layer", the share of samples with the same highest
    weight; "by chance", that share for two runs with the same habits but without a common reason,
    `sum_l p_l q_l` with the shares p and q of samples in which layer l is the highest.
    """
    alphas = [torch.tensor(run["attention"]["alpha_of_first"], dtype=torch.float64) for run in runs]
    if len(alphas) < 2:
        return {}
    tops = [alpha.argmax(1) for alpha in alphas]
    shares = [torch.bincount(top, minlength=alphas[0].shape[1]) / len(top) for top in tops]
    pairs = list(itertools.combinations(range(len(alphas)), 2))
    spread = lambda values: (float(np.mean(values)), float(np.min(values)), float(np.max(values)))
    return {
        "rank correlation": spread(stability(alphas).tolist()),
        "same top layer": spread([float((tops[a] == tops[b]).double().mean()) for a, b in pairs]),
        "by chance": spread([float(shares[a] @ shares[b]) for a, b in pairs]),
    }
