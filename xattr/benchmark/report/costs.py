"""What an explanation costs, and what one gets for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, Frame, Look
from .data import Column, Entry, Section
from .tables import cell, entry_row, head, table
from .text import count, duration, esc, listed, memory, name, number, short

_COSTS: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "forwards": ("Forwards", "of the model", number),
    "seconds": ("Time", "by the clock", duration),
    "flops": ("FLOPs", "operations", count),
    "peak_bytes": ("Memory", "at its peak", memory),
}
_AXES = {"forwards": "forwards for one explanation", "seconds": "seconds for one explanation"}
_LETTER, _LINE, _MOST = 5.9, 13.0, 22  # size of text of 11 units: enough for most letters


def costs(section: Section, looks: Mapping[str, Look]) -> str:
    """A table of costs beside drawings of cost against each metric; empty without any cost."""
    known = [key for key in _COSTS if any(math.isfinite(getattr(e, key)) for e in section.entries)]
    if not known:
        return ""
    return f'<div class="pair" data-costs>{_drawings(section, looks)}{_table(section, known)}</div>'


def _table(section: Section, known: list[str]) -> str:
    heads = [head("Method")] + [head(_COSTS[key][0], "low", _COSTS[key][1]) for key in known]
    rows = []
    for entry in section.entries:
        values = {key: float(getattr(entry, key)) for key in known}
        cells = "".join(cell(value, _COSTS[key][2](value)) for key, value in values.items())
        rows.append(entry_row(entry, cells, section.reference))
    return table(f"Cost of one explanation: {section.model} on {section.data}", heads, rows, "Cost of one explanation.")


def _drawings(section: Section, looks: Mapping[str, Look]) -> str:
    """One drawing for each metric and cost; all but the first are hidden until they are chosen."""
    drawn = {}
    for cost in _AXES:
        for i, column in enumerate(section.columns):
            if points := [entry for entry in section.entries if _shown(entry, cost, column)]:
                drawn[cost, i] = _drawing(section, points, cost, column, looks)
    if not drawn:
        return "<div></div>"
    first = min(drawn, key=lambda key: section.columns[key[1]].higher_is_better is None)
    figures = "".join(
        f'<figure data-cost="{cost}" data-metric="{i}"{"" if (cost, i) == first else " hidden"}>{figure}</figure>'
        for (cost, i), figure in drawn.items()
    )
    metrics = "".join(
        f'<option value="{i}"{" selected" if i == first[1] else ""}>{esc(section.columns[i].name)}</option>'
        for i in dict.fromkeys(i for _, i in drawn)
    )
    by = "".join(f'<option value="{cost}">{cost}</option>' for cost in dict.fromkeys(cost for cost, _ in drawn))
    return (
        '<div><div class="controls needs-js" role="group" aria-label="Axes of the drawing">'
        f'<label>Metric <select data-pick="metric" autocomplete="off">{metrics}</select></label>'
        f'<label>Cost <select data-pick="cost" autocomplete="off">{by}</select></label></div>{figures}</div>'
    )


def _shown(entry: Entry, cost: str, column: Column) -> bool:
    cell, price = entry.cells.get(column.name), getattr(entry, cost)
    return cell is not None and math.isfinite(cell.mean) and math.isfinite(price) and price > 0


def _drawing(section: Section, points: list[Entry], cost: str, column: Column, looks: Mapping[str, Look]) -> str:
    cells = [e.cells[column.name] for e in points]
    better = {True: " (higher is better)", False: " (lower is better)", None: ""}[column.higher_is_better]
    frame = Frame(
        Axis.logarithmic((getattr(e, cost) for e in points), _AXES[cost]),
        Axis.linear((v for c in cells for v in (c.mean, c.low, c.high)), column.name + better),
    )
    places = [frame.at(getattr(e, cost), c.mean) for e, c in zip(points, cells, strict=True)]
    parts = []
    for entry, found, (x, y), label in zip(points, cells, places, _labels(points, places), strict=True):
        reach = ""
        if math.isfinite(found.low) and math.isfinite(found.high):
            ends = [frame.at(getattr(entry, cost), end)[1] for end in (found.low, found.high)]
            reach = f'<path class="reach" d="M{x:.1f} {ends[0]:.1f}V{ends[1]:.1f}"/>'
        look = looks[entry.method]
        parts.append(f"<g {look.attributes}>{reach}{look.mark(x, y)}{label}</g>")
    absent = [name(e.method) for e in section.entries if e not in points]
    missing = f'<p class="hint">Not drawn, as cost or value is unknown or 0: {listed(absent)}.</p>' if absent else ""
    front, said = _front(frame, points, cost, column), ""
    if front:
        said = '<p class="hint">The stepped line joins methods that no cheaper one beats, controls left out.</p>'
    label = f"{column.name} against {_AXES[cost]}; the numbers are in the tables."
    return frame.svg(front + "".join(parts), label) + said + missing


def _front(frame: Frame, points: list[Entry], cost: str, column: Column) -> str:
    """The best value that each cost buys, as steps; empty where nothing is gained by paying more."""
    if column.higher_is_better is None:
        return ""
    sign = 1 if column.higher_is_better else -1
    best, path, steps = -math.inf, "", 0
    honest = [e for e in points if not e.control]
    for entry in sorted(honest, key=lambda e: (getattr(e, cost), -sign * e.cells[column.name].mean)):
        mean = entry.cells[column.name].mean
        if sign * mean > best:
            x, y = frame.at(getattr(entry, cost), mean)
            path += f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}"
            best, steps = sign * mean, steps + 1
    return f'<path class="front" d="{path}H{WIDTH - RIGHT}"/>' if steps else ""


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def over(self, other: _Box) -> float:
        """Area that the two share."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        return max(0.0, wide) * max(0.0, min(self.bottom, other.bottom) - max(self.top, other.top))


def _labels(points: list[Entry], places: list[tuple[float, float]]) -> list[str]:
    """A name at each point: at the first place around it that is free, else where it hides least."""
    taken = [_Box(x - 5, y - 5, x + 5, y + 5) for x, y in places]
    texts = []
    for entry, (x, y) in zip(points, places, strict=True):
        width = _LETTER * min(len(entry.method), _MOST)
        options = []
        for away in (0.0, 10.0, 20.0):
            for across, down in ((1, 0), (-1, 0), (1, -1), (-1, -1), (1, 1), (-1, 1), (0, -1), (0, 1)):
                left = x + across * 8 - (width if across < 0 else width / 2 if across == 0 else 0)
                middle = y + down * ((13 if across == 0 else 9) + away)
                if down or not away:
                    options.append(_Box(left, middle - _LINE / 2, left + width, middle + _LINE / 2))
        inside = [b for b in options if b.left >= LEFT and b.right <= WIDTH - RIGHT + 8] or options
        inside = [b for b in inside if b.top >= TOP - 8 and b.bottom <= HEIGHT - BOTTOM] or inside
        box = min(inside, key=lambda b: (round(sum(b.over(o) for o in taken)), inside.index(b)))
        taken.append(box)
        texts.append(
            f'<text class="name" x="{box.left:.1f}" y="{box.bottom - 3:.1f}">{short(entry.method, _MOST)}</text>'
        )
    return texts
