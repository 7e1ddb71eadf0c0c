"""Tables whose columns sort."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .data import Entry
from .text import esc, name


def table(caption: str, heads: Iterable[str], rows: Iterable[str], hint: str = "") -> str:
    """A table in a box of its own that scrolls, so that the page never does so sideways."""
    above = f'<p class="hint">{esc(hint)}</p>' if hint else ""
    return (
        f'<div>{above}<div class="scroll" role="region" tabindex="0" aria-label="{esc(caption)}"><table data-sort>'
        f'<caption class="vh">{esc(caption)}</caption>'
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></div>"
    )


def head(title: str, first: str = "", *about: str) -> str:
    """The head of a column; `first` is what a first click puts on top: "high", "low", or "" for the smallest."""
    small = "".join(f"<small>{esc(line)}</small>" for line in about if line)
    arrow = '<span class="arrow" aria-hidden="true"></span>'
    return (
        f'<th scope="col" aria-sort="none" data-first="{first}"><button type="button" class="needs-js">{name(title)}'
        f'{arrow}</button><span class="no-js">{name(title)}</span>{small}</th>'
    )


def row(method: str, control: bool, cells: str, reference: bool = False) -> str:
    """A row of a method, with what kind of method it is in words."""
    tags = [word for word, holds in (("control", control), ("reference", reference)) if holds]
    said = "".join(f' <span class="tag">{word}</span>' for word in tags)
    return (
        f'<tr{" class=control" if control else ""}><th scope="row" data-v="{esc(method)}">{name(method)}{said}</th>'
        f"{cells}</tr>"
    )


def entry_row(entry: Entry, cells: str, reference: str) -> str:
    """As `row`, of an entry."""
    return row(entry.method, entry.control, cells, entry.method == reference)


def cell(value: float, shown: str, kind: str = "") -> str:
    """A cell that sorts by `value`, NaN last, and shows safe text."""
    return (
        f'<td data-v="{"" if math.isnan(value) else repr(float(value))}"{f" class={kind}" if kind else ""}>{shown}</td>'
    )
