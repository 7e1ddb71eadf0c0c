"""What the paper says, what was found, and a verdict with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .experiments import EXPERIMENTS
from .faithfulness import ALPHA, CONTRIBUTION, DEPTH, IG, MEAN, OF_CLASS, PROTOCOLS
from .sections import table
from .summary import (
    Mean,
    Run,
    accuracy,
    agreement_of_runs,
    explained_by_class,
    lead,
    mean_alpha,
    mean_of,
    of_head,
    paired,
    score,
    variance_ratio,
)

FIRST = next(iter(PROTOCOLS))
PUBLISHED = {
    "fashion-mnist": {"laya": 0.8834, "last": 0.8829, "concat": 0.8789, "scalar-mix": 0.8807},
    "cifar-10": {"laya": 0.7212, "last": 0.7112, "concat": 0.7155, "scalar-mix": 0.7144},
}
"""Accuracy, Table 1 of the paper (arXiv:2511.12723v1), five runs."""

CONFIRMED, NOT, OPEN, NEVER = "confirmed", "not confirmed", "too few runs", "not testable here"
Results = Mapping[str, Sequence[Run]]


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper.

    Attributes:
        text: what is claimed.
        paper: the paper's number.
        found: ours, with its interval over seeds.
        verdict: "confirmed", "not confirmed", "too few runs" or "not testable here".
        why: what the verdict rests on.
    """

    text: str
    paper: str
    found: str
    verdict: str
    why: str


def above(found: Mean, bound: float = 0.0) -> str:
    """Confirmed if the whole interval lies above a bound; an interval takes three runs."""
    return OPEN if found.n < 3 else CONFIRMED if found.low > bound else NOT


def near(found: Mean, value: float) -> str:
    """Confirmed if the interval holds a value."""
    return OPEN if found.n < 3 else CONFIRMED if found.low <= value <= found.high else NOT


def claims(results: Results) -> list[Claim]:
    """All claims, in the order of the paper."""
    return [*_accuracy(results), *_faithfulness(results), *_attention(results), *_elsewhere()]


def _accuracy(results: Results) -> list[Claim]:
    found = []
    for name, title in (("fashion-mnist", "Fashion-MNIST"), ("cifar-10", "CIFAR-10")):
        runs, published = results.get(name, ()), PUBLISHED[name]
        for head, other in (("last", "LastLayer"), ("concat", "Concat"), ("scalar-mix", "ScalarMix")):
            less = paired(runs, "laya", head, accuracy)
            gain = f"{published['laya'] - published[head]:+.4f}"
            text = f"{title}: LAYA is more accurate than {other}"
            found.append(Claim(text, gain, less.signed, above(less), _noise(less)))
        ratio = variance_ratio(runs, "laya", "last", accuracy)
        verdict = OPEN if ratio.n < 3 else CONFIRMED if ratio.high < 1 else NOT
        shown = "" if math.isnan(ratio.mean) else f"{ratio.mean:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
        paper = {"fashion-mnist": (0.0046 / 0.0063) ** 2, "cifar-10": (0.0060 / 0.0236) ** 2}[name]
        text = f"{title}: LAYA varies less between runs than LastLayer (ratio of variances)"
        found.append(Claim(text, f"{paper:.2f}", shown, verdict, "F interval of normal values; below 1 is less"))
    return found


def _noise(less: Mean) -> str:
    if less.n < 2:
        return "no interval with fewer than two runs"
    inside = less.low <= 0 <= less.high
    return f"{less.n} seeds in common; {'inside the noise' if inside else 'outside the noise'}"


def _faithfulness(results: Results) -> list[Claim]:
    laya = of_head(results.get("fashion-mnist", ()), "laya")
    own = mean_of(score(FIRST, ALPHA)(run) for run in laya)
    gradients = mean_of(score(FIRST, IG)(run) for run in laya)
    static = mean_of(lead(FIRST, ALPHA, MEAN)(run) for run in laya)
    behind = mean_of(-lead(FIRST, ALPHA, IG)(run) for run in laya)
    note = f"under {FIRST}, our best reconstruction; under other protocols the numbers and their order change"
    holds = f"confirmed if the interval holds the paper's number; {note}"
    found = [
        Claim("Fashion-MNIST: Faithfulness of attention", "0.8575", str(own), near(own, 0.8575), holds),
        Claim("... of gradient methods (ours: integrated gradients of the probability)", "about 0.89", str(gradients),
              near(gradients, 0.89), holds),
        Claim("... gradient methods are above attention", "about +0.03", behind.signed, above(behind), note),
        Claim("... static weights are far below attention (more than 0.1)", "no number", static.signed,
              above(static, 0.1), "static: the mean of alpha over the validation samples"),
    ]  # fmt: skip
    for name, runs in results.items():
        of = of_head(runs, "laya")
        if name.startswith("frozen") and of:
            less = mean_of(lead(FIRST, ALPHA, IG, "deletion")(run) for run in of)
            found.append(Claim(f"{EXPERIMENTS[name].title}: Deletion@1 of attention is the highest",
                               "0.5787, highest (Artworks)", less.signed, above(less),
                               "less that of integrated gradients; another data set than the paper's"))  # fmt: skip
    return found


