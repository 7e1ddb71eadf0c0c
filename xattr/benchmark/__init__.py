"""Explainers side by side: a plan, a run that goes on where it stopped, its results and a report.

Needs pandas and pyarrow: pip install 'captum-xattr[benchmark]'.
"""

from typing import TYPE_CHECKING, Any

from .plan import Part, Plan

if TYPE_CHECKING:
    from .results import Results
    from .runner import run

__all__ = ["Part", "Plan", "Results", "run"]

_LAZY = {"Results": "results", "run": "runner"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    return value
