"""The images of a job as the model sees them: loaded, classified and bound once for all methods and metrics."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._network import one_line
from ..metrics import Perturber
from ..metrics.perturber import Bound
from ..trace import Inputs
from ..trace.functions import InEvaluation
from ..trace.outputs import logits, resolve
from ..trace.plain import plain_forward
from .bench import Bench, Job
from .sources import Examples


@dataclass(frozen=True)
class Chunk:
    """Images of a job on a model.

    Attributes:
        model: the model.
        rows: numbers of the images that could be loaded, n of them.
        examples: images, pictures, labels, masks and names of those.
        scores: of the model, `[n, C]`, and `target`, the explained classes, `[n]`.
        failed: name and error of each other image, by number.
        bounds: perturbers, bound to the images, by their settings.
    """

    model: nn.Module
    rows: tuple[int, ...]
    examples: Examples | None
    scores: Tensor
    target: Tensor
    failed: dict[int, str]
    bounds: dict[str, Bound] = field(default_factory=dict)

    @classmethod
    def of(cls, bench: Bench, job: Job) -> Chunk:
        """Load the images of a job, and let the model classify them."""
        loaded, source, plan = bench.model(job.model), bench.sources[job.data], bench.plan
        rows = range(job.first, job.stop)
        failed: dict[int, str] = {}
        none = torch.zeros(0, dtype=torch.int64)
        try:
            examples: Examples | None = source.load(rows, loaded.preprocessing)
        except Exception:
            examples = None
            for row in rows:
                try:
                    source.load(range(row, row + 1), loaded.preprocessing)
                except Exception as error:
                    failed[row] = one_line(error)
            good = [row for row in rows if row not in failed]
            if good:
                examples = joined([source.load(range(row, row + 1), loaded.preprocessing) for row in good])
            rows = good  # type: ignore[assignment]
        if examples is None:
            return cls(loaded.model, (), None, torch.zeros(0, 1), none, failed)
        images = examples.images.to(bench.device)
        try:
            parts = [classified(loaded.model, part) for part in images.split(plan.batch)]
            scores = torch.cat(parts)
            wanted = scores.argmax(1) if plan.target == "predicted" else examples.labels
            target = torch.as_tensor(resolve(wanted, scores)).reshape(-1).expand(len(scores)).clone().cpu()
        except Exception as error:
            failed |= {row: f"the model: {one_line(error)}" for row in rows}
            return cls(loaded.model, (), None, torch.zeros(0, 1), none, failed)
        return cls(loaded.model, tuple(rows), moved(examples, bench.device), scores.cpu(), target, failed)

    def bound(self, settings: dict[str, Any]) -> Bound:
        """The images bound to a way of removing features, so that metrics share what they compute."""
        assert self.examples is not None
        name = repr(sorted(settings.items()))
        if name not in self.bounds:
            bound = Perturber(self.model, **settings).bind(self.examples.images, self.target)
            self.bounds[name] = SameCalls(bound)
        return self.bounds[name]

    def part(self, index: int) -> Chunk:
        """One of the images."""
        assert self.examples is not None
        one = slice(index, index + 1)
        return Chunk(self.model, self.rows[one], some(self.examples, one), self.scores[one], self.target[one], {})


class SameCalls:
    """A bound perturber that does not compute the same call twice.

    `xattr.metrics.Remembered` remembers single sets of features, and asks for those that are new; which images a score
    was computed beside, and so its last digits, then depend on what was asked for before.
    """

    def __init__(self, bound: Bound) -> None:
        self._bound, self.features = bound, bound.features
        self._known: dict[bytes, Tensor] = {}

    def score(self, keep: Tensor, show_progress: bool = False) -> Tensor:
        """As that of the bound perturber."""
        key = keep.cpu().contiguous().numpy().tobytes()
        if key not in self._known:
            self._known[key] = self._bound.score(keep, show_progress)
        return self._known[key]


def at_size(maps: Tensor, size: tuple[int, int], mode: str) -> Tensor:
    """Maps at the size of the images."""
    if tuple(maps.shape[2:]) == size:
        return maps
    return F.interpolate(maps, size=size, mode=mode, **({"antialias": True} if mode == "bilinear" else {}))


def moved(examples: Examples, device: torch.device) -> Examples:
    """With what metrics read on a device."""
    masks = None if examples.masks is None else examples.masks.to(device)
    return dataclasses.replace(examples, images=examples.images.to(device), masks=masks)


def some(examples: Examples, rows: slice) -> Examples:
    """Some of the examples."""
    taken = lambda value: None if value is None else value[rows]
    return Examples(
        examples.images[rows],
        examples.pictures[rows],
        taken(examples.labels),
        taken(examples.masks),
        examples.names[rows],
    )


def joined(parts: list[Examples]) -> Examples:
    """Several examples as one."""
    cat = lambda values: None if values[0] is None else torch.cat(values)
    return Examples(
        cat([part.images for part in parts]),  # type: ignore[arg-type]
        cat([part.pictures for part in parts]),  # type: ignore[arg-type]
        cat([part.labels for part in parts]),
        cat([part.masks for part in parts]),
        tuple(name for part in parts for name in part.names),
    )


def classified(model: nn.Module, images: Tensor) -> Tensor:
    """Scores of some images, `[n, C]`, in evaluation mode and without gradients."""
    found = logits(plain_forward(model, Inputs.of(images), InEvaluation()), len(images)).float()
    if found.ndim != 2:
        raise ValueError(f"the model returned {list(found.shape)}; a benchmark wants class scores [B, C].")
    return found
