"""Numbers in coloured cells and bars: gates, head weights, attention to layers, and how far metrics agree."""

from __future__ import annotations

import math

import numpy as np

from .data import Layers, Section
from .text import decimals, esc, name, number


def layers(section: Section) -> str:
    """All that methods say of layers; empty if nothing."""
    figures = "".join(_bars(one) if np.ndim(one.values) == 1 else _heads(one) for one in section.layers)
    return f'<div class="charts">{figures}</div>' if figures else ""


def _figure(one: Layers, inside: str) -> str:
    label = f"{one.method}: {one.title}"
    return (
        f"<figure><figcaption><strong>{name(one.method)}</strong>: {esc(one.title)}</figcaption>"
        f'<div class="scroll" role="region" tabindex="0" aria-label="{esc(label)}">{inside}</div></figure>'
    )


def _bars(one: Layers) -> str:
    """One bar for each layer. Gates are shares of a whole, so their bars end at 1; others end at the largest."""
    values = [float(v) for v in one.values]
    sizes = [abs(v) for v in values if math.isfinite(v)]
    full = 1.0 if one.kind == "gate" and max(sizes, default=0) <= 1 else max(sizes, default=1.0) or 1.0
    digits = decimals(values)
    rows = []
    for layer, value in zip(one.layers, values, strict=True):
        wide = 100 * min(1.0, abs(value) / full) if math.isfinite(value) else 0.0
        kind = "fill negative" if value < 0 else "fill"
        rows.append(
            f'<tr><th scope="row">{name(layer)}</th><td>{number(value, digits)}</td>'
            f'<td class="track" aria-hidden="true"><div class="{kind}" style="width:{wide:.1f}%"></div></td></tr>'
        )
    head = f'<th scope="col">Layer</th><th scope="col">Value</th><th class="ends" aria-hidden="true">{_ends(full)}</th>'
    return _figure(one, f'<table class="bars"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>')


def _ends(full: float) -> str:
    return f"<div><span>0</span><span>{number(full)}</span></div>"


def _heads(one: Layers) -> str:
    """Layers in rows, heads in columns; the darker, the larger."""
    values = np.asarray(one.values, dtype=np.float64)
    finite = values[np.isfinite(values)]
    full = float(np.abs(finite).max()) if finite.size else 1.0
    head = "".join(f'<th scope="col">{i + 1}</th>' for i in range(values.shape[1]))
    digits = decimals(finite.tolist())
    rows = "".join(
        f'<tr><th scope="row">{name(layer)}</th>{"".join(_coloured(float(v), full, digits) for v in row)}</tr>'
        for layer, row in zip(one.layers, values, strict=True)
    )
    head = f'<tr><th scope="col">Layer<small>by head</small></th>{head}</tr>'
    return _figure(one, f'<table class="heat"><thead>{head}</thead><tbody>{rows}</tbody></table>')


def agreement(section: Section) -> str:
    """Whether metrics order the methods alike; empty if that is unknown."""
    if section.agreement is None:
        return ""
    metrics, tau, w = section.agreement
    head = "".join(f'<th scope="col">{name(metric)}</th>' for metric in metrics)
    rows = "".join(
        f'<tr><th scope="row">{name(metric)}</th>{"".join(_coloured(float(v), 1.0, 2) for v in row)}</tr>'
        for metric, row in zip(metrics, tau, strict=True)
    )
    caption = f"Kendall's tau of each pair of metrics: {section.model} on {section.data}"
    return (
        f"<p>Kendall's W of all metrics: <strong>{number(w, 2)}</strong> (0: each orders the methods in its own way; "
        "1: all alike). The table has Kendall's tau of each pair, −1 to 1. Metrics that disagree measure "
        "different things: pick the one that asks your question.</p>"
        f'<div class="scroll" role="region" tabindex="0" aria-label="{esc(caption)}">'
        f'<table class="heat"><caption class="vh">{esc(caption)}</caption>'
        f'<thead><tr><th scope="col">Metric</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _coloured(value: float, full: float, digits: int | None) -> str:
    if not math.isfinite(value):
        return f"<td>{number(value)}</td>"
    share = round(100 * min(1.0, abs(value) / (full or 1.0)))
    kind = "below" if value < 0 else "above"
    return f'<td class="{kind}" style="--p:{share}%">{number(value, digits)}</td>'
