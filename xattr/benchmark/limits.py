"""Time limits for code of others, and random numbers that a seed decides."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import numpy as np
import torch


class OverTime(BaseException):
    """A method or metric took longer than it may; no `Exception`, so that code of others does not swallow it."""


class Watch:
    """Ends what takes too long: by an exception, and the process if that is not heard.

    Args:
        gives_up: called in another thread when a call has not ended at twice its limit, before the process exits;
            `None` where the process is the user's own and must live.
    """

    def __init__(self, gives_up: Callable[[], None] | None = None) -> None:
        self._gives_up, self._until = gives_up, float("inf")
        if gives_up is not None:
            threading.Thread(target=self._watch, daemon=True).start()

    @contextlib.contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Raises `OverTime` in here after some seconds, on systems with SIGALRM and in the main thread."""

        def over(number: int, frame: FrameType | None) -> None:
            raise OverTime

        self._until = time.monotonic() + 2 * seconds + 5
        heard = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
        if not heard:
            try:
                yield
            finally:
                self._until = float("inf")
            return
        before = signal.signal(signal.SIGALRM, over)
        # Again each second: an exception that is raised in a finaliser gets lost.
        signal.setitimer(signal.ITIMER_REAL, seconds, 1)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            self._until = float("inf")

    def _watch(self) -> None:
        while time.monotonic() < self._until:
            time.sleep(0.5)
        assert self._gives_up is not None
        self._gives_up()
        os._exit(3)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers of torch, NumPy and Python from a seed; their generators go on afterwards as if nothing was."""
    own, numpy = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(own)
        np.random.set_state(numpy)
