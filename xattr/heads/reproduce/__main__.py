"""The command line of the reproduction."""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from .claims import overview
from .experiments import EXPERIMENTS, GROUPS, Experiment
from .pictures import draw_exits, draw_headline, draw_profiles
from .runner import agreement, results, run
from .summary import of_head
from .tables import page

FOLDER = Path("docs/evidence/laya")
WORK = Path(tempfile.gettempdir()) / "captum-xattr-training" / "laya"
TOLERANCE = 0.01
"""By how much an accuracy may differ on another machine, where the same training takes another course."""

FIXED = ("experiment", "head", "seed", "parameters", "flops")
"""What may not differ at all."""


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, then write the tables and pictures."""
    parser = argparse.ArgumentParser(prog="python -m xattr.heads.reproduce", description="The experiments of LAYA.")
    parser.add_argument("experiment", choices=sorted({*GROUPS, *EXPERIMENTS, "all"}))
    parser.add_argument("--head", action="append", help="default: all of the experiment")
    parser.add_argument("--seed", action="append", type=int, help="default: all of the experiment")
    parser.add_argument("--paper", action="store_true", help="the paper's four heads and five seeds alone")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for the results, a folder an experiment in it")
    parser.add_argument("--work", type=Path, default=WORK, help="for the state of the trainings, and for features")
    parser.add_argument("--epochs", type=int, help="fewer epochs, for a try")
    parser.add_argument("--limit", type=int, help="train on the first examples only, for a try")
    parser.add_argument("--verify", action="store_true", help="one run again from scratch, beside the result there is")
    parser.add_argument("--tables", action="store_true", help="only the tables and pictures")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    names = tuple(EXPERIMENTS) if chosen.experiment == "all" else GROUPS.get(chosen.experiment, (chosen.experiment,))
    failed = [name for name in names if chosen.verify and not verify(EXPERIMENTS[name], chosen)]
    if chosen.verify:
        raise SystemExit(f"{failed} did not agree" if failed else 0)
    for name in names:
        experiment = EXPERIMENTS[name]
        for head, seed in missing(experiment, chosen) if not chosen.tables else ():
            made = run(experiment, head, seed, chosen.folder / name, chosen.work, epochs=chosen.epochs,
                       limit=chosen.limit)  # fmt: skip
            print(f"{name}: {head}-{seed}: accuracy {made['accuracy']:.4f}, {made['cpu_seconds']}", flush=True)
    report(chosen.folder)


def report(folder: Path) -> None:
    """Tables and pictures of all results in a folder."""
    found = {name: runs for name in EXPERIMENTS if (runs := results(folder / name))}
    for name, runs in found.items():
        experiment, place = EXPERIMENTS[name], folder / name
        laya, causal = of_head(runs, "laya"), of_head(runs, "laya-causal")
        if laya:
            draw_profiles(experiment, laya, place / "profiles.png")
        if causal:
            draw_exits(causal, place / "exits.png")
        (place / "README.md").write_text(page(experiment, runs), encoding="utf-8")
    if any(of_head(runs, "laya") for runs in found.values()):
        draw_headline(found, folder / "headline.png")
        (folder / "README.md").write_text(overview(found), encoding="utf-8")


def missing(experiment: Experiment, chosen: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Heads and seeds without a result, seed by seed."""
    paper = (list(experiment.heads)[:4], experiment.seeds[:5])
    heads, seeds = paper if chosen.paper else (list(experiment.heads), experiment.seeds)
    for seed in chosen.seed or seeds:
        for head in chosen.head or heads:
            if head not in experiment.heads:
                raise SystemExit(f"{experiment.name} has the heads {', '.join(experiment.heads)}; found {head!r}")
            if not (chosen.folder / experiment.name / f"{head}-{seed}.json").is_file():
                yield head, seed


def verify(experiment: Experiment, chosen: argparse.Namespace) -> bool:
    """One run again, in an empty folder, beside its result; says how far they agree."""
    there = {(one["head"], one["seed"]): one for one in results(chosen.folder / experiment.name)}
    heads, seeds = chosen.head or experiment.heads, chosen.seed or experiment.seeds
    wanted = next((key for key in itertools.product(heads, seeds) if key in there), None)
    if wanted is None:
        print(f"{experiment.name}: there is no result to compare with")
        return False
    with tempfile.TemporaryDirectory() as folder:
        again = run(experiment, *wanted, Path(folder) / "results", Path(folder) / "work", epochs=chosen.epochs,
                    limit=chosen.limit)  # fmt: skip
    differences = agreement(there[wanted], again)
    fixed = [path for path, _ in differences if path.split("/")[0] in FIXED]
    close = abs(there[wanted]["accuracy"] - again["accuracy"]) <= TOLERANCE
    name = f"{experiment.name}: {wanted[0]}-{wanted[1]}"
    if not differences:
        print(f"{name}: every number is the same")
    else:
        path, most = max(differences, key=lambda d: d[1])
        print(f"{name}: {len(differences)} numbers differ, most {path} by {most:.3g}; accuracy "
              f"{there[wanted]['accuracy']:.4f} and {again['accuracy']:.4f}")  # fmt: skip
    return close and not fixed


if __name__ == "__main__":
    main()
