"""Drawings in SVG: axes, and the looks that tell methods apart without colour."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .text import esc, number, short

#: Size of a drawing in its own units: small, so that its text is still read when it is as wide as a phone.
WIDTH, HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 48, 10, 12, 42

#: Shapes around (0, 0), with a radius of about 4.
_MARKS = (
    '<circle r="3.6"/>',
    '<path d="M-3.3-3.3h6.6v6.6h-6.6z"/>',
    '<path d="M0-4.4 4.2 3.2h-8.4z"/>',
    '<path d="M0-4.8 4.8 0 0 4.8-4.8 0z"/>',
    '<path d="M0 4.4-4.2-3.2h8.4z"/>',
    '<path class="open" d="M-3.5-3.5 3.5 3.5M-3.5 3.5 3.5-3.5"/>',
    '<path class="open" d="M0-4.6V4.6M-4.6 0H4.6"/>',
    '<path d="M-4.4-1.4h3v-3h2.8v3h3v2.8h-3v3h-2.8v-3h-3z"/>',
    '<path class="open" d="M0-4.4V4.4M-3.8-2.2 3.8 2.2M-3.8 2.2 3.8-2.2"/>',
)
_DASHES = ("", "8 3", "2 2.5", "9 3 2 3", "14 4", "4 2 1 2 1 2", "5 4", "16 3 3 3 3 3")
_HUES = 10


@dataclass(frozen=True)
class Look:
    """How a method is drawn: by its place among the methods of the report, so that it looks the same everywhere."""

    index: int
    control: bool

    @property
    def attributes(self) -> str:
        """Of the element that holds what is drawn; the style sheet has the colours."""
        hue = "hc" if self.control else f"h{self.index % _HUES}"
        return f'class="series {hue}{" hollow" if self.control else ""}" data-method="{self.index}"'

    @property
    def dash(self) -> str:
        """Pattern of the line."""
        pattern = _DASHES[self.index % len(_DASHES)]
        return f' stroke-dasharray="{pattern}"' if pattern else ""

    def mark(self, x: float, y: float) -> str:
        """The sign at a point."""
        return f'<use href="#mark{self.index % len(_MARKS)}" x="{x:.1f}" y="{y:.1f}"/>'

    @property
    def sample(self) -> str:
        """A piece of the line, for a legend."""
        line = f'<path class="line" d="M1 7H33"{self.dash}/>'
        return f'<svg {self.attributes} width="34" height="14" aria-hidden="true">{line}{self.mark(17, 7)}</svg>'


def looks(methods: Iterable[str], controls: set[str]) -> dict[str, Look]:
    """The look of each method."""
    return {method: Look(i, method in controls) for i, method in enumerate(methods)}


def marks() -> str:
    """Shapes that the drawings of a page refer to."""
    shapes = "".join(f'<g id="mark{i}" class="mark">{shape}</g>' for i, shape in enumerate(_MARKS))
    return f'<svg width="0" height="0" class="away" aria-hidden="true"><defs>{shapes}</defs></svg>'


@dataclass(frozen=True)
class Axis:
    """A scale with its ticks.

    Attributes:
        low: value at its start.
        high: value at its end.
        ticks: values with their text.
        log: whether equal steps are equal factors.
        title: what it counts.
    """

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False
    title: str = ""

    @classmethod
    def linear(cls, values: Iterable[float], title: str = "", room: float = 0.06) -> Axis:
        """Over finite values, with `room` at both ends and five or so round ticks."""
        finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
        low, high = min(finite), max(finite)
        apart = (high - low) or abs(high) or 1.0
        low, high = low - room * apart, high + room * apart
        step = _round_step((high - low) / 4)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
        text = lambda v: number(v, digits if 1e-4 < step and high < 1e6 else None)
        return cls(low, high, tuple((i * step, text(i * step)) for i in range(first, last + 1)), title=title)

    @classmethod
    def logarithmic(cls, values: Iterable[float], title: str = "") -> Axis:
        """Over positive values."""
        finite = [v for v in values if math.isfinite(v) and v > 0] or [1.0, 10.0]
        low, high = min(finite) / 1.5, max(finite) * 1.5
        decades = math.log10(high / low)
        every = max(1, round(decades / 5))
        steps = (1, 2, 5) if decades < 2.2 else (1, 3) if decades < 3.2 else (1,)
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [step * 10.0**e for e in exponents if e % every == 0 for step in steps]
        return cls(low, high, tuple((t, _power(t)) for t in ticks if low <= t <= high), True, title)

    def share(self, value: float) -> float:
        """Where the value is, 0 at the start and 1 at the end."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Frame:
    """Two axes."""

    x: Axis
    y: Axis

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Values to units of the drawing."""
        return (
            LEFT + self.x.share(x) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - self.y.share(y) * (HEIGHT - TOP - BOTTOM),
        )

    def path(self, xs: Sequence[float], ys: Sequence[float]) -> str:
        """A line through the points that are known; it is broken where one is not."""
        parts, pen = [], "M"
        for x, y in zip(xs, ys, strict=True):
            if math.isfinite(x) and math.isfinite(y):
                parts.append("{}{:.1f} {:.1f}".format(pen, *self.at(x, y)))
                pen = "L"
            else:
                pen = "M"
        return "".join(parts)

    def svg(self, inside: str, label: str) -> str:
        """The drawing, with `label` for those who do not see it."""
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        lines, texts = [], []
        for value, text in self.x.ticks:
            x = self.at(value, self.y.low)[0]
            lines.append(f"M{x:.1f} {TOP}V{bottom}")
            texts.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{esc(text)}</text>')
        for value, text in self.y.ticks:
            y = self.at(self.x.low, value)[1]
            lines.append(f"M{LEFT} {y:.1f}H{right}")
            texts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{esc(text)}</text>')
        below = f'x="{(LEFT + right) / 2}" y="{HEIGHT - 8}"'
        beside = f'x="{-(TOP + bottom) / 2}" y="11" transform="rotate(-90)"'
        for place, title in ((below, self.x.title), (beside, self.y.title)):
            texts.append(f'<text class="title" {place} text-anchor="middle">{short(title, 44)}</text>')
        return (
            f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{esc(label)}">'
            f'<path class="grid" d="{"".join(lines)}"/><path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>'
            f'<g class="ticks">{"".join(texts)}</g>{inside}</svg>'
        )


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * 0.999)


def _power(value: float) -> str:
    if 1e-3 <= value < 1e5:
        return f"{value:,.10g}"
    return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
