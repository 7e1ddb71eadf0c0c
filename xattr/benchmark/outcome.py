"""What comes of a job: values of metrics, rows of the table, and where it ran."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..metrics import CurvePair
from .bench import Bench, Job
from .chunk import Chunk
from .measures import Measure
from .store import Shard


@dataclass(frozen=True)
class Result:
    """What a metric says of the images of a job.

    Attributes:
        values: one an image; NaN where undefined.
        errors: one an image; empty where there was none.
        curves: by name, scores and fractions of each image.
        protocol: how it was measured.
    """

    values: list[float]
    errors: list[str]
    curves: Mapping[str, tuple[list[list[float]], list[list[float]]]] = field(default_factory=dict)
    protocol: str = ""

    @classmethod
    def of(cls, measure: Measure, found: Any, count: int) -> Result:
        """From what the function returned."""
        values = measure.values(found, count).tolist()
        errors = ["ValueError: the value is infinite" if math.isinf(value) else "" for value in values]
        parts = [found.deletion, found.insertion] if isinstance(found, CurvePair) else [found]
        curves = {p.protocol.metric: (p.curve.tolist(), p.fractions.tolist()) for p in parts if hasattr(p, "curve")}
        protocol = getattr(parts[0], "protocol", None)
        return cls(values, errors, curves, protocol_text(protocol))

    @classmethod
    def joined(cls, ones: Sequence[Result]) -> Result:
        """Several of one image each; an image without curves gets empty ones."""
        names = dict.fromkeys(name for one in ones for name in one.curves)
        none: tuple[list[list[float]], list[list[float]]] = ([[]], [[]])
        parts = {name: [one.curves.get(name, none) for one in ones] for name in names}
        curves = {n: ([c[0][0] for c in found], [c[1][0] for c in found]) for n, found in parts.items()}
        protocol = next((one.protocol for one in ones if one.protocol), "")
        return cls([one.values[0] for one in ones], [one.errors[0] for one in ones], curves, protocol)


def protocol_text(protocol: Any) -> str:
    """A protocol in a few words, without what differs between shards."""
    if protocol is None:
        return ""
    said = {k: v for k, v in vars(protocol).items() if k not in ("metric", "images", "class_") and v is not None}
    return ", ".join(f"{k} {v}" for k, v in said.items())


def table_rows(
    bench: Bench,
    job: Job,
    chunk: Chunk,
    errors: Sequence[str],
    seconds: Sequence[float],
    results: Mapping[str, Result],
    costs: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Rows of a shard: for each image and metric its value or why there is none, and curves as details."""
    shared, names = _shared(bench, job), [m.name for m in bench.measures]
    for i, row in enumerate(chunk.rows):
        assert chunk.examples is not None
        labels = chunk.examples.labels
        image: dict[str, Any] = {"row": row, "image": chunk.examples.names[i], "target": int(chunk.target[i])}
        image |= {"label": None if labels is None else int(labels[i]), "predicted": int(chunk.scores[i].argmax())}
        image |= {"seconds": seconds[i], **costs}
        for name in names:
            result = results.get(name)
            failed = errors[i] or (result.errors[i] if result else "no map")
            found = {"value": result.values[i]} if result and not failed else {}
            yield {**shared, **image, "metric": name, **found, "error": failed or None}
            for detail, (curve, fractions) in (result.curves if result and not failed else {}).items():
                yield {**shared, **image, "metric": f"{name}/{detail}", "curve": curve[i], "fractions": fractions[i]}
    for row, error in chunk.failed.items():
        for name in names:
            yield {**shared, "row": row, "metric": name, "error": error}


def _shared(bench: Bench, job: Job) -> dict[str, Any]:
    plan = bench.plan
    found = {"model": plan.models[job.model].name, "data": plan.data[job.data].name}
    return {**found, "method": bench.explainers[job.method].name, "seed": job.seed}


def place() -> dict[str, Any]:
    """Where this process runs, and how."""
    return {
        "host": platform.node(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_initialized() else "",
        "at": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def failure(bench: Bench, job: Job, message: str) -> Shard:
    """The result of a job that cannot be done."""
    plan, shared = bench.plan, {**_shared(bench, job), "error": message}
    rows = [{**shared, "row": row, "metric": m.name} for row in range(job.first, job.stop) for m in bench.measures]
    said = {
        "protocols": {},
        "layers": {},
        "times": {},
        "keep_maps": plan.keep_maps,
        "ran": {**place(), "threads": None},
    }
    return Shard(rows, said)
