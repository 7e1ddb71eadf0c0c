"""Doing a job: explain its images, measure the maps, and count the cost."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._network import one_line
from ..attr import GradSkip
from ..heads import LayaModel
from ..metrics import count_flops, peak_bytes
from ..metrics.layer_features import LayerPerturber
from ..trace.modules import in_evaluation_mode
from .bench import Bench, Job
from .chunk import Chunk, SameCalls, at_size, classified
from .explainers import Explainer
from .limits import OverTime, Watch, seeded
from .measures import Measure
from .outcome import Result, place, table_rows
from .store import Shard


@dataclass
class Worker:
    """Does jobs one after the other; images and what is bound to them stay for the next job on the same ones.

    Attributes:
        bench: what the plan names.
        watch: ends what takes too long.
    """

    bench: Bench
    watch: Watch = field(default_factory=Watch)
    _last: tuple[tuple[int, int, int], Chunk] | None = None

    def chunk(self, job: Job) -> Chunk:
        """The images of a job."""
        place = (job.model, job.data, job.first)
        if self._last is None or self._last[0] != place:
            self._last = None
            self._last = (place, Chunk.of(self.bench, job))
        return self._last[1]

    def perform(self, job: Job) -> Shard:
        """A pure function of the job: its result depends on nothing that ran before."""
        began = time.perf_counter()
        torch.set_num_threads(self.bench.plan.threads)  # a method may have set another number
        chunk = self.chunk(job)
        with in_evaluation_mode(chunk.model):  # a model of the user's own may be in train mode
            return self._performed(job, chunk, began)

    def _performed(self, job: Job, chunk: Chunk, began: float) -> Shard:
        plan, explainer = self.bench.plan, self.bench.explainers[job.method]
        loaded = time.perf_counter()
        maps, errors, seconds = self._explained(explainer, chunk, job)
        explained = time.perf_counter()
        results = self._measured(explainer, chunk, job, maps)
        measured = time.perf_counter()
        # Counts are the same for every image, so one of them says it; layers are shown, not compared.
        costs, layers = ({}, {}) if job.first or job.seed != plan.seeds[0] else self._once(explainer, chunk, job, maps)
        rows = list(table_rows(self.bench, job, chunk, errors, seconds, results, costs))
        times = {"load": loaded - began, "attribute": sum(seconds), "metrics": measured - explained}
        times["cost"] = time.perf_counter() - measured
        protocols = {name: result.protocol for name, result in results.items() if result.protocol}
        said = {"protocols": protocols, "layers": layers, "times": times, "keep_maps": plan.keep_maps, "ran": place()}
        if any(errors):
            self.forget()  # a method that failed may have left its hooks on the model
        return Shard(rows, said, self._kept(chunk, job, maps))

    def forget(self) -> None:
        """Load model and images anew for the next job."""
        self._last = None
        self.bench.forget()

    def _kept(self, chunk: Chunk, job: Job, maps: list[Tensor | None]) -> dict[str, Tensor]:
        """Maps of the first images, and, beside those of the first method, the pictures."""
        shown = [i for i, row in enumerate(chunk.rows) if row < self.bench.plan.keep_maps]
        found: dict[str, Tensor] = {}
        if there := [(i, heat) for i in shown if (heat := maps[i]) is not None]:
            found["maps"] = torch.stack([heat.float().cpu() for _, heat in there])
            found["rows"] = torch.tensor([chunk.rows[i] for i, _ in there])
        if shown and chunk.examples is not None and not job.method and job.seed == self.bench.plan.seeds[0]:
            found["pictures"] = torch.stack([chunk.examples.pictures[i] for i in shown])
            found["picture_rows"] = torch.tensor([chunk.rows[i] for i in shown])
        return found

    def _explained(
        self, explainer: Explainer, chunk: Chunk, job: Job
    ) -> tuple[list[Tensor | None], list[str], list[float]]:
        """A map or an error for each image, and the seconds it took."""
        count, batch = len(chunk.rows), self.bench.plan.batch
        maps: list[Tensor | None] = [None] * count
        errors, seconds = [""] * count, [0.0] * count
        for first in range(0, count, batch):
            rows = range(first, min(first + batch, count))
            parts = [rows]
            while parts:
                part = parts.pop(0)
                began = time.perf_counter()
                try:
                    with self.watch.limit(self.bench.plan.time_limit * len(part)):
                        found = self._attribute(explainer, chunk, job, part)
                    wrong = [int((~heat.isfinite()).sum()) for heat in found]
                except (Exception, OverTime) as error:
                    if len(part) > 1:  # which of them it was, only single calls say
                        parts = [range(i, i + 1) for i in part]
                        continue
                    errors[part[0]] = self._said(error)
                else:
                    for i, heat, bad in zip(part, found, wrong, strict=True):
                        maps[i] = None if bad else heat
                        errors[i] = f"ValueError: {bad} of {heat.numel()} values are NaN or infinite" if bad else ""
                each = (time.perf_counter() - began) / len(part)
                for i in part:
                    seconds[i] = each
        if len({heat.shape for heat in maps if heat is not None}) > 1:
            sizes = sorted({tuple(heat.shape) for heat in maps if heat is not None})
            errors = [error or f"ValueError: maps of one call have the shapes {sizes}" for error in errors]
            maps = [None] * count
        return maps, errors, seconds

    def _attribute(self, explainer: Explainer, chunk: Chunk, job: Job, part: range) -> Tensor:
        assert chunk.examples is not None
        index = slice(part.start, part.stop)
        images, target = chunk.examples.images[index].clone(), chunk.target[index].clone().to(self.bench.device)
        with seeded(_number(job.seed, chunk.rows[part.start])), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Input Tensor .* did not already require gradients")  # Captum's
            found = explainer.attribute(explainer.on(chunk.model), images, target, job.seed)
        if self.bench.device.type == "cuda":
            torch.cuda.synchronize(self.bench.device)
        return as_maps(found, images, isinstance(chunk.model, LayaModel))

    def _measured(self, explainer: Explainer, chunk: Chunk, job: Job, maps: list[Tensor | None]) -> dict[str, Result]:
        """For each metric one value or error an image."""
        good = [heat for heat in maps if heat is not None]
        if not good:
            return {}
        # An image without a map gets an empty one, so that the others are measured beside the same images as ever.
        whole = torch.stack([torch.zeros_like(good[0]) if heat is None else heat for heat in maps])
        return {m.name: self._measure(m, explainer, chunk, job, whole) for m in self.bench.measures}

    def _measure(self, measure: Measure, explainer: Explainer, chunk: Chunk, job: Job, maps: Tensor) -> Result:
        count, limit = len(maps), self.bench.plan.time_limit
        try:
            with self.watch.limit(limit * count), seeded(_number(job.seed, chunk.rows[0])):
                return Result.of(measure, self._call(measure, explainer, chunk, job, maps), count)
        except (Exception, OverTime) as error:
            if count == 1:
                return Result([float("nan")], [self._said(error)])
        ones = [
            self._measure(measure, explainer, chunk.part(i), job, maps[i : i + 1]) for i in range(count)
        ]  # only single calls say which image it was
        return Result.joined(ones)

    def _call(self, measure: Measure, explainer: Explainer, chunk: Chunk, job: Job, maps: Tensor) -> Any:
        assert chunk.examples is not None
        images, plan = chunk.examples.images, self.bench.plan
        size = (images.shape[2], images.shape[3])

        def function() -> Any:
            if measure.perturber is None:
                return chunk.model
            if maps.ndim == 2:
                return self._layers(chunk, measure)
            return chunk.bound(dict(measure.perturber))

        def wide() -> Tensor:
            if maps.ndim != 4:
                raise ValueError(f"{measure.name} compares places; {explainer.name} says something of layers.")
            return at_size(maps, size, plan.upsample)

        def explain(x: Tensor, target: Any = None, **_: Any) -> Tensor:
            return as_maps(explainer.attribute(explainer.on(chunk.model), x, target, job.seed), x, False)

        given: Mapping[str, Callable[[], Any]] = {
            "forward_func": function,
            "model": lambda: chunk.model,
            "inputs": lambda: images if measure.perturber is not None else images.clone(),
            "attributions": lambda: maps if measure.perturber is not None else wide().clone(),
            "maps": lambda: wide().clone(),  # a metric may work in place
            "target": lambda: chunk.target.clone().to(self.bench.device),
            "masks": lambda: chunk.examples.masks.clone(),  # type: ignore[union-attr]
            "labels": lambda: chunk.examples.labels.clone(),  # type: ignore[union-attr]
            "explain": lambda: explain,
        }
        return measure.of(given)

    def _layers(self, chunk: Chunk, measure: Measure) -> Any:
        assert chunk.examples is not None
        score = (measure.perturber or {}).get("score", "prob")
        name = f"layers {score}"
        if name not in chunk.bounds:
            model: Any = chunk.model
            with torch.no_grad():
                features = model.features(chunk.examples.images)
            chunk.bounds[name] = SameCalls(LayerPerturber(model.head, score=score).bind(features, chunk.target))
        return chunk.bounds[name]

    def _once(
        self, explainer: Explainer, chunk: Chunk, job: Job, maps: list[Tensor | None]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Cost of one explanation by counts, and what a method says of layers."""
        first = next((i for i, heat in enumerate(maps) if heat is not None), None)
        if first is None or chunk.examples is None:
            return {}, {}
        one = range(first, first + 1)
        image = chunk.examples.images[first : first + 1]
        costs: dict[str, Any] = {}
        try:
            with self.watch.limit(2 * self.bench.plan.time_limit):
                forward = count_flops(lambda: classified(chunk.model, image))
                flops = count_flops(lambda: self._attribute(explainer, chunk, job, one))
                peak = peak_bytes(lambda: self._attribute(explainer, chunk, job, one))
            costs = {"flops": flops, "forwards": flops / forward if forward else None, "peak_bytes": peak}
        except (Exception, OverTime):
            pass  # what cannot be counted is left out; the maps are there
        try:
            with self.watch.limit(self.bench.plan.time_limit * self.bench.plan.batch):
                return costs, layers_of(explainer, chunk, job, maps, self.bench.plan.batch)
        except (Exception, OverTime):
            return costs, {}

    def _said(self, error: BaseException) -> str:
        if isinstance(error, OverTime):
            return f"OverTime: more than {self.bench.plan.time_limit:g} seconds for an image"
        return one_line(error)


