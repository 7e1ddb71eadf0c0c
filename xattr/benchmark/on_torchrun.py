"""The processes that torchrun started, on one machine or on many with a common disk."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.rendezvous import rendezvous
from tqdm import tqdm

from .bench import Bench, Job
from .processes import doing
from .store import Store


def ranks(
    bench: Bench, store: Store, plan_jobs: Callable[[], tuple[list[Job], list[int]]], show_progress: bool
) -> bool:
    """The jobs shared among the processes that torchrun started; true in the first of them, when all are done.

    Ranks take the next job from a counter, so that none waits for a slower one. The counter belongs to this start of
    torchrun; jobs that a dead rank had begun are done when torchrun starts it again.
    """
    counter: Any
    counter, rank, world = next(rendezvous("env://"))
    if bench.device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    start = f"xattr/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if rank == 0:
        jobs, todo = plan_jobs()
        counter.set(f"{start}/todo", json.dumps([[vars(job) for job in jobs], todo]))
    found, todo = json.loads(counter.get(f"{start}/todo"))
    jobs = [Job(**job) for job in found]
    do = doing(bench, store)
    bar = tqdm(total=len(todo), disable=not show_progress or rank > 0, unit="job")
    while (taken := counter.add(f"{start}/next", 1) - 1) < len(todo):
        do(jobs[todo[taken]])
        bar.update(counter.add(f"{start}/done", 1) - bar.n)
    bar.close()
    counter.add(f"{start}/left", 1)
    while rank == 0 and counter.add(f"{start}/left", 0) < world:
        threading.Event().wait(0.2)
    return bool(rank == 0)
