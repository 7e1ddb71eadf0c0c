"""Scores while pixels are removed or shown: lines with bands, and a legend that switches them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .chart import Axis, Frame, Look
from .data import Curves, Section
from .text import decimals, esc, name, number

_WORDS = {
    "deletion": ("Deletion", "share of the picture removed", "the faster it falls, the better the map"),
    "insertion": ("Insertion", "share of the picture shown", "the faster it rises, the better the map"),
}
_SIGNS = 5  # marks on a line


def curves(section: Section, looks: Mapping[str, Look]) -> str:
    """The drawings with their legend; empty without curves."""
    if not section.curves:
        return ""
    ends = [v for c in section.curves for lines in c.by_method.values() for line in lines for v in line]
    y = Axis.linear(ends, "score of the explained class", room=0.03)
    methods = [m for m in section.methods if any(m in c.by_method for c in section.curves)]
    keys = "".join(
        f'<button type="button" class="key needs-js" aria-pressed="true" data-method="{looks[m].index}">'
        f"{looks[m].sample}<span>{name(m)}</span></button>"
        f'<span class="key no-js">{looks[m].sample}<span>{name(m)}</span></span>'
        for m in methods
    )
    figures = "".join(_figure(one, y, looks) for one in section.curves)
    return (
        '<div data-curves><p class="hint">Lines are means over images, bands their 95 % intervals. '
        '<span class="needs-js">The names switch methods on and off.</span></p>'
        f'<div class="legend" role="group" aria-label="Methods in the curves">{keys}'
        '<button type="button" class="needs-js" data-all>Switch all</button></div>'
        f'<div class="charts">{figures}</div></div>'
    )


def _figure(one: Curves, y: Axis, looks: Mapping[str, Look]) -> str:
    title, share, reading = _WORDS.get(one.metric, (one.metric, "share of the picture", ""))
    frame = Frame(Axis.linear(one.fractions, share, room=0.0), y)
    series = "".join(_series(frame, one, method, looks[method]) for method in reversed(list(one.by_method)))
    label = f"{title} curves of {len(one.by_method)} methods; the numbers are in the table below."
    return (
        f"<figure><figcaption><strong>{name(title)}</strong>{': ' + reading if reading else ''}</figcaption>"
        f"{frame.svg(series, label)}{_table(one, title)}</figure>"
    )


def _series(frame: Frame, one: Curves, method: str, look: Look) -> str:
    mean, low, high = one.by_method[method]
    there = [i for i in range(len(mean)) if math.isfinite(low[i]) and math.isfinite(high[i])]
    band = ""
    if len(there) > 1:
        around = [(one.fractions[i], high[i]) for i in there] + [(one.fractions[i], low[i]) for i in reversed(there)]
        outline = frame.path([x for x, _ in around], [v for _, v in around])
        band = f'<path class="band" d="{outline}Z"/>'
    every = max(1, round(len(mean) / _SIGNS))
    signs = "".join(
        look.mark(*frame.at(one.fractions[i], mean[i]))
        for i in range(look.index % every, len(mean), every)  # each method at steps of its own, to lie side by side
        if math.isfinite(mean[i])
    )
    line = f'<path class="line" d="{frame.path(one.fractions, mean)}"{look.dash}/>'
    return f"<g {look.attributes}><title>{esc(method)}</title>{band}{line}{signs}</g>"


def _table(one: Curves, title: str) -> str:
    digits = decimals(v for mean, _, _ in one.by_method.values() for v in mean)
    head = "".join(f'<th scope="col">{number(100 * f)} %</th>' for f in one.fractions)
    rows = "".join(
        f'<tr><th scope="row">{name(method)}</th>{"".join(f"<td>{number(v, digits)}</td>" for v in mean)}</tr>'
        for method, (mean, _, _) in one.by_method.items()
    )
    return (
        f'<details><summary>{name(title)} as a table</summary><div class="scroll" role="region" tabindex="0" '
        f'aria-label="{esc(title)} as a table"><table class="plain"><thead><tr><th scope="col">Method</th>{head}</tr>'
        f"</thead><tbody>{rows}</tbody></table></div></details>"
    )