def as_maps(found: Any, images: Tensor, layers: bool) -> Tensor:
    """Maps `[B, 1, h, w]`, channels summed, or scores of layers `[B, L]`.

    Raises:
        ValueError: the method returned something else.
    """
    found = found[0] if isinstance(found, tuple) and len(found) == 1 else found
    wanted = f"maps [{len(images)}, C, h, w]" + (f", or layers [{len(images)}, L]" if layers else "")
    if not isinstance(found, Tensor):
        raise ValueError(f"the method returned a {type(found).__name__}; expected {wanted}.")
    fits = found.ndim == 4 or (layers and found.ndim == 2)
    if not fits or len(found) != len(images) or not found.numel() or not found.is_floating_point():
        raise ValueError(f"the method returned {found.dtype} {list(found.shape)}; expected {wanted}.")
    found = found.detach()
    found = found if found.dtype == torch.float64 else found.float()  # sums over channels overflow 16 bits
    return found.sum(1, keepdim=True) if found.ndim == 4 else found


def layers_of(explainer: Explainer, chunk: Chunk, job: Job, maps: list[Tensor | None], batch: int) -> dict[str, Any]:
    """What a method says of layers, averaged over the first images: gates and head weights, or attention."""
    assert chunk.examples is not None
    if isinstance(explainer.make, type) and issubclass(explainer.make, GradSkip):
        keywords = {k: v for k, v in explainer.keywords(job.seed).items() if k != "upsample"}
        images, target = chunk.examples.images[:batch], chunk.target[:batch].to(chunk.examples.images.device)
        seen = explainer.on(chunk.model).explain(images, target=target, **keywords)
        beta = seen.beta if seen.beta.ndim == 2 else seen.beta.mean(2)
        return {
            "gate": beta.mean(1).tolist(),
            "head weights": seen.omega.mean(1).tolist(),
            "names": list(seen.layers),
        }
    scores = [heat for heat in maps if heat is not None and heat.ndim == 1]
    if scores:
        names = [str(name) for name in getattr(chunk.model, "layers", range(len(scores[0])))]
        return {"attention": torch.stack(scores).mean(0).tolist(), "names": names}
    return {}


def _number(*parts: Any) -> int:
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:8], 16)