def _attention(results: Results) -> list[Claim]:
    laya, cifar = of_head(results.get("fashion-mnist", ()), "laya"), of_head(results.get("cifar-10", ()), "laya")
    last, stage = mean_of(mean_alpha(run)[-1] for run in laya), mean_of(mean_alpha(run)[-1] for run in cifar)
    depends = mean_of(map(explained_by_class, laya))
    needed = mean_of(run["checks"]["conditioning"]["own"] - run["checks"]["conditioning"]["mean"] for run in laya)
    pairs = agreement_of_runs(laya).get("rank correlation")
    found = [
        Claim("Fashion-MNIST: most attention goes to the last layer", "0.76 (one run)", str(last), above(last, 0.5),
              "mean weight of the last layer; confirmed if the interval lies above 0.5"),
        Claim("Fashion-MNIST: attention depends on the class", "profiles by class", str(depends), above(depends, 0.1),
              "share of its variance between predicted classes; confirmed if the interval lies above 0.1"),
        Claim("Fashion-MNIST: attention made for the input is used", "implied", needed.signed, above(needed),
              "accuracy less that with the mean weights for every sample"),
        Claim("Fashion-MNIST: the depth profile is one of the task (runs agree)", "implied; one run shown",
              f"{pairs[0]:+.3f} ({pairs[1]:+.3f} to {pairs[2]:+.3f})" if pairs else "",
              OPEN if len(laya) < 3 or not pairs else CONFIRMED if pairs[1] > 0.5 else NOT,
              "rank correlation of the same samples' weights between runs, all pairs; confirmed if all are above 0.5"),
        Claim("CIFAR-10: nearly all attention on the last stage", "0.96", str(stage), above(stage, 0.8),
              "confirmed if the interval lies above 0.8"),
    ]  # fmt: skip
    return found


def _elsewhere() -> list[Claim]:
    return [
        Claim("IMDB: LAYA .8707, all heads within .004", "Table 1", "", NEVER, "no such data here; dropped in v2"),
        Claim("Best Artworks: Concat best, LAYA above LastLayer; profiles by style", "v2; v1 figures", "", NEVER,
              "neither the pictures nor the ImageNet-21k backbone can be had here; frozen backbones stand in"),
        Claim("A basis for compression, early exit and diagnosis", "none tested", "", NEVER,
              "no number to compare with; measured beside baselines in each experiment"),
    ]  # fmt: skip


def overview(results: Results) -> str:
    """The page of all experiments: the headline, verdicts and Table 1 side by side."""
    lines = [
        "# LAYA's experiments: numbers", "",
        "Generated by `python -m xattr.heads.reproduce all --tables` from the results beside it; what they mean is on "
        "the page *LAYA's experiments, judged*. Intervals are 95 % t intervals over seeds.", "",
        "## Headline", "",
        f"Faithfulness of attention under `{FIRST}`, and what it adds to the depth prior (the deeper, the higher) and "
        f"to the exact contribution, which the same forward gives for free; and what looking at the sample adds to the "
        f"mean weights of its predicted class. Other protocols in each experiment.", "",
        *_headline(results), "",
        "![Attention less depth prior, exact contribution and integrated gradients](headline.png)", "",
        "## Verdicts", "",
        *table(["claim of the paper", "paper", "found", "verdict", "rests on"],
               [[c.text, c.paper, c.found, f"**{c.verdict}**", c.why] for c in claims(results)]), "",
        "## Table 1 of the paper, beside ours", "",
        *_table1(results), "",
        "## Experiments", "",
        *[f"* [{EXPERIMENTS[name].title}]({name}/README.md): {len(runs)} runs" for name, runs in results.items()],
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _headline(results: Results) -> list[str]:
    rows = []
    for name, runs in results.items():
        laya = of_head(runs, "laya")
        if laya:
            others = (DEPTH, CONTRIBUTION, OF_CLASS)
            less = [mean_of(lead(FIRST, ALPHA, other)(run) for run in laya).signed for other in others]
            depth = mean_of(score(FIRST, DEPTH)(run) for run in laya)
            rows.append([EXPERIMENTS[name].title, len(EXPERIMENTS[name].layers), len(laya),
                         mean_of(score(FIRST, ALPHA)(run) for run in laya), depth, *less])  # fmt: skip
    return table(["experiment", "layers", "runs", "attention", "depth prior", "attention less depth prior",
                  "attention less exact contribution", "attention less mean of the predicted class"], rows)  # fmt: skip


def _table1(results: Results) -> list[str]:
    names, rows = {"laya": "LAYA", "last": "LastLayer", "concat": "Concat", "scalar-mix": "ScalarMix"}, []
    for experiment, published in PUBLISHED.items():
        for head, value in published.items():
            found = mean_of(map(accuracy, of_head(results.get(experiment, ()), head)))
            rows.append([experiment, names[head], f"{value:.4f}", found, found.n])
    return table(["data", "head", "paper", "ours", "our runs"], rows)
