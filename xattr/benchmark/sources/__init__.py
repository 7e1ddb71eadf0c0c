"""Pictures with labels and masks for a benchmark: by name, with options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...trace.errors import PlanError
from .examples import Examples, Source
from .folders import folder
from .hugging_face import hugging_face_set
from .included import fashion, photographs, scenes
from .options import check, options
from .torchvision_sets import torchvision_set

__all__ = ["SOURCES", "Examples", "Source", "check_options", "open_source", "options_of"]

SOURCES: dict[str, Callable[..., Source]] = {
    "scenes": scenes,
    "folder": folder,
    "huggingface": hugging_face_set,
    "torchvision": torchvision_set,
    "fashion-mnist": fashion,
    "cifar-photographs": photographs,
}
"""Where pictures come from; each takes the folder that relative paths start from, and its options as keywords."""


def open_source(use: str, options: Mapping[str, Any], relative_to: str | Path = ".") -> Source:
    """Opens a source: options, folders, tables and labels are checked, pictures are not read yet.

    Args:
        use: one of `SOURCES`.
        options: see `options_of`, and the functions in `SOURCES` for what they mean.
        relative_to: folder that relative paths start from.

    Raises:
        PlanError: no such source, or options that do not fit.
        InputError: no folder, no pictures, or labels, boxes or masks that do not fit them.
        LoadError: a data set or a package is missing.

    Example:
        >>> from xattr.benchmark.sources import open_source
        >>> source = open_source("scenes", {"n": 5})
        >>> found = source.load(range(2, 5), None)
        >>> len(source), found.images.shape, found.names[0]
        (5, torch.Size([3, 1, 24, 24]), 'report/2')
    """
    check_options(use, options)
    return SOURCES[use](Path(relative_to), **options)


def options_of(use: str) -> tuple[str, ...]:
    """Names of the options of a source.

    Raises:
        PlanError: there is no such source.

    Example:
        >>> from xattr.benchmark.sources import options_of
        >>> options_of("scenes")
        ('split', 'n', 'seed', 'mask')
    """
    return tuple(options(_source(use)))


def check_options(use: str, options: Mapping[str, Any]) -> None:
    """Whether a source has these options and takes such values; nothing is opened.

    Raises:
        PlanError: no such source, or an option that is unknown, missing or of the wrong type.
    """
    check(use, _source(use), options)


def _source(use: str) -> Callable[..., Source]:
    if use not in SOURCES:
        raise PlanError(f"there is no source of pictures {use!r}; there are {', '.join(SOURCES)}.")
    return SOURCES[use]
