"""The options of a source, which are the keywords of the function that opens it."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ...trace.errors import PlanError

__all__ = ["NONE", "check", "options", "whether"]

NONE = "none"
"""What a plan writes where there are no labels; TOML has no word for it."""

_WORDS = {int: "a whole number", str: "text", bool: "true or false", Mapping: "a table", Sequence: "a list"}


def options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only arguments of a function."""
    found = inspect.signature(function).parameters
    return {name: p for name, p in found.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def check(use: str, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Names and types of options, before anything is opened.

    Raises:
        PlanError: an option is unknown, missing or of the wrong type, or a number is too small.
    """
    known, hints = options(function), get_type_hints(function)
    listing = ", ".join(known) or "none"
    for name, value in given.items():
        if name not in known:
            raise PlanError(f"{use} has no option {name!r}; there are {listing}.")
        if not _fits(value, hints[name]):
            raise PlanError(f"{use}: found {name}={value!r}; expected {_words(hints[name])}.")
        least = 1 if name == "n" else 0
        if isinstance(value, int) and not isinstance(value, bool) and not least <= value < 2**32:
            raise PlanError(f"{use}: found {name}={value}; expected a whole number from {least}.")
    if missing := [name for name, p in known.items() if p.default is p.empty and name not in given]:
        raise PlanError(f"{use} needs {', '.join(missing)}; its options are {listing}.")


def whether(option: str | Path | None) -> bool:
    """Whether an option names something."""
    return option is not None and option != NONE


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is Literal:
        return isinstance(value, str) and value in get_args(hint)
    kind = origin or hint
    if kind is Sequence:
        return isinstance(value, (list, tuple))
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _words(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        parts = [_words(part) for part in get_args(hint) if part not in (type(None), Path)]
        return " or ".join(parts)
    if origin is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(hint))
    return _WORDS.get(origin or hint, str(hint))
