"""Captum-style attribution for vision models: GradSkip, rollout, Integrated Gradients and their kin.

The methods live in [xattr.attr][], drawing in `xattr.visualization`, small data and trained models in
`xattr.datasets`. Importing this module loads nothing heavy; the submodules are imported when they are first used.

Example:
    >>> import xattr
    >>> "GradSkip" in dir(xattr.attr)
    True
"""

import importlib
from typing import Any

from ._name_guard import refuse_foreign_files

refuse_foreign_files()

__version__ = "0.1.0"
_ROOMS = (
    "attr",
    "datasets",
    "demo",
    "heads",
    "loading",
    "metrics",
    "photo",
    "rules",
    "testing",
    "trace",
    "visualization",
)
__all__ = ["__version__", *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
