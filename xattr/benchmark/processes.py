"""Processes of this machine that do jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import torch

from .._network import one_line
from ..trace.errors import RunError
from .bench import Bench, Job
from .engines import Died
from .limits import Watch
from .outcome import failure
from .plan import Plan
from .store import Shard, Store
from .worker import Worker


class Process:
    """A process of this machine that reads the plan from the folder of the run."""

    def __init__(self, store: Store, threads: int, index: int) -> None:
        self._store, self._threads, self._index = store, str(threads), index
        self._process: subprocess.Popen[str] | None = None

    def perform(self, number: int, key: str) -> Shard | None:
        """Do a job there; the process writes the result."""
        if self._process is None or self._process.poll() is not None:
            self._process = self._start()
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(f"{number} {key}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except OSError:
            answer = ""
        if not answer:
            raise Died(f"exit code {self._process.wait()}")
        said = json.loads(answer)
        if said["error"]:
            raise RunError(said["error"])
        return None

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> subprocess.Popen[str]:
        counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), self._threads)
        if (devices := torch.cuda.device_count()) > 1 and "CUDA_VISIBLE_DEVICES" not in os.environ:
            counts["CUDA_VISIBLE_DEVICES"] = str(self._index % devices)
        path = os.pathsep.join(part or os.getcwd() for part in sys.path)
        return subprocess.Popen(
            [sys.executable, "-m", "xattr.benchmark.processes", str(self._store.folder.resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **counts, "PYTHONPATH": path},
        )


def serve(folder: str) -> None:
    """What a `Process` does: jobs by number from standard input, an answer for each on standard output."""
    # Models and methods print; what they print goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    store = Store(folder)
    bench, jobs = opened(store)
    do = doing(bench, store)
    for line in sys.stdin:
        error, (number, key) = "", line.split()
        try:
            if jobs[int(number)].key != key:
                raise RunError("another run has put another plan into this folder; give each a folder of its own.")
            do(jobs[int(number)])
        except Exception as found:  # of the runner itself: no result of a method
            error = str(found) if isinstance(found, RunError) else one_line(found)
        print(json.dumps({"error": error}), file=answers, flush=True)


def opened(store: Store) -> tuple[Bench, list[Job]]:
    """The plan of a folder, as whoever planned it wrote it."""
    run = store.description()
    return Bench(Plan(**run["plan"], base=run["base"])), [Job(*job) for job in run["jobs"]]


def doing(bench: Bench, store: Store) -> Callable[[Job], None]:
    """Does a job and keeps its result, in a process that nobody else uses: what hangs for good ends it."""
    now: list[Job] = []

    def gives_up() -> None:
        message = f"OverTime: more than {bench.plan.time_limit:g} seconds for an image, and not to be stopped"
        store.write(now[-1].key, failure(bench, now[-1], message))

    worker = Worker(bench, Watch(gives_up))

    def do(job: Job) -> None:
        now[:] = [job]
        store.write(job.key, worker.perform(job))

    return do


if __name__ == "__main__":
    serve(sys.argv[1])
