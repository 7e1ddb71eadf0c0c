"""What is said of attention in one experiment: sections of its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .experiments import Experiment
from .faithfulness import ALPHA, CONTRIBUTION, DEPTH, IG, OF_CLASS, PROTOCOLS
from .summary import (
    Run,
    accuracy,
    agreement_of_runs,
    explained_by_class,
    lead,
    mean_alpha,
    mean_of,
    of_head,
    score,
)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(map(str, line))} |" for line in lines]


def headline(laya: Sequence[Run]) -> list[str]:
    """What attention adds to depth, to the exact contribution, to its predicted class and to gradients."""
    rows = [
        [name, *(mean_of(lead(name, ALPHA, other)(run) for run in laya).signed
                 for other in (DEPTH, CONTRIBUTION, OF_CLASS, IG)),
         mean_of(lead(name, ALPHA, CONTRIBUTION, "deletion")(run) for run in laya).signed]
        for name in PROTOCOLS
    ]  # fmt: skip
    return [
        "Faithfulness (mean Spearman correlation over layers with leave-one-layer-out effects) of attention less that "
        "of the depth prior (the deeper, the higher), less that of the exact contribution (free in the same forward), "
        "less that of the mean weights of the predicted class (the same for all samples predicted so), and less that "
        "of integrated gradients; and the difference of Deletion@1. Protocol: operator / target / class / sign.",
        *table(["protocol", "less depth prior", "less exact contribution", "less mean of the predicted class",
                "less integrated gradients (prob)",
                "Deletion@1 less exact contribution"], rows),
    ]  # fmt: skip


def costs(runs: Sequence[Run]) -> str:
    """What each row costs beyond the forward."""
    error = mean_of(run["completeness_error"] for run in runs).mean
    return (
        f"Attention, contributions, means and the depth prior are there behind the forward. A gradient method takes "
        f"one more pass of the head with its backward, integrated gradients 20 of them (their completeness error, of "
        f"the logit, is {error:.1e}), the oracle {len(mean_alpha(runs[0]))} mixtures."
    )


def by_protocol(runs: Sequence[Run], what: str, name: str) -> list[str]:
    """Faithfulness or deletion of every attribution under every protocol."""
    protocols = [name for name, one in PROTOCOLS.items() if what == "faithfulness" or one.sign == "signed"]
    names = list(runs[0]["faithfulness"][protocols[0]])
    rows = [[row, *(mean_of(score(p, row, what)(run) for run in runs).short for p in protocols)] for row in names]
    return [
        f"{name}, predicted class, {len(runs)} runs: mean and half width of the interval over runs.",
        *table(["attribution", *protocols], rows),
    ]


def scalar_mix(runs: Sequence[Run]) -> list[str]:
    """Faithfulness on the ScalarMix models."""
    of = of_head(runs, "scalar-mix")
    return by_protocol(of, "faithfulness", "ScalarMix on its own model (alpha is static there)") if of else []


def meaning(laya: Sequence[Run]) -> list[str]:
    """The checks of attention."""
    check = lambda *keys: mean_of(_at(run["checks"], keys) for run in laya)
    own, paired_mean = (
        check("conditioning", "own"),
        mean_of(run["checks"]["conditioning"]["own"] - run["checks"]["conditioning"]["mean"] for run in laya),
    )
    seeds = len(laya[0]["checks"]["scorer_randomisation"])
    random = mean_of(sum(run["checks"]["scorer_randomisation"]) / seeds for run in laya)
    rows: list[list[Any]] = [
        ["accuracy with its own weights", own],
        ["... with those of another sample", check("conditioning", "permuted")],
        ["... with the mean of all samples", check("conditioning", "mean")],
        ["... with equal weights", check("conditioning", "uniform")],
        ["own less mean, same run", paired_mean.signed],
        ["rank correlation with a scorer drawn anew (0: what it learnt matters)", random],
        ["highest weight, mean", mean_of(run["attention"]["mean_of_highest_alpha"] for run in laya)],
        ["share of alpha's variance between predicted classes", mean_of(map(explained_by_class, laya))],
        [
            "rank correlation with alpha after rescaling to one length",
            check("rescaled", "rank_correlation"),
        ],
        ["samples in which another layer is the highest then", check("rescaled", "other_top")],
    ]
    between = agreement_of_runs(laya)
    for name, (mean, low, high) in between.items():
        rows.append([f"two runs, same samples: {name}", f"{mean:.3f} (pairs: {low:.3f} to {high:.3f})"])
    return table(["check", "mean and interval over runs"], rows)


def _at(value: Any, keys: Sequence[str]) -> float:
    for key in keys:
        value = value[key]
    return float(value)


def profiles(experiment: Experiment, laya: Sequence[Run]) -> list[str]:
    """Mean attention of each run."""
    rows = [[run["seed"], *(f"{a:.3f}" for a in mean_alpha(run)), f"{accuracy(run):.4f}"] for run in laya]
    return [
        "Mean attention of each run over all test samples, and by class in the picture: by true and by predicted "
        "class, and the exact contributions to the predicted class below.",
        "![Attention and contribution by class, one column a run](profiles.png)",
        *table(["seed", *experiment.layers, "accuracy"], rows),
    ]


def fewer(experiment: Experiment, runs: Sequence[Run]) -> list[str]:
    """Truncation and early exit, beside linear probes."""
    laya, causal = of_head(runs, "laya"), of_head(runs, "laya-causal")
    layers = range(len(experiment.layers))
    cut = [mean_of(run["truncation"][i]["accuracy"] for run in laya) for i in layers]
    probed = [run for run in laya if "probes" in run]
    lines = [
        "LAYA cut off behind a layer (nothing trained again; the scorer sees the mean of what is missing), beside a "
        "linear probe on that layer of the same backbone.",
        *table(["", *experiment.layers], [
            ["share of FLOPs", *(f"{laya[0]['truncation'][i]['cost']:.2f}" for i in layers)],
            ["LAYA cut off", *(one.short for one in cut)],
            ["probe", *(mean_of(run["probes"][i] for run in probed).short for i in layers)],
        ]),
    ]  # fmt: skip
    if causal:
        of = lambda who, i, key: mean_of(run["early_exit"][who][i][key] for run in causal)
        thresholds = [one["threshold"] for one in causal[0]["early_exit"]["laya"]]
        lines += [
            f"Early exit ({len(causal)} runs): a sample stops at the first layer whose probability is above the "
            f"threshold. LAYA with a causal scorer, and the linear probes on the same backbone as the baseline; cost "
            f"is the mean share of the backbone's FLOPs.",
            *table(["threshold", "LAYA accuracy", "LAYA cost", "probes accuracy", "probes cost"], [
                [t, of("laya", i, "accuracy").short, f"{of('laya', i, 'cost').mean:.2f}",
                 of("probes", i, "accuracy").short, f"{of('probes', i, 'cost').mean:.2f}"]
                for i, t in enumerate(thresholds)
            ]),
            "![Early exit: accuracy against cost, one line a run](exits.png)",
        ]  # fmt: skip
    return lines


def flagging(laya: Sequence[Run]) -> list[str]:
    """Finding errors."""
    names = list(laya[0]["flagging"])
    rows = [[name, mean_of(run["flagging"][name] for run in laya)] for name in names]
    less = mean_of(run["flagging"]["profile"] - run["flagging"]["max_softmax"] for run in laya)
    return [
        "AUROC of wrong predictions above right ones: distance of attention from the predicted class's profile, beside "
        "what the probabilities say.",
        *table(["score", "AUROC"], [*rows, ["profile less max_softmax, same run", less.signed]]),
    ]
