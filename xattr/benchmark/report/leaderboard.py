"""The leaderboard of a section: methods in rows, metrics in columns, each mean with its interval."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .data import Cell, Column, Entry, Section
from .tables import cell, entry_row, head, table
from .text import MISSING, decimals, esc, listed, name, number, plural

_BEST = '<span class="best">★<span class="vh"> best</span></span>'
_MARKS = {
    "better": '<span class="mark better">▲<span class="vh"> better than the reference</span></span>',
    "worse": '<span class="mark worse">▼<span class="vh"> worse than the reference</span></span>',
    "other": '<span class="mark">≠<span class="vh"> differs from the reference</span></span>',
}
_FIRST = {True: "high", False: "low", None: "high"}
_DIRECTIONS = {True: "↑ higher is better", False: "↓ lower is better", None: "no direction"}
_LEGEND = (
    "Mean over images, below it its 95 % interval, on the scale of the column; the upright line is the reference. "
    "★ best mean. ▲ better, ▼ worse than the reference (paired test, Holm's correction); no mark: no difference shown."
)


def leaderboard(section: Section) -> str:
    """The table, and how each metric was measured; empty without methods or metrics."""
    if not section.entries or not section.columns:
        return ""
    heads = [head("Method")]
    heads += [
        head(c.name, _FIRST[c.higher_is_better], _DIRECTIONS[c.higher_is_better], c.unit) for c in section.columns
    ]
    heads.append(head("Failures", "low", "images"))
    scales = [_Scale(section, column) for column in section.columns]
    rows = []
    for entry in section.entries:
        failed = f'<span class="failed">⚠ {entry.errors}</span>' if entry.errors else "0"
        cells = "".join(_cell(entry, scale, section.images) for scale in scales) + cell(entry.errors, failed)
        rows.append(entry_row(entry, cells, section.reference))
    return table(f"Leaderboard: {section.model} on {section.data}", heads, rows, _LEGEND) + _protocols(section.columns)


def best_of(section: Section, column: Column) -> set[str]:
    """The methods with the best mean; several if they are equal, none if the metric has no direction."""
    means = {e.method: e.cells[column.name].mean for e in section.entries if column.name in e.cells}
    known = [mean for mean in means.values() if not math.isnan(mean)]
    if column.higher_is_better is None or not known:
        return set()
    top = max(known) if column.higher_is_better else min(known)
    return {method for method, mean in means.items() if mean == top}


def verdict(section: Section) -> str:
    """Who is best in how many metrics; empty if no metric has a direction."""
    best = [found for column in section.columns if (found := best_of(section, column))]
    wins = [(entry.method, sum(entry.method in methods for methods in best)) for entry in section.entries]
    ordered = sorted((item for item in wins if item[1]), key=lambda item: -item[1])
    if not ordered:
        return ""
    tied = ", ties counted for each" if sum(n for _, n in ordered) > len(best) else ""
    parts = [f"<strong>{name(method)}</strong> in {n}" for method, n in ordered]
    return f"Best mean of {plural(len(best), 'metric')} with a direction: {listed(parts)}{tied}."


def warnings(section: Section) -> list[str]:
    """What speaks against the numbers: controls that win, and failures."""
    found = {column.name: best_of(section, column) & section.controls for column in section.columns}
    doubted = [
        f"{name(metric)} ({listed(sorted(map(name, controls)))})" for metric, controls in found.items() if controls
    ]
    failed = [entry for entry in section.entries if entry.errors]
    said = [f"A control, which knows nothing of the model, has the best mean of {listed(doubted)}."] if doubted else []
    return said + ([f"{plural(len(failed), 'method')} failed on some image."] if failed else [])


class _Scale:
    """Of one column: digits, best methods, and the range that intervals are drawn on."""

    def __init__(self, section: Section, column: Column) -> None:
        cells = {e.method: e.cells[column.name] for e in section.entries if column.name in e.cells}
        ends = [v for c in cells.values() for v in (c.mean, c.low, c.high) if math.isfinite(v)]
        self.column = column
        self.digits = decimals(c.mean for c in cells.values())
        self.low, self.high = (min(ends), max(ends)) if ends else (0.0, 1.0)
        self.best = best_of(section, column)
        self.reference = cells[section.reference].mean if section.reference in cells else math.nan

    def at(self, value: float) -> str:
        """Place on the strip, which is 80 wide."""
        return f"{3 + 74 * (value - self.low) / ((self.high - self.low) or 1):.1f}"


def _cell(entry: Entry, scale: _Scale, images: int) -> str:
    found = entry.cells.get(scale.column.name)
    if found is None or math.isnan(found.mean):
        why = "not measured" if found is None else f"undefined on {plural(found.undefined, 'image')}"
        return cell(math.nan, f"{MISSING}<small>{why}</small>")
    top = entry.method in scale.best
    small = [f"{number(found.low, scale.digits)} to {number(found.high, scale.digits)}"] if _known(found) else []
    small += [plural(found.n, "image")] if found.undefined or found.n != images else []
    shown = f'<span class="value">{number(found.mean, scale.digits)}</span>{_BEST if top else ""}'
    shown += _compared(found, scale) + _strip(found, scale) + "".join(f"<small>{one}</small>" for one in small)
    return cell(found.mean, shown, "top" if top else "")


def _known(found: Cell) -> bool:
    return math.isfinite(found.low) and math.isfinite(found.high)


def _compared(found: Cell, scale: _Scale) -> str:
    if not found.different:
        return ""
    apart = found.mean - scale.reference if math.isnan(found.difference) else found.difference
    if scale.column.higher_is_better is None or math.isnan(apart) or not apart:
        return _MARKS["other"]
    return _MARKS["better" if (apart > 0) == scale.column.higher_is_better else "worse"]


def _strip(found: Cell, scale: _Scale) -> str:
    """The interval as a line with the mean on it."""
    if not math.isfinite(found.mean):
        return ""
    line = f'<path class="reach" d="M{scale.at(found.low)} 5H{scale.at(found.high)}"/>' if _known(found) else ""
    known = math.isfinite(scale.reference)
    beside = f'<path class="ref" d="M{scale.at(scale.reference)} 0V10"/>' if known else ""
    return (
        f'<svg class="strip" viewBox="0 0 80 10" aria-hidden="true">{beside}{line}'
        f'<circle cx="{scale.at(found.mean)}" cy="5" r="2.8"/></svg>'
    )


def _protocols(columns: Iterable[Column]) -> str:
    rows = "".join(f"<dt>{name(c.name)}</dt><dd>{esc(c.protocol)}</dd>" for c in columns if c.protocol)
    return f"<details><summary>How each metric was measured</summary><dl>{rows}</dl></details>" if rows else ""
