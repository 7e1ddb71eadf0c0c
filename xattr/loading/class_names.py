"""Names of classes: the short form that is shown, and the class that somebody means by a name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from ..trace.errors import TargetError

__all__ = ["find_class", "short_name"]

_LISTED = 6


def short_name(name: str) -> str:
    """What stands before the first comma: ImageNet's names are lists of synonyms.

    Example:
        >>> from xattr.loading import short_name
        >>> short_name("tabby, tabby cat")
        'tabby'
    """
    return name.split(",")[0].strip()


def find_class(wanted: str, names: Sequence[str]) -> int:
    """The index of the class with this name.

    Capitals do not count, and `_` is a space. A name or synonym that is equal wins over names that contain the words.

    Args:
        wanted: a name, a synonym, or a part of one that no other class has.
        names: the classes; synonyms are separated by commas.

    Raises:
        TargetError: no class, or several; the message lists them, or the closest ones.

    Example:
        >>> from xattr.loading import find_class
        >>> find_class("Tabby Cat", ["tench, Tinca tinca", "tabby, tabby cat"])
        1
    """
    text = _plain(wanted)
    synonyms = [[_plain(part) for part in (name, *name.split(","))] for name in names]
    exact = [i for i, parts in enumerate(synonyms) if text in parts]
    found = exact or [i for i, parts in enumerate(synonyms) if text and text in parts[0]]
    if len(found) == 1:
        return found[0]
    if found:
        # Cats before oystercatchers.
        found.sort(key=lambda i: f" {text} " not in f" {synonyms[i][0].replace(',', ' ')} ")
        more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        raise TargetError(
            f"target={wanted!r} fits {len(found)} classes: {_listing(found[:_LISTED], names)}{more}. Say which by its "
            f"index."
        )
    flat = [(part, i) for i, parts in enumerate(synonyms) for part in parts]
    close = difflib.get_close_matches(text, dict(flat), n=_LISTED, cutoff=0.6)
    nearest = list(dict.fromkeys(dict(flat)[part] for part in close))
    hint = f"close are: {_listing(nearest, names)}" if nearest else f"they begin with {_listing(range(3), names)}"
    raise TargetError(f"target={wanted!r} is none of the {len(names)} class names; {hint}. An index works too.")


def _plain(text: str) -> str:
    return " ".join(text.casefold().replace("_", " ").split())


def _listing(indices: Sequence[int], names: Sequence[str]) -> str:
    return ", ".join(f"{short_name(names[i])} ({i})" for i in indices if i < len(names))
