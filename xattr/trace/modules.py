"""Which module is running, and evaluation mode for the length of its own call."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeAlias

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

# Modules whose training flag is held at False, and by how many calls. Two threads may explain one model at once: the
# flag goes back when the last of them leaves.
_HELD: dict[nn.Module, int] = {}
_LOCK = threading.Lock()

Seen: TypeAlias = Callable[[nn.Module, str, Any], None]


def on_one_device(model: Any) -> Any:
    """A model without `DataParallel` around it."""
    return model.module if isinstance(model, nn.DataParallel) else model


def uncompiled(model: Any) -> Any:
    """A module as it was before `torch.compile`."""
    return getattr(model, "_orig_mod", model)


def unwrapped(model: Any) -> Any:
    """A model without either, however they are nested."""
    while (inner := uncompiled(on_one_device(model))) is not model:
        model = inner
    return model


@contextlib.contextmanager
def in_evaluation_mode(module: nn.Module) -> Iterator[None]:
    """All parts of a module in evaluation mode for a while; each gets its own mode back, also with several threads."""
    held = [part for part in module.modules() if _hold(part)]
    try:
        yield
    finally:
        for part in held:
            _let_go(part)


def _hold(module: nn.Module) -> bool:
    """Put a module into evaluation mode, if it is not in it by itself."""
    with _LOCK:
        held = module.training or module in _HELD
        if held:
            _HELD[module] = _HELD.get(module, 0) + 1
            module.training = False
        return held


def _let_go(module: nn.Module) -> None:
    with _LOCK:
        _HELD[module] -= 1
        if not _HELD[module]:
            del _HELD[module]
            module.training = True


class ModuleWatch:
    """Sees every module call of this thread while it is entered, also inside closures.

    What branches on `self.training` in Python (stochastic depth, auxiliary heads) cannot be seen in the arguments of
    operations. A module that is called in train mode is therefore put into evaluation mode for that call alone; only
    this flag is touched, and it is put back also after an exception.

    Args:
        entering: called with the module, its path and its arguments.
        leaving: called with the module, its path and its output.
    """

    def __init__(self, entering: Seen | None = None, leaving: Seen | None = None) -> None:
        self._entering, self._leaving = entering, leaving
        self._thread = threading.get_ident()
        self._stack: list[tuple[nn.Module, bool]] = []
        self._names: dict[int, str] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> ModuleWatch:
        self._handles = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        while self._stack:
            self._pop()

    def path(self) -> str:
        """Dotted path of the module that is running, from the outermost module of the pass."""
        for module, _ in reversed(self._stack):
            if self._names.get(id(module)):
                return self._names[id(module)]
        return ""

    def where(self) -> str:
        """The module that is running, for messages."""
        return f"the module {self.path()!r}" if self.path() else "the model"

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        if id(module) not in self._names:
            self._names.update({id(m): name for name, m in module.named_modules() if id(m) not in self._names})
        self._stack.append((module, _hold(module)))
        if self._entering is not None:
            self._entering(module, self.path(), args)

    def _leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        path = self._names.get(id(module), "")
        # A module that raised, and whose caller went on, still lies above its caller.
        while self._stack and self._pop() is not module:
            pass
        if self._leaving is not None:
            self._leaving(module, path, output)

    def _pop(self) -> nn.Module:
        module, held = self._stack.pop()
        if held:
            _let_go(module)
        return module
