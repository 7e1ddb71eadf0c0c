"""The tables of the ablation, from its result files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import scipy.stats

NAMES = {
    "class-token": "class token",
    "distilled": "distilled",
    "mean-pool": "mean pool",
    "cifar": "CIFAR-10, class token",
    "vit-s14": "ViT-S/14, dense",
}
# Energy and pointing reward sharpness or are saturated; they are shown, and do not choose.
CHOOSING = ("auc", "sensitivity", "ins-del", "occlusion")
CANDIDATES = ("PAPER", "+ reads", "G", "A", "C")
OTHERS = (
    "start only",
    "Libra gradient x token",
    "reads only",
    "GAE, Libra gradients",
    "rollout",
    "brightness",
    "centre",
    "random",
)


def load(folder: Path, stage: str) -> dict[str, Any]:
    found = {name: folder / f"{stage}-{name}.json" for name in NAMES}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in found.items() if path.is_file()}


def ranks(runs: dict[str, Any]) -> dict[str, float]:
    """Mean rank of each candidate (1 is best): over the choosing metrics of a model, then over the models."""
    totals = dict.fromkeys(CANDIDATES, 0.0)
    for run in runs.values():
        metrics = [m for m in CHOOSING if m in run["images"]]
        for metric in metrics:
            values = [-run["rows"][row][metric][0] for row in CANDIDATES]
            for row, rank in zip(CANDIDATES, scipy.stats.rankdata(values), strict=True):
                totals[row] += float(rank) / len(metrics) / len(runs)
    return totals


def grid(run: dict[str, Any], rows: list[str], column: int, signs: bool) -> list[str]:
    metrics = list(run["images"])
    lines = [f"| | {' | '.join(metrics)} |", "|---" * (len(metrics) + 1) + "|"]
    for row in rows:
        if row not in run["rows"]:
            continue
        cells = []
        for metric in metrics:
            mean, difference, low, high = run["rows"][row][metric]
            if column == 0 and not signs:
                cells.append(f"{mean:.3f}")
            else:
                clear = "" if low <= 0 <= high else " *"
                cells.append(f"{mean:.3f} ({difference:+.3f}{clear})" if column == 0 else f"{difference:+.3f}{clear}")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


def write(folder: Path, default: str) -> None:
    tuning, report = load(folder, "tuning"), load(folder, "report")
    lines = [
        "# The default settings of GradSkip",
        "",
        "Made by `python benchmarks/ablation.py`. All maps are compared on the token grid, with their signs. *blank*: "
        "share of maps without a positive value. *pointing*, *energy*: in the digit's cell, or in the kangaroo's box. "
        "*auc*: area under the ROC curve of the map against that mask. *sensitivity*: class sensitivity on scenes with "
        "two digits. *ins-del*: mean probability of the class while patches come, most relevant first, less while they "
        "go (scenes: empty patches; CIFAR-10: the mean colour). *occlusion*: Spearman's correlation with the effect of "
        "occluding 8 x 8 tiles; masking curves are invalid on this ViT-S/14, to which a blank picture is more salient "
        "than most photographs. In brackets the paired difference to the named reference; `*` where its 95 % bootstrap "
        "interval over images leaves out 0.",
        "",
        "## The choice: tuning data, seed 0",
        "",
        '`PAPER`: the paper and our first reading. `+ reads`: with `reads=True`. `G`: also `embedding="relevance"`. '
        '`A`: also `gate="token"`, `gate_norm="dot"`. `C`: `A` with prefix tokens inside the walk and no reads. The '
        f"rule, fixed when the first of the five models had been seen: lowest mean rank over {', '.join(CHOOSING)}, "
        "models weighing alike. Energy and pointing do not choose: that rewards sharpness, this is saturated.",
        "",
        "| | " + " | ".join(CANDIDATES) + " |",
        "|---" * (len(CANDIDATES) + 1) + "|",
        "| mean rank | " + " | ".join(f"{value:.2f}" for value in ranks(tuning).values()) + " |",
    ]
    for name, run in tuning.items():
        lines += ["", f"### {NAMES[name]} (tuning; difference to A)", ""]
        lines += grid(run, [*CANDIDATES, *OTHERS], 0, True)
    around = load(folder, "around")
    for base, reference, runs in (("C", "C", around), ("A", "A", tuning), ("+ reads", "A", tuning)):
        lines += ["", f"## Every single change of {base}: difference to {reference}, tuning data", ""]
        for name, run in runs.items():
            rows = [base, *(row for row in run["rows"] if row.startswith(f"{base}, "))]
            lines += ["", f"### {NAMES[name]}", "", *grid(run, rows, 1, True)]
    lines += [
        "",
        "## The report: other pictures, other seeds",
        "",
        f"The chosen default is {default}. Report scenes with the models of seeds 1 and 2, the other half of the "
        "kangaroo photographs"
        + (", and CIFAR-10 test images not used above (with the model used above)" if "cifar" in report else "")
        + ". Differences to `DEFAULT`.",
    ]
    for name, run in report.items():
        rows = ["DEFAULT", *(row for row in CANDIDATES if row != default), *OTHERS]
        lines += ["", f"### {NAMES[name]} (report)", "", *grid(run, rows, 0, True)]
    versions = next(iter(tuning.values()))["versions"]
    lines += ["", "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
