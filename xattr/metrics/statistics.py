"""From one value for each image and method to what may be said: intervals, paired tests, ranks, and a table of them.

Images count as independent: average several values of one image (seeds, crops) before. NaN values are left out and
counted. Tests check the family-wise error rate on 300 tables; the full check, on 2,000, lives in `benchmarks`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.stats
import torch
from torch import Tensor

PairedTest = Literal["permutation", "wilcoxon"]
EXACT, FLIPS = 13, 10_000  # all 2 ** 13 flips of the signs of 13 differences are fewer than 10,000 random ones


@dataclass(frozen=True)
class Interval:
    """Mean over n images (NaN without any) and its interval (NaN below two); `undefined` images, NaN, are left out."""

    mean: float
    low: float
    high: float
    n: int
    undefined: int


@dataclass(frozen=True)
class Difference:
    """A method less the reference, over the images that are defined for both; above 0 if the method's are larger.

    Attributes:
        interval: of the mean difference, in units of the values; `undefined` counts pairs with NaN on either side.
        p: of the two-sided test; NaN without pairs. `p_holm` is corrected over all methods of the call.
        d_z: Cohen's d for pairs, mean / standard deviation; infinite if that is 0, NaN for a single pair that differs.
        rank_biserial: matched-pairs rank-biserial correlation, -1 to 1, of the pairs that differ. 0, as d_z, without.
        different: whether `p_holm` < 1 - level.
    """

    method: str
    interval: Interval
    p: float
    p_holm: float
    d_z: float
    rank_biserial: float
    different: bool


@dataclass(frozen=True)
class Ranks:
    """Methods ranked by every metric, 1 is best, and how far the metrics agree.

    Attributes:
        ranks: `[metrics, methods]`, float64, ties averaged; `mean_rank` over metrics is `[methods]`.
        kendall_w: concordance corrected for ties, 0 to 1; NaN below two metrics or methods, or if all methods tie.
        p: of W by its chi-square approximation: rough below eight methods, too small if metrics measure one thing.
    """

    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    ranks: Tensor
    mean_rank: Tensor
    kendall_w: float
    p: float


def bootstrap_interval(values: Tensor, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """Mean over images, `[n]`, with its percentile bootstrap interval: a little too short below some 30 images.

    The order of the images makes no difference. Infinite values, or a level not between 0 and 1, are a `ValueError`.

    Example:
        >>> bootstrap_interval(torch.tensor([0.5, 0.5, float("nan")]))
        Interval(mean=0.5, low=0.5, high=0.5, n=2, undefined=1)
    """
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(f"level={level}, resamples={resamples}; expected 0 < level < 1 and at least one resample.")
    if values.ndim != 1 or bool(values.isinf().any()):
        raise ValueError(f"found {[*values.shape]}, {int(values.isinf().sum())} infinite; expected [n], finite or NaN.")
    kept = values[~values.isnan()].detach().cpu().double().sort().values.numpy()
    n, low, high = len(kept), math.nan, math.nan
    if n > 1:
        # scipy.stats.bootstrap draws the same, but its versions differ in the argument that takes a RandomState.
        draw = np.random.RandomState(seed).randint  # 100 at a time, to hold no more than 100 n indices
        means = np.hstack([kept[draw(0, n, (min(100, resamples - i), n))].mean(1) for i in range(0, resamples, 100)])
        low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return Interval(float(kept.mean()) if n else math.nan, low, high, n, len(values) - n)


def paired_differences(
    table: Mapping[str, Tensor], reference: str, *, level: float = 0.95, seed: int = 0, test: PairedTest = "permutation"
) -> list[Difference]:
    """Compare every other method with the reference, image by image; in the order of the table.

    An unknown reference or test, values that are infinite or of different lengths are a `ValueError`.

    Args:
        table: values of each method, `[n]` each, of the same images in the same order; NaN where undefined.
        reference: the method that the others are compared with.
        level: of the intervals, and 1 - the chance that any method is called different if none is.
        seed: of the bootstrap and of the flips; every method meets the same, so that its p depends on no other.
        test: "permutation" flips signs of differences and sees their mean: all flips up to 13 pairs that differ, else
            10,000 at random. "wilcoxon" does so with signed ranks up to 13, and is scipy's test beyond. Both take the
            differences to be symmetric about 0 where a method does not differ, and six pairs for any p < 0.05.

    Example:
        >>> found = paired_differences({"a": torch.arange(8.0) + 1, "b": torch.zeros(8)}, "b")
        >>> found[0].method, found[0].p, found[0].rank_biserial, found[0].different
        ('a', 0.0078125, 1.0, True)
    """
    if reference not in table or test not in ("permutation", "wilcoxon"):
        raise ValueError(f"found {reference!r} and {test!r}; expected one of {[*table]}, and permutation or wilcoxon.")
    rows = {name: values.detach().cpu().double() for name, values in table.items()}
    if len({row.shape for row in rows.values()}) > 1 or any(bool(row.isinf().any()) for row in rows.values()):
        found = [(name, *row.shape, int(row.isinf().sum())) for name, row in rows.items()]
        raise ValueError(f"found methods, n and infinite values {found}; expected one [n] for all, finite or NaN.")
    apart = {name: row - rows[reference] for name, row in rows.items() if name != reference}
    means = [bootstrap_interval(row, level, seed=seed) for row in apart.values()]
    tests = [_compare(row[~row.isnan()], test, seed) for row in apart.values()]
    return [
        Difference(name, mean, p, p_holm, d_z, rank, p_holm < 1 - level)
        for name, mean, (p, d_z, rank), p_holm in zip(apart, means, tests, holm([p for p, _, _ in tests]), strict=True)
    ]


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values, in the order given; NaN (no test was possible) stays and does not count.

    Example:
        >>> holm([0.25, 0.125, 0.5])
        [0.5, 0.375, 0.5]
    """
    if any(value < 0 or value > 1 for value in p):
        raise ValueError(f"found p values {list(p)}; expected 0 to 1.")
    adjusted, largest = [math.nan] * len(p), 0.0
    order = sorted((i for i, value in enumerate(p) if not math.isnan(value)), key=p.__getitem__)
    for step, i in enumerate(order):
        adjusted[i] = largest = max(largest, min(1.0, (len(order) - step) * p[i]))
    return adjusted


