"""Objects of a user's own, from a file that is no installed module."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from ._network import one_line


@contextlib.contextmanager
def running(file: Path) -> Iterator[ModuleType]:
    """Runs a file as Python runs a script, with its folder to import from, which stays so inside the `with`."""
    name = f"_xattr_file_{file.stem}"
    description = importlib.util.spec_from_file_location(name, file)
    assert description is not None and description.loader is not None
    module = importlib.util.module_from_spec(description)
    # Classes look up the module that they were made in.
    sys.modules[name] = module
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        description.loader.exec_module(module)
        yield module
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def named(module: ModuleType, name: str) -> Any:
    """A function or class of the file; `None` if there is none."""
    found = getattr(module, name, None)
    return found if callable(found) else None


def names_in(module: ModuleType) -> str:
    """What functions and classes a file defines, for messages."""
    made = [k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", None) == module.__name__]
    return ", ".join(made) or "none"


def failed(file: Path, name: str, error: Exception) -> str:
    """Where in the file an error came up, for messages."""
    inside = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    line = f" in line {inside[-1]}" if inside else ""
    return f"{file.name}:{name} failed{line}: {one_line(error)}"
