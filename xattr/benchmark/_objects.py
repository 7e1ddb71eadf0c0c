"""What a plan names: classes and functions by name or import path, and what they take."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .._files import failed, named, names_in, running
from .plan import Part, Plan

PATHS = "FILE.py:name or package.module:name"


def imported(part: Part, base: Path) -> Any:
    """The object of an import path; `None` if `use` is no path.

    Raises:
        PlanError: there is no such file, module or name, or running it failed.
    """
    file, colon, name = part.use.rpartition(":")
    if colon and file.endswith(".py"):
        return _from_file(part, (base / Path(file).expanduser()).resolve(), name)
    module, _, name = part.use.rpartition(":") if colon else part.use.rpartition(".")
    if not module:
        return None
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise part.error(f"{module} cannot be imported: {error}.") from error
    if not callable(found):
        raise part.error(f"{module} has no {name!r}.")
    return found


def _from_file(part: Part, file: Path, name: str) -> Any:
    if not file.is_file():
        raise part.error(f"there is no file {str(file)!r} to take {name!r} from.")
    try:
        with running(file) as module:
            found = named(module, name)
    except Exception as error:
        raise part.error(failed(file, name, error)) from error
    if found is None:
        raise part.error(f"{file.name} has no {name!r}; it has {names_in(module)}.")
    return found


def content(plan: Plan, part: Part, found: Any) -> str:
    """What decides the behaviour of an object: its name, and its file unless that belongs to an installed package."""
    name = f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', type(found).__qualname__)}"
    if isinstance(part.use, str) and ".py:" in part.use:
        file = plan.base / Path(part.use.rpartition(":")[0]).expanduser()
        return f"{part.use.rpartition(':')[2]} {hashlib.sha256(file.read_bytes()).hexdigest()}"
    package = sys.modules.get(name.partition(".")[0])
    version = getattr(package, "__version__", None)
    if version is None:
        try:
            version = hashlib.sha256(inspect.getsource(found).encode()).hexdigest()
        except (OSError, TypeError):
            version = ""
    return f"{name} {version}"


def parameters(function: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Parameters by name, and whether any other keyword is taken too."""
    found = dict(inspect.signature(function).parameters)
    others = [name for name, p in found.items() if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    open_ = any(found[name].kind is inspect.Parameter.VAR_KEYWORD for name in others)
    return {name: p for name, p in found.items() if name not in (*others, "self")}, open_


def value(setting: Any) -> Any:
    """A setting as Python wants it: TOML has no tuples."""
    if isinstance(setting, list):
        return tuple(map(value, setting))
    return {k: value(v) for k, v in setting.items()} if isinstance(setting, Mapping) else setting
