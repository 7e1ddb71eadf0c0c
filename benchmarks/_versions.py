"""What a result was made with."""

from __future__ import annotations

import importlib
import platform


def versions(*packages: str) -> dict[str, str]:
    """Of this package, of others, and of Python."""
    found = {name: str(importlib.import_module(name).__version__) for name in ("xattr", *packages)}
    return {**found, "python": platform.python_version()}
