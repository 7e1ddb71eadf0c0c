"""Leaderboards as text: Markdown, CSV and LaTeX."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pandas as pd

from .store import Store

if TYPE_CHECKING:
    from .results import Results

Format = Literal["markdown", "csv", "latex"]
SUFFIXES: dict[str, str] = {"markdown": "md", "csv": "csv", "latex": "tex"}


def frame(results: Results, model: str, data: str) -> pd.DataFrame:
    """The leaderboard of a model on a data set as it is read: a row a method, a column a metric, and costs."""
    board = results.leaderboard()
    board = board[(board.model == model) & (board.data == data)]
    costs = results.costs()
    costs = costs[(costs.model == model) & (costs.data == data)].set_index("method")
    tops = board.groupby("metric")[["mean", "low", "high"]].apply(lambda b: b.abs().max().max()).to_dict()
    # Three digits of the largest number of the column.
    digits = {m: max(0, 2 - math.floor(math.log10(top))) if (top := tops.get(m, 0)) > 0 else 2 for m in results.metrics}
    rows = {}
    for name in results.methods:
        of = board[board.method == name].set_index("metric")
        title = name + (" (control)" if results.methods[name]["control"] else "")
        title += " (reference)" if name == results.reference else ""
        cells = {_column(results, metric): _cell(of, metric, digits[metric]) for metric in results.metrics}
        failed = int(of.errors.max()) if len(of) else 0
        cost = costs.loc[name] if name in costs.index else None
        cells["forwards"] = "" if cost is None or math.isnan(cost.forwards) else f"{cost.forwards:.2f}"
        cells["ms"] = "" if cost is None else f"{1000 * cost.seconds:.1f}"
        cells["failed"] = str(failed or "")
        rows[title] = cells
    found = pd.DataFrame.from_dict(rows, orient="index")
    return found if (found["failed"] != "").any() else found.drop(columns="failed")


def text(results: Results, kind: Format = "markdown") -> str:
    """All leaderboards in one of the formats; the CSV has one row for each number, unrounded.

    Raises:
        ValueError: there is no such format.
    """
    if kind == "csv":
        return str(results.leaderboard().merge(results.costs(), how="left").to_csv(index=False))
    if kind not in SUFFIXES:
        raise ValueError(f"found {kind!r}; expected one of {', '.join(SUFFIXES)}.")
    note = (
        f"Mean and 95 % interval over images; * differs from {results.reference} (paired sign-flip test, p < .05 after "
        "Holm). forwards: FLOPs of one explanation in forward passes; ms: by the clock, on the machine of the run."
    )
    if kind == "latex":
        tables = [_latex(frame(results, m, d), f"{m} on {d}. {note}") for m, d in results.sections]
        return "\n\n".join(tables) + "\n"
    tables = [f"## {m} on {d}\n\n{_markdown(frame(results, m, d))}" for m, d in results.sections]
    protocols = "\n".join(f"* {name}: {protocol}" for name, protocol in results.protocols.items())
    where = "\n".join(f"* {name}: {value}" for name, value in results.provenance.items())
    missing = f"\n\n**{results.missing} jobs are missing.**" if results.missing else ""
    return "\n\n".join([f"# {results.run['title']}", *tables, note, protocols, where]) + missing + "\n"


def save(results: Results, kind: Format) -> Path:
    """Write the leaderboards into the folder of the run."""
    return Store(results.folder).text(f"leaderboard.{SUFFIXES[kind]}", text(results, kind))


def _column(results: Results, metric: str) -> str:
    higher = results.metrics[metric]["higher_is_better"]
    return metric + {True: " ↑", False: " ↓", None: ""}[higher]


def _cell(of: pd.DataFrame, metric: str, digits: int) -> str:
    if metric not in of.index or math.isnan(of.loc[metric, "mean"]):
        return "–"
    row = of.loc[metric]
    return f"{row['mean']:.{digits}f} [{row.low:.{digits}f}, {row.high:.{digits}f}]" + "*" * bool(row.different)


def _markdown(shown: pd.DataFrame) -> str:
    clean = lambda cell: str(cell).replace("|", r"\|").replace("\n", " ")
    lines = [["method", *shown.columns], ["---"] * (1 + len(shown.columns))]
    lines += [[name, *row] for name, row in zip(shown.index, shown.to_numpy().tolist(), strict=True)]
    return "\n".join("| " + " | ".join(map(clean, line)) + " |" for line in lines)


def _latex(shown: pd.DataFrame, caption: str) -> str:
    special = {c: rf"\{c}" for c in "&%$#_{}"} | {
        "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "↑": r"$\uparrow$",
        "↓": r"$\downarrow$", "–": "--", "*": r"$^{*}$",
    }  # fmt: skip
    clean = lambda cell: "".join(special.get(c, c) for c in str(cell))
    line = lambda cells: " & ".join(map(clean, cells)) + r" \\"
    rows = [line([name, *row]) for name, row in zip(shown.index, shown.to_numpy(), strict=True)]
    head = line(["method", *shown.columns])
    body = "\n".join([r"\toprule", head, r"\midrule", *rows, r"\bottomrule"])
    columns = "l" + "r" * len(shown.columns)
    return (
        f"% needs \\usepackage{{booktabs}}\n\\begin{{table}}\n\\centering\n\\begin{{tabular}}{{{columns}}}\n{body}\n"
        f"\\end{{tabular}}\n\\caption{{{clean(caption)}}}\n\\end{{table}}"
    )
