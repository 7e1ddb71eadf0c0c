"""How a model runs while it is observed: compiled parts as Python, checkpointed parts once."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.checkpoint

from .errors import UnseenError

_CHECKPOINTED = (
    "a part of the model runs under a gradient checkpointing that would run it again, unobserved, in the backward. "
    "Switch it off for the explanation."
)


class PlainExecution:
    """Compiled parts of a model run as the Python they were compiled from, gradient checkpointing is left out.

    The compiler's stance, the filter of warnings and the names that torch's checkpointing looks up belong to the
    process: the first of several threads sets them, the last puts them back. Other threads keep their checkpointing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entered = 0
        self._undo = contextlib.ExitStack()
        self._thread = threading.local()

    def __enter__(self) -> None:
        with self._lock:
            self._entered += 1
            if self._entered == 1:
                self._set()
        self._thread.entered = getattr(self._thread, "entered", 0) + 1

    def __exit__(self, *error: object) -> None:
        self._thread.entered -= 1
        with self._lock:
            self._entered -= 1
            if not self._entered:
                self._undo.close()

    def _set(self) -> None:
        # Without dynamo loaded nothing is compiled, and loading it takes seconds.
        if "torch._dynamo" in sys.modules:
            self._undo.enter_context(torch.compiler.set_stance("force_eager"))
            self._undo.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")
        module: Any = torch.utils.checkpoint
        hook, function = getattr(module, "_checkpoint_hook", None), module.CheckpointFunction
        if hook is not None:
            plain = lambda frame: contextlib.nullcontext() if self._observes() else hook(frame)
            self._replace(module, "_checkpoint_hook", plain)
        self._replace(module, "CheckpointFunction", _Reentrant(function, self._observes))

    def _replace(self, module: Any, name: str, value: Any) -> None:
        self._undo.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, value)

    def _observes(self) -> bool:
        """Whether it is this thread that observes a model."""
        return bool(getattr(self._thread, "entered", 0))


class _Reentrant:
    """Stands for torch's `CheckpointFunction`."""

    def __init__(self, function: Any, observes: Any) -> None:
        self._function, self._observes = function, observes

    def apply(self, run: Any, preserve_rng_state: bool, *args: Any) -> Any:
        return run(*args) if self._observes() else self._function.apply(run, preserve_rng_state, *args)


@contextlib.contextmanager
def without_checkpoints() -> Iterator[None]:
    """Other checkpointing hooks itself into saved tensors; that is refused, unless the caller has such hooks too."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(RuntimeError):
            stack.enter_context(torch.autograd.graph.disable_saved_tensors_hooks(_CHECKPOINTED))
        try:
            yield
        except RuntimeError as error:
            if _CHECKPOINTED in str(error):
                raise UnseenError(_CHECKPOINTED) from None
            raise


PLAIN_EXECUTION = PlainExecution()
