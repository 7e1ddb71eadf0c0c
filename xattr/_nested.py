"""Tensors in nested arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in nested lists, tuples, dictionaries and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from tensors_in([getattr(value, field.name) for field in dataclasses.fields(value)])


def replace_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nested value with each tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(replace_tensors(part, change) for part in value)
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(replace_tensors(part, change) for part in value)
    if type(value) is dict:
        return {key: replace_tensors(part, change) for key, part in value.items()}
    return value
