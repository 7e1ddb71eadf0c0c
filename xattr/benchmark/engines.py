"""Handing out jobs: one after the other in this process, or to several hands at once."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from tqdm import tqdm

from .bench import Bench, Job
from .outcome import failure
from .store import Shard, Store
from .worker import Worker

TRIES = 2  # a job whose process died twice is given up


class Died(Exception):
    """The process that was doing a job is gone."""


class Hand(Protocol):
    """One of several hands: a process or an actor."""

    def perform(self, number: int, key: str) -> Shard | None:
        """Do a job; `None` if the result was written already.

        Raises:
            Died: the process is gone; the next call starts another.
        """

    def close(self) -> None:
        """End the process."""


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """That many threads of torch, for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def inline(bench: Bench, store: Store, todo: Sequence[Job], show_progress: bool) -> None:
    """One job after the other in this process."""
    worker = Worker(bench)
    with threads(bench.plan.threads):
        for job in tqdm(todo, disable=not show_progress, unit="job"):
            store.write(job.key, worker.perform(job))


def dispatch(
    bench: Bench, store: Store, jobs: Sequence[Job], todo: Sequence[int], hands: Sequence[Hand], show_progress: bool
) -> None:
    """Hand out jobs to several; a job whose process dies is tried again, and given up in the end.

    Raises:
        RunError: results cannot be written.
    """
    waiting: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    for number in todo:
        waiting.put((number, 1))
    bar = tqdm(total=len(todo), disable=not show_progress, unit="job")
    stop, errors, lock = threading.Event(), [], threading.Lock()

    def serve(hand: Hand) -> None:
        while not stop.is_set():
            try:
                number, tried = waiting.get_nowait()
            except queue.Empty:
                return
            job = jobs[number]
            try:
                try:
                    shard = hand.perform(number, job.key)
                except Died as error:
                    if stop.is_set():  # it was ended
                        return
                    shard = None
                    if store.read(job.key) is None:
                        if tried < TRIES:
                            waiting.put((number, tried + 1))
                            continue
                        shard = failure(bench, job, f"the process died {TRIES} times: {error}")
                if shard is not None:
                    store.write(job.key, shard)
            except BaseException as error:
                errors.append(error)
                stop.set()
                return
            with lock:
                bar.update()

    helpers = [threading.Thread(target=serve, args=(hand,), daemon=True) for hand in hands]
    try:
        for helper in helpers:
            helper.start()
        for helper in helpers:
            while helper.is_alive() and not stop.is_set():  # joins of a second leave room for Ctrl-C
                helper.join(1)
    finally:
        stop.set()
        for hand in hands:
            hand.close()
        bar.close()
    if errors:
        raise errors[0]
