"""Jobs on a Ray cluster: actors that each hold a model, and results that come back to whoever asked."""

from __future__ import annotations

from typing import Any

from .bench import Bench, Job
from .engines import Died
from .limits import Watch
from .store import Shard
from .worker import Worker

try:
    import ray
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("engine='ray' needs Ray: pip install 'captum-xattr[ray]'.", name="ray") from error


class Actor:
    """One actor. Files of the plan have to be there on its machine; results need no common disk.

    Args:
        plan: as plain data.
        base: folder that its paths start from.
        jobs: all of the plan.
        threads: of torch, and processors that Ray counts.
        num_gpus: that Ray gives each actor; 0 for a plan on the CPU.
    """

    def __init__(self, plan: dict[str, Any], base: str, jobs: list[Job], threads: int, num_gpus: float) -> None:
        self._arguments, self._jobs = (plan, base), [tuple(vars(job).values()) for job in jobs]
        env = {"env_vars": {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}}
        remote: Any = ray.remote(num_cpus=threads, num_gpus=num_gpus, runtime_env=env)
        self._class = remote(_Remote)
        self._actor: Any = None

    def perform(self, number: int, key: str) -> Shard | None:
        """Do a job there."""
        if self._actor is None:
            self._actor = self._class.remote(*self._arguments)
        try:
            found: Shard = ray.get(self._actor.perform.remote(self._jobs[number]))
        except ray.exceptions.RayActorError as error:
            self._actor = None
            raise Died(str(error).splitlines()[0]) from error
        return found

    def close(self) -> None:
        """End the actor."""
        if self._actor is not None:
            ray.kill(self._actor)
            self._actor = None


class _Remote:
    def __init__(self, plan: dict[str, Any], base: str) -> None:
        from .plan import Plan

        self._bench = Bench(Plan(**plan, base=base))  # type: ignore[arg-type]
        self._worker = Worker(self._bench, Watch(lambda: None))

    def perform(self, job: tuple[Any, ...]) -> Shard:
        return self._worker.perform(Job(*job))