def rank_methods(scores: Mapping[str, Mapping[str, float | Tensor]], higher_is_better: Mapping[str, bool]) -> Ranks:
    """Rank the methods by every metric (metric -> method -> value), and measure how far the metrics agree.

    Of values of images, `[n]`, the mean over those that are defined counts. A metric that lacks a method or its
    direction, or a value of NaN, is a `ValueError` that names it.

    Example:
        >>> found = rank_methods({"auc": {"a": 0.9, "b": 0.7}, "time": {"a": 1, "b": 2}}, {"auc": True, "time": False})
        >>> found.mean_rank.tolist(), found.kendall_w
        ([1.0, 2.0], 1.0)
    """
    methods = _methods(scores, higher_is_better)
    mean = lambda value: float(value.double().nanmean()) if isinstance(value, Tensor) else float(value)
    values = np.array([[mean(row[name]) for name in methods] for row in scores.values()], dtype=np.float64)
    if nan := [(tuple(scores)[i], methods[j]) for i, j in np.argwhere(np.isnan(values))]:
        raise ValueError(f"found NaN for {nan}; expected numbers, which can be ranked.")
    signs = np.array([-1 if higher_is_better[metric] else 1 for metric in scores])
    ranks = np.asarray(scipy.stats.rankdata(values * signs[:, None], axis=1))
    m, n = ranks.shape
    apart = ranks - (n + 1) / 2
    most = m * float((apart**2).sum())  # of the squared rank sums; ties lower it, which corrects W for them
    w = float((apart.sum(0) ** 2).sum()) / most if m > 1 and most else math.nan
    p = float(scipy.stats.chi2.sf(m * (n - 1) * w, n - 1))
    return Ranks(methods, tuple(scores), torch.from_numpy(ranks), torch.from_numpy(ranks.mean(0)), w, p)


