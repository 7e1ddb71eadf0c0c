"""The tables of one experiment, generated from its runs."""

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
    paired,
    score,
)

_NAMES = {
    "laya": "LAYA",
    "last": "LastLayer",
    "concat": "Concat",
    "scalar-mix": "ScalarMix",
    "mean": "Mean",
    "last-mlp": "LastLayer + MLP of LAYA's size",
    "laya-causal": "LAYA, causal scorer",
}


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(map(str, line))} |" for line in lines]


def page(experiment: Experiment, runs: Sequence[Run]) -> str:
    """Everything that was measured in an experiment."""
    laya = of_head(runs, "laya")
    parts = [
        [f"# {experiment.title}", *([experiment.note] if experiment.note else []), _about(experiment, runs)],
        ["## Heads", *_heads(experiment, runs)],
        ["## Linear probes on each layer", *_probes(experiment, runs)],
    ]
    if laya:
        parts += [
            ["## Headline: attention beside depth and beside the exact contribution", *_headline(laya)],
            ["## Faithfulness", *_rows(laya, "faithfulness", "LAYA"), "", *_scalar_mix(runs)],
            ["## Deletion@1", *_rows(laya, "deletion", "LAYA")],
            ["## Does the attention mean anything?", *_meaning(laya)],
            ["## Where it looks, run by run", *_profiles(experiment, laya)],
            ["## Fewer layers", *_fewer(experiment, runs)],
            ["## Finding errors", *_flagging(laya)],
        ]
    parts.append(["## Runs", *_runs(experiment, runs)])
    return "\n\n".join("\n\n".join(_blocks(part)) for part in parts) + "\n"


def _blocks(lines: Sequence[str]) -> list[str]:
    """Paragraphs; lines of one table stay together."""
    found: list[str] = []
    for line in lines:
        if found and line.startswith("|") and found[-1].rsplit("\n", 1)[-1].startswith("|"):
            found[-1] += f"\n{line}"
        elif line:
            found.append(line)
    return found


def _about(experiment: Experiment, runs: Sequence[Run]) -> str:
    there = {(run["head"], run["seed"]) for run in runs}
    pending = {head: [seed for seed in experiment.seeds if (head, seed) not in there] for head in experiment.heads}
    count = sum(map(len, pending.values()))
    versions = sorted({f"torch {run['versions']['torch']}, Python {run['versions']['python']}" for run in runs})
    text = (
        f"`python -m xattr.heads.reproduce {experiment.name}` makes these runs and goes on where it was stopped. "
        f"{len(runs)} of {len(runs) + count} runs are there ({'; '.join(versions)}). All heads share common width, "
        f"learning rate ({experiment.lr:g}), batches of 128, "
        f"schedule (at most {experiment.epochs} epochs, patience 5) and seeds; nothing is tuned per head. Intervals "
        f"are 95 % t intervals over seeds."
    )
    named = [f"{_NAMES[head]} ({', '.join(map(str, seeds))})" for head, seeds in pending.items() if seeds]
    return text + (f" Pending heads (seeds): {'; '.join(named)}." if named else "")


def _heads(experiment: Experiment, runs: Sequence[Run]) -> list[str]:
    rows = []
    for head in experiment.heads:
        of = of_head(runs, head)
        if not of:
            continue
        found, size = mean_of(map(accuracy, of)), of[0]["parameters"]["head"]
        share = of[0]["flops"]["head"] / of[0]["flops"]["backbone"]
        less = "" if head == "laya" else paired(runs, "laya", head, accuracy).signed
        f1 = mean_of(run["macro_f1"] for run in of)
        epochs = mean_of(run["training"]["epochs"] for run in of).mean
        rows.append([_NAMES[head], found.n, found, f"{found.std:.4f}" if found.n > 1 else "", f1, less, f"{size:,}",
                     f"{share:.3f}", f"{epochs:.0f}"])  # fmt: skip
    return table(["head", "runs", "accuracy", "std", "macro-F1", "LAYA less this head, same seeds", "parameters",
                  "FLOPs / backbone's", "epochs"], rows)  # fmt: skip


