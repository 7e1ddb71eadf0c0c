"""What is said over all sections: mean ranks, and notes."""

from __future__ import annotations

import math

from .data import Report
from .leaderboard import best_of
from .tables import cell, head, row, table
from .text import esc, number, plural

_OPEN = 4  # up to this many notes are shown at once


def overview(report: Report) -> str:
    """Ranks and notes; empty without either."""
    return _ranks(report) + _notes(report.notes)


def _ranks(report: Report) -> str:
    """Mean ranks as dots on a line, and in how many columns each method is best."""
    if not report.overview:
        return ""
    found = [best_of(section, column) for section in report.sections for column in section.columns]
    best = [methods for methods in found if methods]
    last = max(2, *(math.ceil(rank) for _, rank, _ in report.overview if math.isfinite(rank)), len(report.overview))
    rows = []
    for method, rank, control in report.overview:
        left = f"{100 * (rank - 1) / (last - 1):.1f}%"
        dot = f'<span class="dot" style="left:{left}"></span>' if math.isfinite(rank) else ""
        wins = sum(method in methods for methods in best)
        track = f'<td class="track" aria-hidden="true"><div>{dot}</div></td>'
        rows.append(row(method, control, cell(rank, number(rank, 2)) + track + cell(wins, f"{wins} of {len(best)}")))
    ends = f'<th class="ends" aria-hidden="true"><div><span>1 best</span><span>{last}</span></div></th>'
    heads = [head("Method"), head("Mean rank", "low"), ends, head("Best in", "high", "columns")]
    hint = "Mean rank over models, data sets and all metrics with a direction; 1 would be best in every one of them."
    return f'<div class="ranks">{table("Mean ranks", heads, rows, hint)}</div>'


def _notes(notes: tuple[str, ...]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{esc(note)}</li>" for note in notes)
    state = " open" if len(notes) <= _OPEN else ""
    return f'<details class="notes"{state}><summary>{plural(len(notes), "note")}</summary><ul>{items}</ul></details>'
