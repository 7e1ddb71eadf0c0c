"""What a plan can name, as text."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

import captum.attr

from .. import attr
from ..datasets import MODELS
from ..metrics import METRICS
from ._objects import PATHS
from .explainers import CAPTUM
from .measures import GIVEN
from .sources import SOURCES, options_of


def methods() -> str:
    """Methods, ours and Captum's."""
    ours = [(name, _first(getattr(attr, name))) for name in attr.METHODS]
    theirs = [(name, _first(getattr(captum.attr, name))) for name in CAPTUM if name not in attr.METHODS]
    paths = [(PATHS, "a class of your own: Class(model).attribute(images, target=...) returns maps [B, C, h, w]")]
    return f"xattr\n{_table(ours)}\n\nCaptum\n{_table(theirs)}\n\n{_table(paths)}"


def metrics() -> str:
    """Metrics, with what is better."""
    better = {True: "higher", False: "lower", None: "neither"}
    rows = [
        (name, f"{better[e.higher_is_better]} is better; {e.unit}. {_first(e.function)}")
        for name, e in METRICS.items()
        if all(p.default is not p.empty or n in GIVEN for n, p in inspect.signature(e.function).parameters.items())
    ]
    given = "\n".join(f"  {name}: {what}" for name, what in GIVEN.items())
    own = f"{PATHS}: a function of your own that returns one value for each image, and takes what it names of"
    return f"{_table(rows)}\n\n{own}\n{given}"


def models() -> str:
    """Ways to name a model."""
    rows = [(f"embedded/{name}", "a small trained vision transformer of this package") for name in (*MODELS, "cifar")]
    rows += [
        ("timm/NAME", "with its trained weights"),
        ("torchvision/NAME", "with its default weights"),
        ("hf/NAME, hf/FOLDER", "an image classifier of the Hugging Face hub, or saved"),
        ("FILE.py:factory", "a function of your own: a module, or (module, Preprocessing(...), class names)"),
    ]
    return _table(rows)


def data() -> str:
    """Sources of pictures, with their options."""
    options = lambda name: ", ".join(options_of(name)) or "none"
    return _table([(name, f"{_first(source)} Options: {options(name)}") for name, source in SOURCES.items()])


NAMES: dict[str, Callable[[], str]] = {"methods": methods, "metrics": metrics, "models": models, "data": data}
"""What the command `list` shows."""


def _first(found: Any) -> str:
    """The first sentence of a docstring."""
    text = " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())
    return textwrap.shorten(text.partition(". ")[0].rstrip("."), 110, placeholder=" ...").rstrip(".") + "."


def _table(rows: Iterable[tuple[str, str]]) -> str:
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {text}" for name, text in rows)
