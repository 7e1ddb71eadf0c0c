"""Doing what a plan says, and going on where an earlier try stopped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from ..trace.errors import PlanError
from .bench import Bench, Job, versions
from .engines import Hand, dispatch, inline
from .on_torchrun import ranks
from .plan import Plan
from .processes import Process
from .results import Results
from .store import Store, info

Engine = Literal["local", "torchrun", "ray"]


def run(
    plan: Plan | str | Path,
    out: str | Path,
    *,
    workers: int = 0,
    engine: Engine | None = None,
    num_gpus: float = 0,
    retry: bool = False,
    show_progress: bool = False,
) -> Results | None:
    """Measure what a plan names; what is finished in the folder already is not measured again.

    A job is a method on a model and some images (`Plan.shard`) with all metrics. Its result is one file, named by the
    hash of all that decides it: weights, images, your own files (not what they import), settings, seeds, threads and
    versions. So a run that was killed goes on, a plan that was changed measures what is new, and results of other plans
    in the folder stay.

    What fails on an image (an error, a wrong shape, NaN, more than the time limit) is a row with its error.

    Args:
        plan: a plan, or its TOML file.
        out: folder of the run.
        workers: how many processes; 0 works in this one. A method that does not come back can only be ended in a
            process of its own, and a plan that holds objects only works in this one.
        engine: "local" processes, "ray" actors (connected to the cluster that Ray finds), or "torchrun", which is found
            by itself where torchrun started this process.
        num_gpus: that Ray gives each actor.
        retry: measure again what failed.
        show_progress: whether to draw a progress bar with the time left.

    Returns:
        The results; `None` in ranks of torchrun other than the first.

    Raises:
        PlanError: the plan is wrong; no model has run by then.
        RunError: the folder cannot be written, for instance because the disk is full.

    Example:
        >>> import tempfile
        >>> from xattr.benchmark import Plan, run
        >>> plan = Plan(
        ...     models=["embedded/class-token"],
        ...     methods=["GradSkip", "RandomMap"],
        ...     data=[{"use": "scenes", "n": 8}],
        ...     metrics=["pointing", "insertion_deletion"],
        ... )
        >>> results = run(plan, tempfile.mkdtemp())
        >>> results.table.groupby("method").value.count().to_dict()
        {'GradSkip': 16, 'RandomMap': 16}
    """
    plan = plan if isinstance(plan, Plan) else Plan.read(plan)
    engine = engine or ("torchrun" if "TORCHELASTIC_RUN_ID" in os.environ else "local")
    if engine not in ("local", "torchrun", "ray"):
        raise PlanError(f"engine={engine!r}; expected local, torchrun or ray.")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise PlanError(f"workers={workers!r}; expected a whole number, 0 or more.")
    if (workers or engine != "local") and not plan.portable:
        raise PlanError(
            "the plan holds objects, which other processes cannot have; name them by import path (FILE.py:name), or "
            "use workers=0."
        )
    bench, store = Bench(plan), Store(out)

    def planned() -> tuple[list[Job], list[int]]:
        store.prepare()
        jobs = list(bench.jobs())
        store.describe(_description(bench, jobs))
        return jobs, [i for i, job in enumerate(jobs) if not _finished(store, job, plan, retry)]

    if engine == "torchrun":
        return Results.read(out) if ranks(bench, store, planned, show_progress) else None
    jobs, todo = planned()
    count = min(max(1, workers), len(todo))
    if engine == "ray":
        from .on_ray import Actor

        base = str(plan.base)
        hands: list[Hand] = [Actor(plan.as_dict(), base, jobs, plan.threads, num_gpus) for _ in range(count)]
        dispatch(bench, store, jobs, todo, hands, show_progress)
    elif workers and todo:
        dispatch(bench, store, jobs, todo, [Process(store, plan.threads, i) for i in range(count)], show_progress)
    else:
        inline(bench, store, [jobs[i] for i in todo], show_progress)
    return Results.read(out)


def _description(bench: Bench, jobs: list[Job]) -> dict[str, Any]:
    plan = bench.plan
    return {
        "format": 1,
        "title": plan.title,
        "plan": plan.as_dict(),
        "base": str(plan.base),
        "versions": versions(),
        "reference": plan.reference,
        "metrics": {m.name: {"higher_is_better": m.higher_is_better, "unit": m.unit} for m in bench.measures},
        "methods": {e.name: {"control": e.control} for e in bench.explainers},
        "jobs": [list(vars(job).values()) for job in jobs],
    }


def _finished(store: Store, job: Job, plan: Plan, retry: bool) -> bool:
    table = store.read(job.key)
    if table is None:
        return False
    if retry and table["error"].null_count < len(table):
        return False
    said = info(table)
    wanted, kept = (min(keep, job.stop) for keep in (plan.keep_maps, said["keep_maps"]))
    if wanted > max(kept, job.first):
        return False
    return not said.get("maps") or store.loaded(f"maps/{job.key}") is not None
