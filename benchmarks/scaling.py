"""What a second worker brings, and what the runner adds to the methods' own time: ratios measured in one run.

``python benchmarks/scaling.py`` runs ``explainers.toml`` on one model and fewer scenes with one worker, with two, and
in this process, in turns, and takes the smallest times. The table goes to ``docs/evidence/benchmark/scaling.md``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
import torch

from xattr.benchmark import Plan, run

HERE = Path(__file__).resolve().parent
FILE = HERE.parent / "docs" / "evidence" / "benchmark" / "scaling.md"


def seconds(plan: Plan, workers: int) -> tuple[float, dict[str, float]]:
    """Of a run into an empty folder, and what its jobs spent on what."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run(plan, folder, workers=workers)
        took = time.perf_counter() - began
        said = [
            json.loads(pq.read_schema(p).metadata[b"xattr"])["times"] for p in Path(folder).glob("shards/*.parquet")
        ]
    return took, {name: sum(one[name] for one in said) for name in said[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--scenes", type=int, default=100)
    parser.add_argument("--turns", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    plan = Plan.read(HERE / "explainers.toml")
    data = (dataclasses.replace(plan.data[0], settings={"n": chosen.scenes}),)
    plan = dataclasses.replace(plan, data=data, models=plan.models[:1], shard=25)
    turns = [{workers: seconds(plan, workers) for workers in (1, 2, 0)} for _ in range(chosen.turns)]
    best = {workers: min((turn[workers] for turn in turns), key=lambda found: found[0]) for workers in (1, 2, 0)}
    (one, _), (two, _), (here, spent) = (best[workers] for workers in (1, 2, 0))
    own = spent["attribute"] + spent["metrics"]
    rest = here - own - spent["cost"]
    lines = [
        "# What a second worker brings, and what the runner costs",
        "",
        f"`python benchmarks/scaling.py --scenes {chosen.scenes}`: {len(plan.methods)} methods and {len(plan.metrics)} "
        f"metrics on one embedded model, one thread in each process; the smallest of {chosen.turns} turns.",
        "",
        "| | seconds | ratio |",
        "|---|---|---|",
        f"| one worker | {one:.1f} | 1 |",
        f"| two workers | {two:.1f} | {one / two:.2f} times faster |",
        f"| this process | {here:.1f} | |",
        f"| of it maps and metrics | {own:.1f} | |",
        f"| loading, hashing, writing, tables | {rest:.1f} | {rest / own:.1%} |",
        f"| counting FLOPs and bytes, layers | {spent['cost']:.1f} | {spent['cost'] / own:.1%} |",
    ]
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
