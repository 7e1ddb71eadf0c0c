"""A plan with all that it names found, and its work cut into jobs."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .. import __version__
from ..loading import Loaded, load
from ..trace.errors import PlanError, XattrError
from ._objects import content
from .explainers import Explainer, find_explainer
from .measures import Measure, find_measure
from .plan import Part, Plan
from .sources import Source, open_source

_DECIDING = ("torch", "captum", "numpy", "timm", "transformers", "torchvision")


@dataclass(frozen=True)
class Job:
    """One unit of work: a method on a model and some images, with all metrics.

    Attributes:
        model: its number in the plan, as are `data` and `method`.
        seed: of the method.
        first: number of the first image.
        stop: number behind the last.
        key: hash of all that decides the result.
    """

    model: int
    data: int
    method: int
    seed: int
    first: int
    stop: int
    key: str


class Bench:
    """What a plan names, found and checked. Models are loaded when they are asked for, and the last one is kept.

    Args:
        plan: what is measured.

    Raises:
        PlanError: something does not exist, or settings do not fit; no model has run by then.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sources: tuple[Source, ...] = tuple(self._source(part) for part in plan.data)
        masks, labels = (all(getattr(source, f"has_{what}") for source in self.sources) for what in ("masks", "labels"))
        if plan.target == "label" and not labels:
            raise PlanError("target = 'label', and not all data of the plan have labels.")
        self.explainers: tuple[Explainer, ...] = tuple(find_explainer(plan, part) for part in plan.methods)
        self.measures: tuple[Measure, ...] = tuple(find_measure(plan, part, masks, labels) for part in plan.metrics)
        try:
            self.device = torch.device(plan.device)
        except RuntimeError as error:
            raise PlanError(f"device = {plan.device!r}; {str(error).splitlines()[0]}") from error
        self._loaded: tuple[int, Loaded] | None = None

    def model(self, index: int) -> Loaded:
        """A model of the plan on the device.

        Raises:
            PlanError: it cannot be had.
        """
        if self._loaded is None or self._loaded[0] != index:
            self._loaded = None  # two large models at once may be one too many
            part = self.plan.models[index]
            found = self._load(part)
            if part.settings:
                raise part.error(f"a model takes no settings, found {', '.join(part.settings)}.")
            model = found.model if isinstance(part.use, str) else _of_its_own(found.model, self.device)
            self._loaded = (index, dataclasses.replace(found, model=model.to(self.device)))
        return self._loaded[1]

    def forget(self) -> None:
        """Load the model anew when it is next asked for; one that the plan holds itself stays as it is."""
        self._loaded = None

    def jobs(self) -> Iterator[Job]:
        """All jobs; those of one model and the same images come one after the other."""
        plan = self.plan
        digests: dict[tuple[int, int], str] = {}  # pictures are read once, however many models see them
        for m in range(len(plan.models)):
            model = self.model(m).model
            weights = f"{_digest(model)} {content(plan, plan.models[m], type(model))}"
            for d, source in enumerate(self.sources):
                for first in range(0, len(source), plan.shard):
                    rows = range(first, min(first + plan.shard, len(source)))
                    if (d, first) not in digests:
                        digests[d, first] = source.digest(rows)
                    shared = self._deciding(m, weights, digests[d, first], rows)
                    names = plan.models[m].name, plan.data[d].name
                    for e, explainer in enumerate(self.explainers):
                        for seed in plan.seeds:
                            own = [
                                *names,
                                explainer.name,
                                explainer.content,
                                *_plain(explainer.init, explainer.arguments),
                                seed,
                            ]
                            key = hashlib.sha256(json.dumps([shared, own]).encode()).hexdigest()[:32]
                            yield Job(m, d, e, seed, rows.start, rows.stop, key)

    def _deciding(self, model: int, weights: str, data: str, rows: range) -> list[Any]:
        plan = self.plan
        metrics = [(m.name, m.content, *_plain(m.settings, m.perturber or {})) for m in self.measures]
        settings = [plan.target, plan.batch, plan.threads, plan.time_limit, plan.upsample, self.device.type]
        how = repr(self.model(model).preprocessing)
        return [1, versions(), weights, _stable(how), data, rows.start, rows.stop, metrics, settings]

    def _source(self, part: Part) -> Source:
        if not isinstance(part.use, str):
            raise part.error(f"found a {type(part.use).__name__}; expected the name of a source of pictures.")
        try:
            source = open_source(part.use, part.settings, self.plan.base)
        except (ValueError, OSError, ImportError) as error:
            raise part.error(str(error)) from error
        if not len(source):
            raise part.error("found no pictures.")
        return source

    def _load(self, part: Part) -> Loaded:
        if isinstance(part.use, Loaded):
            return part.use
        if isinstance(part.use, nn.Module):
            from ..trace import preprocessing

            how: Any = None
            with contextlib.suppress(XattrError):  # scenes need none; other pictures say that they do
                how = preprocessing(part.use)
            return Loaded(part.use, how, None, part.name)
        spec = part.use
        if isinstance(spec, str) and ".py:" in spec:
            file, _, factory = spec.rpartition(":")
            spec = f"{self.plan.base / file}:{factory}"
        try:
            return load(spec)
        except XattrError as error:
            raise part.error(str(error)) from error


def _of_its_own(model: nn.Module, device: torch.device) -> nn.Module:
    """The model, or a copy of it if it has to go to another device."""
    there = all(tensor.device == device for tensor in (*model.parameters(), *model.buffers()))
    return model if there else copy.deepcopy(model)


def versions() -> dict[str, str]:
    """Of the packages that decide numbers."""
    found = {"xattr": __version__}
    for name in _DECIDING:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _digest(model: nn.Module) -> str:
    """Of the weights and the structure of a model."""
    found = hashlib.sha256(_stable(str(model)).encode())
    for name, tensor in model.state_dict().items():
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


def _stable(text: str) -> str:
    """Without the addresses of objects."""
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def _plain(*settings: Any) -> list[str]:
    return [_stable(json.dumps(dict(sorted(s.items())), default=repr)) for s in settings]
