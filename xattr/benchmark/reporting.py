"""From the results of a run to the data of its report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.stats
import torch
from torch import Tensor

from .chunk import at_size
from .report import Cell, Column, Curves, Entry, Layers, Report, Section, Tile
from .store import Store

if TYPE_CHECKING:
    from .results import Results


def report_of(results: Results) -> Report:
    """All that the report shows."""
    board, costs = results.leaderboard(), results.costs()
    maps = _kept(results)
    sections = tuple(_section(results, board, costs, maps, model, data) for model, data in results.sections)
    notes = []
    if results.missing:
        notes.append(f"{results.missing} jobs are missing: the run has not come to its end.")
    failed = results.errors()
    notes += [
        f"{row.method} on {row.model}, {row.data}: {row['count']} without {row.metric}. {row.error}"
        for _, row in failed.head(20).iterrows()
    ]
    return Report(
        title=results.run["title"],
        sections=sections,
        provenance=results.provenance,
        command=f"xattr-explain benchmark plan.toml --out {results.folder.name}",
        notes=tuple(notes),
        overview=_overview(results),
    )


def _section(
    results: Results, board: pd.DataFrame, costs: pd.DataFrame, maps: Mapping[Any, Any], model: str, data: str
) -> Section:
    here = results.table[(results.table.model == model) & (results.table.data == data)]
    board = board[(board.model == model) & (board.data == data)]
    costs = costs[(costs.model == model) & (costs.data == data)].set_index("method")
    columns = tuple(
        Column(name, of["higher_is_better"], of["unit"], results.protocols.get(name, ""))
        for name, of in results.metrics.items()
    )
    layers = tuple(
        part
        for (m, d, method), found in results.layers.items()
        if (m, d) == (model, data)
        for part in _layers(method, found)
    )
    return Section(
        model=model,
        data=data,
        images=here.row.nunique(),
        reference=results.reference,
        columns=columns,
        entries=tuple(_entry(results, board, costs, here, n) for n in results.methods if (here.method == n).any()),
        curves=tuple(_curves(results, here)),
        tiles=tuple(_tiles(results, here, maps.get((model, data), {}))),
        layers=layers,
        agreement=_agreement(results, model, data),
    )


def _entry(results: Results, board: pd.DataFrame, costs: pd.DataFrame, here: pd.DataFrame, name: str) -> Entry:
    cells = {
        row.metric: Cell(
            row["mean"], row.low, row.high, int(row.n), int(row.undefined),
            None if name == results.reference else bool(row.different), row.difference,
        )
        for _, row in board[board.method == name].iterrows()
    }  # fmt: skip
    cost = costs.loc[name] if name in costs.index else pd.Series(dtype="float64")
    failed = here[(here.method == name) & here.error.notna()]
    number = lambda key: float(cost.get(key, math.nan))
    return Entry(
        method=name,
        control=bool(results.methods[name]["control"]),
        cells=cells,
        errors=int(failed.row.nunique()),
        seconds=number("seconds"),
        forwards=number("forwards"),
        flops=number("flops"),
        peak_bytes=number("peak_bytes"),
    )


def _curves(results: Results, here: pd.DataFrame) -> list[Curves]:
    """The mean curve of each method, and its normal interval at every point, for curves of equal length."""
    found = []
    details = here[here.curve.notna()]
    for metric in details.metric.unique():
        of_metric = details[details.metric == metric]
        steps = of_metric.curve.map(len).mode()
        if not len(steps):
            continue
        of_metric = of_metric[of_metric.curve.map(len) == steps.iloc[0]]
        fractions = np.stack(of_metric.fractions.to_numpy()).mean(0).tolist()
        by_method = {}
        for name in results.methods:
            rows = of_metric[of_metric.method == name]
            if not len(rows):
                continue
            by_image = np.stack([np.mean(np.stack(c.to_numpy()), axis=0) for _, c in rows.groupby("row").curve])
            mean, n = by_image.mean(0), len(by_image)
            half = 1.96 * by_image.std(0, ddof=1) / math.sqrt(n) if n > 1 else np.full_like(mean, math.nan)
            by_method[name] = (mean.tolist(), (mean - half).tolist(), (mean + half).tolist())
        found.append(Curves(metric.rpartition("/")[2], fractions, by_method))
    return found


def _tiles(results: Results, here: pd.DataFrame, kept: Mapping[str, Any]) -> list[Tile]:
    pictures: dict[int, Tensor] = kept.get("pictures", {})
    maps: dict[str, dict[int, Tensor]] = kept.get("maps", {})
    found = []
    for row, picture in sorted(pictures.items()):
        of_image = here[(here.row == row) & ~here.metric.str.contains("/")]
        if not len(of_image):
            continue
        first = of_image.iloc[0]
        of_methods = {name: by_row[row] for name, by_row in maps.items() if row in by_row and by_row[row].ndim == 3}
        errors = {
            name: next((e for e in group.error if e), "no map")
            for name, group in of_image.groupby("method")
            if name not in of_methods
        }
        scores: dict[str, dict[str, float]] = {}
        for (name, metric), value in of_image.groupby(["method", "metric"]).value.mean().items():  # type: ignore[misc]
            scores.setdefault(str(name), {})[str(metric)] = float(value)
        known = lambda value: "" if pd.isna(value) else f"class {int(value)}"
        found.append(
            Tile(
                image=str(first.image if first.image is not None else row),
                label=known(first.label),
                explained=known(first.target),
                picture=picture.numpy(),
                maps={name: heat[0].numpy() for name, heat in of_methods.items()},
                errors=errors,
                scores=scores,
                disagreement=disagreement([heat for name, heat in of_methods.items() if not _control(results, name)]),
            )
        )
    return found


def disagreement(maps: Sequence[Tensor]) -> float:
    """One less the mean rank correlation of pairs of maps, on the coarsest of their grids; NaN for fewer than two."""
    if len(maps) < 2:
        return math.nan
    size = min(((heat.shape[1], heat.shape[2]) for heat in maps), key=math.prod)
    flat = torch.cat([at_size(heat[None].double(), size, "bilinear").flatten(1) for heat in maps])
    ranks = scipy.stats.rankdata(flat.numpy(), axis=1)
    with np.errstate(invalid="ignore"):  # a map that is the same everywhere agrees with none
        found = np.corrcoef(ranks)[np.triu_indices(len(maps), 1)]
    return 1 - float(np.nanmean(found)) if np.isfinite(found).any() else math.nan


def _layers(method: str, found: Mapping[str, Any]) -> list[Layers]:
    names = [str(name) for name in found["names"]]
    titles = {
        "gate": "share of the attention branch in each block",
        "head weights": "weight of each head in each block",
        "attention": "attention to each layer",
    }
    return [
        Layers(method, titles[kind], kind, np.asarray(values, dtype=np.float64), names)
        for kind, values in found.items()
        if kind in titles
    ]


def _kept(results: Results) -> dict[tuple[str, str], dict[str, Any]]:
    """Maps and pictures by model and data set: of the first seed, which stands for the others."""
    store, plan = Store(results.folder), results.run["plan"]
    first = plan.get("seeds", [0])[0]
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for model, data, method, seed, start, _, key in results.run["jobs"]:
        if seed != first or start >= plan.get("keep_maps", 24) or (loaded := store.loaded(f"maps/{key}")) is None:
            continue
        place = plan["models"][model]["name"], plan["data"][data]["name"]
        here = found.setdefault(place, {"pictures": {}, "maps": {}})
        if "pictures" in loaded:
            here["pictures"] |= dict(zip(loaded["picture_rows"].tolist(), loaded["pictures"], strict=True))
        if "maps" in loaded:
            of_method = here["maps"].setdefault(plan["methods"][method]["name"], {})
            of_method |= dict(zip(loaded["rows"].tolist(), loaded["maps"], strict=True))
    return found


def _agreement(results: Results, model: str, data: str) -> tuple[tuple[str, ...], list[list[float]], float] | None:
    ranks = results.agreement(model, data)
    if ranks is None or len(ranks.metrics) < 2:
        return None
    rows = ranks.ranks.numpy()
    tau = [[float(scipy.stats.kendalltau(a, b).statistic) for b in rows] for a in rows]
    return ranks.metrics, tau, ranks.kendall_w


def _overview(results: Results) -> tuple[tuple[str, float, bool], ...]:
    """Mean rank of each method over models, data sets and metrics."""
    ranks: dict[str, list[float]] = {}
    for model, data in results.sections:
        found = results.agreement(model, data)
        for name, mean in zip(found.methods, found.mean_rank.tolist(), strict=True) if found else ():
            ranks.setdefault(name, []).append(mean)
    whole = {name: sum(v) / len(v) for name, v in ranks.items() if len(v) == len(results.sections)}
    ordered = sorted(whole.items(), key=lambda item: item[1])
    return tuple((name, mean, bool(results.methods[name]["control"])) for name, mean in ordered)


def _control(results: Results, name: str) -> bool:
    return bool(results.methods[name]["control"])
