"""From outside into the page: names, messages and numbers as safe text."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable
from typing import Any

MISSING = "–"
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def esc(value: object) -> str:
    """Text that is only text, in an element as in a quoted attribute.

    Example:
        >>> esc("<b>'&'</b>")
        '&lt;b&gt;&#x27;&amp;&#x27;&lt;/b&gt;'
    """
    # A name of a file may hold half a surrogate pair, which no file in UTF-8 can.
    whole = str(value).encode("utf-8", "replace").decode("utf-8")
    return html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", whole), quote=True)


def name(value: object) -> str:
    """As `esc`, with places where a long name may break: after an underscore or dot, before a capital."""
    parts = re.sub(r"(?<=[_./-])(?=\w)|(?<=[a-z])(?=[A-Z])", "\0", str(value)).split("\0")
    return "<wbr>".join(map(esc, parts))


def short(value: object, most: int = 22) -> str:
    """As `esc`, cut to `most` letters: for a drawing, which has no room for more."""
    text = str(value)
    return esc(text if len(text) <= most else text[: most - 1] + "…")


def embedded(value: Any) -> str:
    """JSON for the inside of a `<script>` element: no text in it can end the element; NaN is null."""
    text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, (list, tuple)) else value


def decimals(values: Iterable[float]) -> int | None:
    """Digits behind the point that give the largest value three; `None` where powers of ten read better."""
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    if largest == 0:
        return 2
    return max(0, 2 - math.floor(math.log10(largest))) if 1e-3 <= largest < 1e5 else None


def number(value: float, digits: int | None = None) -> str:
    """A number for the eye, with a true minus.

    Example:
        >>> number(-0.5, 2), number(float("nan")), number(1234567.0)
        ('−0.50', '–', '1.23e+06')
    """
    if math.isnan(value):
        return MISSING
    text = f"{value:.3g}" if digits is None or math.isinf(value) else f"{value:.{digits}f}"
    return (text[1:] if float(text) == 0 and text[0] == "-" else text).replace("-", "\N{MINUS SIGN}", 1)


def duration(seconds: float) -> str:
    """Seconds with a unit that keeps the number short."""
    if math.isnan(seconds):
        return MISSING
    if seconds >= 0.9995:
        return f"{number(seconds, decimals([max(seconds, 1.0)]))} s"
    return f"{number(seconds * 1e3)} ms" if seconds >= 0.9995e-3 else f"{number(seconds * 1e6)} µs"


def count(value: float) -> str:
    """A large number with a prefix of a thousand, as in 1.2 G."""
    for size, prefix in _PREFIXES:
        if value >= size:
            return f"{number(value / size, decimals([value / size]))} {prefix}"
    return number(value)


def memory(value: float) -> str:
    """Bytes with a prefix of 1,024."""
    for size, unit in _BINARY:
        if value >= size:
            return f"{number(value / size, decimals([value / size]))} {unit}"
    return MISSING if math.isnan(value) else f"{number(value)} B"


def plural(amount: int, singular: str, several: str = "") -> str:
    """`1 image`, `2 images`."""
    return f"{amount:,} {singular if amount == 1 else several or singular + 's'}"


def listed(names: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
