"""Where the maps of every method lie, on all embedded models and seeds: one result file a model, and a table.

``python benchmarks/localisation.py`` measures what is missing under ``docs/evidence/localisation``, writes the table
there, and adds to a file the methods that it lacks. Report scenes only; nothing was chosen on them. About 15
CPU minutes in all, on one thread.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import torch
from _versions import versions

from xattr import attr, demo
from xattr.datasets import MODELS, SEEDS, digit_scenes, embedded_model, pair_scenes

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "localisation"
SCENES, PAIRS = 300, 150
COLUMNS = ("blank", "energy", "cell", "pointing", "sensitivity")


def measure(name: str, seed: int) -> None:
    path = FOLDER / f"{name}-{seed}.json"
    known = (
        {row["method"]: row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]} if path.exists() else {}
    )
    if known.keys() >= demo.ROWS.keys():
        return
    model, single, double = embedded_model(name, seed), digit_scenes("report", SCENES), pair_scenes("report", PAIRS)
    rows = []
    for method, (kind, arguments) in demo.ROWS.items():
        if method in known:
            rows.append(known[method])
            continue
        row, _ = demo.measure(getattr(attr, kind)(model), arguments, single, double)
        rows.append(asdict(replace(row, model=name, method=method)))
    result = {
        "model": name,
        "seed": seed,
        "scenes": f"report, {SCENES} with one digit, {PAIRS} with two",
        "command": "python benchmarks/localisation.py",
        "versions": versions("torch", "timm"),
        "rows": rows,
    }
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"{name}-{seed}", flush=True)


def table() -> str:
    """For each model and method the mean over seeds, and the range where the seeds differ."""
    lines = [
        "# Localisation on report scenes, three training seeds",
        "",
        f"{SCENES} scenes with one digit, {PAIRS} with two; mean over seeds 0, 1, 2 (lowest to highest). *blank*: maps "
        "without a positive value. *energy*: in the digit's ink; *cell*: in its cell (chance .11); *pointing*: in its "
        "cell; *sensitivity*: class sensitivity by cell. Made by `python benchmarks/localisation.py`.",
    ]
    for name in MODELS:
        runs = [json.loads((FOLDER / f"{name}-{seed}.json").read_text(encoding="utf-8"))["rows"] for seed in SEEDS]
        lines += ["", f"## {name}", "", f"| method | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
        for rows in zip(*runs, strict=True):
            cells = []
            for column in COLUMNS:
                values = sorted(row[column] for row in rows)
                digits = 0 if column == "blank" else 2
                mean, low, high = (f"{v:.{digits}f}" for v in (sum(values) / len(values), values[0], values[-1]))
                cells.append(mean if low == high else f"{mean} ({low} to {high})")
            lines.append(f"| {rows[0]['method']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS:
        for name in MODELS:
            measure(name, seed)
    (FOLDER / "README.md").write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main()
