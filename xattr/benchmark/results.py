"""What a run found: a tidy table, and what may be said of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from ..metrics import Ranks, bootstrap_interval, paired_differences, rank_methods
from .store import MEASURED, Store, info

if TYPE_CHECKING:
    from .report import Report

_IMAGE = ["model", "data", "method", "row"]


@dataclass(frozen=True)
class Results:
    """The results of a run, complete or not.

    Attributes:
        folder: of the run.
        table: one row for each model, data set, image, method, seed and metric. `value` is NaN where a metric is
            undefined, and `error` says why there is none. Metrics with `/` in their name are details (curves).
            `seconds`, `forwards`, `flops` and `peak_bytes` are those of one explanation; counts stand with the first
            images.
        metrics: direction and unit of each metric.
        methods: whether each is a control.
        reference: the method that others are compared with.
        missing: jobs that are not done.
        provenance: versions, threads, machines and the like.
        protocols: how each metric was measured.
        layers: what a method said of layers, by model, data and method.
        run: the description of the run.

    Example:
        >>> import tempfile
        >>> from xattr.benchmark import Plan, run
        >>> parts = {"models": "embedded/class-token", "methods": ["GradSkip", "RandomMap"], "metrics": "pointing"}
        >>> results = run(Plan(**parts, data=[{"use": "scenes", "n": 8}]), tempfile.mkdtemp())
        >>> results.leaderboard()[["method", "metric", "mean", "n"]].values.tolist()[0]
        ['GradSkip', 'pointing', 1.0, 8]
    """

    folder: Path
    table: pd.DataFrame
    metrics: Mapping[str, Mapping[str, Any]]
    methods: Mapping[str, Mapping[str, Any]]
    reference: str
    missing: int
    provenance: Mapping[str, str]
    protocols: Mapping[str, str]
    layers: Mapping[tuple[str, str, str], Mapping[str, Any]] = field(repr=False)
    run: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, folder: str | Path) -> Results:
        """The results in the folder of a run; it may still be going on.

        Raises:
            RunError: this is no folder of a run, or nothing in it is finished.
        """
        from ..trace.errors import RunError

        store = Store(folder)
        run = store.description()
        tables = [store.read(job[-1]) for job in run["jobs"]]
        there = [table for table in tables if table is not None]
        if not there:
            raise RunError(f"{str(folder)!r}: none of {len(tables)} jobs is finished; run the plan.")
        said = [info(table) for table in there]
        first = [table.slice(0, 1).to_pylist()[0] for table in there]
        return cls(
            folder=Path(folder),
            table=pa.concat_tables(there).to_pandas(),
            metrics=run["metrics"],
            methods=run["methods"],
            reference=run["reference"],
            missing=len(tables) - len(there),
            provenance=_provenance(run, said),
            protocols={name: text for one in said for name, text in one["protocols"].items()},
            layers={
                (row["model"], row["data"], row["method"]): one["layers"]
                for row, one in zip(first, said, strict=True)
                if one["layers"]
            },
            run=run,
        )

    @property
    def compared(self) -> pd.DataFrame:
        """The table without what two runs of one plan do not share, in an order that does not depend on the run."""
        keys = ["model", "data", "method", "seed", "row", "metric"]
        return self.table.drop(columns=list(MEASURED)).sort_values(keys, ignore_index=True)

    @property
    def sections(self) -> list[tuple[str, str]]:
        """Models and data sets, in the order of the plan."""
        return [(m, d) for m in self.table.model.unique() for d in self.table.data.unique()]

    def values(self, model: str, data: str) -> dict[str, dict[str, Tensor]]:
        """Of each metric and method one value an image, `[n]`; seeds averaged, NaN where undefined or failed."""
        here = self.table[(self.table.model == model) & (self.table.data == data)]
        found: dict[str, dict[str, Tensor]] = {}
        rows = sorted(here.row.unique())
        for metric in self.metrics:
            of_metric = here[here.metric == metric]
            mean = of_metric.groupby(["method", "row"]).value.mean().unstack().reindex(columns=rows)
            found[metric] = {
                name: torch.from_numpy(mean.loc[name].to_numpy(dtype="float64").copy())
                for name in self.methods
                if name in mean.index
            }
        return found

    def leaderboard(self) -> pd.DataFrame:
        """For each model, data set, metric and method: mean, 95 % interval over images, and whether it differs.

        `p_holm` and `different` compare with the reference on the images where both are defined: paired sign-flip test
        of the mean, Holm's correction over the methods of the metric.
        """
        return self._board.copy()

    @cached_property
    def _board(self) -> pd.DataFrame:
        found = []
        for model, data in self.sections:
            errors = self._errors(model, data)
            for metric, by_method in self.values(model, data).items():
                apart: dict[str, Any] = {}
                if self.reference in by_method:
                    apart = {d.method: d for d in paired_differences(by_method, self.reference)}
                for name, values in by_method.items():
                    interval, test = bootstrap_interval(values), apart.get(name)
                    found.append(
                        {
                            "model": model,
                            "data": data,
                            "metric": metric,
                            "method": name,
                            "control": self.methods[name]["control"],
                            "mean": interval.mean,
                            "low": interval.low,
                            "high": interval.high,
                            "n": interval.n,
                            "undefined": interval.undefined,
                            "errors": int(errors.get((metric, name), 0)),
                            "difference": test.interval.mean if test else math.nan,
                            "p_holm": test.p_holm if test else math.nan,
                            "different": bool(test and test.different),
                        }
                    )
        return pd.DataFrame(found)

    def costs(self) -> pd.DataFrame:
        """Cost of one explanation for each model, data set and method: seconds by the clock, and counts."""
        shown = self.table[self.table.error.isna() & ~self.table.metric.str.contains("/")]
        once = shown.drop_duplicates([*_IMAGE, "seed"])
        how = {"seconds": "mean", "forwards": "first", "flops": "first", "peak_bytes": "first"}
        return once.groupby(["model", "data", "method"], sort=False)[list(how)].agg(how).reset_index()

    def agreement(self, model: str, data: str) -> Ranks | None:
        """Ranks of the methods by every metric that has a direction, and how far the metrics agree.

        `None` where fewer than two methods have all of them.
        """
        values = {m: v for m, v in self.values(model, data).items() if self.metrics[m]["higher_is_better"] is not None}
        means = {m: {k: float(v.nanmean()) for k, v in by.items()} for m, by in values.items()}
        whole = [name for name in self.methods if all(math.isfinite(by.get(name, math.nan)) for by in means.values())]
        if len(whole) < 2 or not means:
            return None
        for metric, by in values.items():  # on the images that all of them have: failing on hard ones is no merit
            rows = torch.stack([by[name] for name in whole])
            there = rows.isfinite().all(0)
            if bool(there.any()):
                means[metric] = dict(zip(whole, rows[:, there].mean(1).tolist(), strict=True))
        direction = {m: bool(self.metrics[m]["higher_is_better"]) for m in means}
        return rank_methods({m: {name: by[name] for name in whole} for m, by in means.items()}, direction)

    def errors(self) -> pd.DataFrame:
        """What failed, how often, and the first image."""
        failed = self.table[self.table.error.notna()]
        keys = ["model", "data", "method", "metric", "error"]
        return failed.groupby(keys, sort=False).row.agg(["count", "min"]).reset_index().rename(columns={"min": "row"})

    def report(self) -> Report:
        """The data of the HTML report."""
        from .reporting import report_of

        return report_of(self)

    def save_report(self, file: str | Path | None = None) -> Path:
        """Write the report, one HTML file that needs no network; by default `report.html` in the folder of the run."""
        from .report import render

        page = render(self.report())
        if file is None:
            return Store(self.folder).text("report.html", page)
        path = Path(file)
        path.write_text(page, encoding="utf-8")
        return path

    def _errors(self, model: str, data: str) -> dict[tuple[str, str], int]:
        here = self.table[(self.table.model == model) & (self.table.data == data) & self.table.error.notna()]
        return dict(here.groupby(["metric", "method"]).size())

    def _repr_html_(self) -> str:
        from .export import frame

        parts = [f"<h4>{m} on {d}</h4>{frame(self, m, d).to_html(escape=True)}" for m, d in self.sections]
        return "".join(parts) + (f"<p>{self.missing} jobs are missing.</p>" if self.missing else "")


def _provenance(run: Mapping[str, Any], said: list[dict[str, Any]]) -> dict[str, str]:
    places = [one["ran"] for one in said]
    several = lambda key: ", ".join(sorted({str(p[key]) for p in places if p.get(key)}))
    return {
        "versions": ", ".join(f"{name} {version}" for name, version in run["versions"].items()),
        "python": several("python"),
        "threads of torch in each process": several("threads"),
        "machines": several("machine"),
        "hosts": several("host"),
        **({"accelerators": several("gpu")} if several("gpu") else {}),
        "measured": f"{min(p['at'] for p in places)} to {max(p['at'] for p in places)}",
        "explained class": run["plan"].get("target", "predicted"),
        "seeds": ", ".join(map(str, run["plan"].get("seeds", [0]))),
        "jobs": f"{len(said)} of {len(run['jobs'])}",
        "content": run["jobs"][0][-1][:12] if run["jobs"] else "",
    }