def _probes(experiment: Experiment, runs: Sequence[Run]) -> list[str]:
    rows = []
    for head in experiment.probed:
        of = [run for run in of_head(runs, head) if "probes" in run]
        if of:
            by_layer = [mean_of(run["probes"][i] for run in of) for i in range(len(experiment.layers))]
            best = mean_of(max(run["probes"]) for run in of)
            rows.append([_NAMES[head], len(of), *(one.short for one in by_layer), best.short,
                         mean_of(map(accuracy, of)).short])  # fmt: skip
    trained = "" if experiment.freeze else " The backbone is the one that was trained together with the head named."
    return [
        f"A linear classifier on the standardised features of one layer, trained after everything else.{trained} The "
        f"best single layer is chosen on the test samples, so it is flattered.",
        *table(["backbone trained with", "runs", *experiment.layers, "best single layer", "the head itself"], rows),
    ]


def _headline(laya: Sequence[Run]) -> list[str]:
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


def _rows(runs: Sequence[Run], what: str, name: str) -> list[str]:
    protocols = [name for name, one in PROTOCOLS.items() if what == "faithfulness" or one.sign == "signed"]
    names = list(runs[0]["faithfulness"][protocols[0]])
    rows = [[row, *(mean_of(score(p, row, what)(run) for run in runs).short for p in protocols)] for row in names]
    return [
        f"{name}, predicted class, {len(runs)} runs: mean and half width of the interval over runs.",
        *table(["attribution", *protocols], rows),
    ]


def _scalar_mix(runs: Sequence[Run]) -> list[str]:
    of = of_head(runs, "scalar-mix")
    return _rows(of, "faithfulness", "ScalarMix on its own model (alpha is static there)") if of else []


def _meaning(laya: Sequence[Run]) -> list[str]:
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


def _profiles(experiment: Experiment, laya: Sequence[Run]) -> list[str]:
    rows = [[run["seed"], *(f"{a:.3f}" for a in mean_alpha(run)), f"{accuracy(run):.4f}"] for run in laya]
    return [
        "Mean attention of each run over all test samples, and by class in the picture: by true and by predicted "
        "class, and the exact contributions to the predicted class below.",
        "![Attention and contribution by class, one column a run](profiles.png)",
        *table(["seed", *experiment.layers, "accuracy"], rows),
    ]


def _fewer(experiment: Experiment, runs: Sequence[Run]) -> list[str]:
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


def _flagging(laya: Sequence[Run]) -> list[str]:
    names = list(laya[0]["flagging"])
    rows = [[name, mean_of(run["flagging"][name] for run in laya)] for name in names]
    less = mean_of(run["flagging"]["profile"] - run["flagging"]["max_softmax"] for run in laya)
    return [
        "AUROC of wrong predictions above right ones: distance of attention from the predicted class's profile, beside "
        "what the probabilities say.",
        *table(["score", "AUROC"], [*rows, ["profile less max_softmax, same run", less.signed]]),
    ]


def _runs(experiment: Experiment, runs: Sequence[Run]) -> list[str]:
    order = list(experiment.heads)
    rows = [
        [_NAMES[run["head"]], run["seed"], f"{accuracy(run):.4f}", f"{run['macro_f1']:.4f}",
         f"{run['training']['validation_accuracy']:.4f}", run["training"]["epochs"],
         " ".join(f"{a:.2f}" for a in mean_alpha(run)) if "attention" in run else ""]
        for run in sorted(runs, key=lambda run: (order.index(run["head"]), run["seed"]))
    ]  # fmt: skip
    return table(["head", "seed", "accuracy", "macro-F1", "validation accuracy", "epochs", "mean alpha"], rows)
