"""The tables of one experiment, generated from its runs."""

from __future__ import annotations

from collections.abc import Sequence

from .experiments import Experiment
from .sections import by_protocol, costs, fewer, flagging, headline, meaning, profiles, scalar_mix, table
from .summary import Run, accuracy, mean_alpha, mean_of, of_head, paired

_NAMES = {
    "laya": "LAYA",
    "last": "LastLayer",
    "concat": "Concat",
    "scalar-mix": "ScalarMix",
    "mean": "Mean",
    "last-mlp": "LastLayer + MLP of LAYA's size",
    "laya-causal": "LAYA, causal scorer",
}


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
            ["## Headline: attention beside depth and beside the exact contribution", *headline(laya)],
            ["## Faithfulness", *by_protocol(laya, "faithfulness", "LAYA"), costs(laya), *scalar_mix(runs)],
            ["## Deletion@1", *by_protocol(laya, "deletion", "LAYA")],
            ["## Does the attention mean anything?", *meaning(laya)],
            ["## Where it looks, run by run", *profiles(experiment, laya)],
            ["## Fewer layers", *fewer(experiment, runs)],
            ["## Finding errors", *flagging(laya)],
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
    for head in ("last",) if experiment.freeze else experiment.probed:
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


def _runs(experiment: Experiment, runs: Sequence[Run]) -> list[str]:
    order = list(experiment.heads)
    rows = [
        [_NAMES[run["head"]], run["seed"], f"{accuracy(run):.4f}", f"{run['macro_f1']:.4f}",
         f"{run['training']['validation_accuracy']:.4f}", run["training"]["epochs"],
         " ".join(f"{a:.2f}" for a in mean_alpha(run)) if "attention" in run else ""]
        for run in sorted(runs, key=lambda run: (order.index(run["head"]), run["seed"]))
    ]  # fmt: skip
    return table(["head", "seed", "accuracy", "macro-F1", "validation accuracy", "epochs", "mean alpha"], rows)