def summary_table(
    values: Mapping[str, Mapping[str, Tensor]], higher_is_better: Mapping[str, bool], reference: str
) -> str:
    """Markdown table (metric -> method -> `[n]`; metrics may differ in n) of means, 95 % intervals and what differs.

    Example:
        >>> print(summary_table({"auc": {"a": torch.ones(8), "b": torch.zeros(8)}}, {"auc": True}, "b"))
        |  | auc ↑ |
        | --- | --- |
        | a | 1.00 [1.00, 1.00]* |
        | b (reference) | 0.00 [0.00, 0.00] |
        ...
    """
    methods = _methods(values, higher_is_better)
    columns, counts = [["", "---", *(name + " (reference)" * (name == reference) for name in methods)]], []
    for metric, row in values.items():
        marks = {found.method: "*" * found.different for found in paired_differences(row, reference)}
        means = {name: bootstrap_interval(row[name]) for name in methods}
        top = np.nanmax([0.0, *(abs(end) for i in means.values() for end in (i.mean, i.low, i.high))])
        d = max(0, 2 - math.floor(math.log10(top))) if top else 3  # three digits of the largest number of the column
        cells = [f"{i.mean:.{d}f} [{i.low:.{d}f}, {i.high:.{d}f}]{marks.get(name, '')}" for name, i in means.items()]
        columns.append([f"{metric} {'↑' if higher_is_better[metric] else '↓'}", "---", *cells])
        missing = ", ".join(f"{name} {i.undefined}" for name, i in means.items() if i.undefined) or "none"
        counts.append(f"{metric} {len(row[reference])} (undefined: {missing})")
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in zip(*columns, strict=True)]
    return "\n".join(lines) + (
        f"\n\n`*` differs from {reference} on images defined for both (paired sign-flip test, p < 0.05 after Holm by "
        f"metric). Mean [95 % bootstrap interval]; ↑ higher, ↓ lower is better. Images (n): {'; '.join(counts)}."
    )


def _methods(table: Mapping[str, Mapping[str, object]], higher_is_better: Mapping[str, bool]) -> tuple[str, ...]:
    methods = tuple(dict.fromkeys(name for row in table.values() for name in row))
    missing = [(metric, name) for metric in table for name in methods if name not in table[metric]]
    missing += [(metric, "higher_is_better") for metric in table if metric not in higher_is_better]
    if missing or not methods:
        raise ValueError(f"found methods {methods} without {missing}; expected each in each metric, and its direction.")
    return methods


def _compare(defined: Tensor, test: PairedTest, seed: int) -> tuple[float, float, float]:
    """Of the defined pairs: p, d_z and rank-biserial correlation."""
    pairs = np.array(sorted(defined.tolist(), key=lambda x: (abs(x), x)))  # the order of the images makes no difference
    other = pairs[pairs != 0]
    if not len(other):
        return (1.0, 0.0, 0.0) if len(pairs) else (math.nan, math.nan, math.nan)
    n, mean, std = len(other), float(pairs.mean()), float(pairs.std(ddof=1)) if len(pairs) > 1 else math.nan
    d_z = math.copysign(math.inf, mean) if std <= 1e-12 * abs(mean) else mean / std  # rounding leaves that much of 0
    ranks = scipy.stats.rankdata(np.abs(other)) * np.sign(other)
    rank_biserial = float(ranks.sum() / np.abs(ranks).sum())
    if test == "wilcoxon" and n > EXACT:  # below, scipy may approximate, or take seconds where sizes tie
        return float(scipy.stats.wilcoxon(other).pvalue), d_z, rank_biserial
    signed = ranks if test == "wilcoxon" else other
    sizes, random = np.abs(signed), np.random.RandomState(seed)
    every = [np.arange(2**n)[:, None] >> np.arange(n) & 1] if n <= EXACT else []
    flips = every or (random.randint(0, 2, (250, n), np.int8) for _ in range(FLIPS // 250))
    # Sums that are equal but for the rounding of float32 values count.
    bound = abs(signed.sum()) - 1e-7 * sizes.sum()
    count = sum(int((np.abs(2 * (up @ sizes) - sizes.sum()) >= bound).sum()) for up in flips)
    return (count / 2**n if every else (1 + count) / (1 + FLIPS)), d_z, rank_biserial
