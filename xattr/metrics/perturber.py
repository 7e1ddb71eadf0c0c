"""The model's score with a set of features kept: the one way in which metrics perturb a model."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from tqdm import tqdm

from ..trace import Inputs, Target, UnsupportedModelError, observe
from ..trace.execution import PLAIN_EXECUTION
from ..trace.masked import TokenMasker
from ..trace.modules import ModuleWatch
from ..trace.outputs import logits, resolve, select
from ..trace.record import Layout
from ..trace.shortened import TokenDropper, TokenRunner
from .cost import peak_bytes
from .features import Features, Score, Unit, patch_labels
from .fills import Baseline, replacement
from .road import imputed

_RUNNERS: dict[str, type[TokenRunner]] = {kind.operator: kind for kind in (TokenDropper, TokenMasker)}


@runtime_checkable
class Bound(Protocol):
    """Examples, classes and baseline are fixed; what is left is which features are kept.

    Attributes:
        features: what they are, and how they are removed.
    """

    features: Features

    def score(self, keep: Tensor, show_progress: bool = False) -> Tensor:
        """Scores with some features kept, `[B, S]` in float64, from a boolean `[B, S, F]`."""


@dataclass(frozen=True)
class Perturber:
    """How features are removed from a picture.

    Args:
        forward_func: a module or any callable.
        unit: "patch", "pixel", or the number of the feature of each pixel, `[H, W]` or `[B, H, W]` from 0; `None` for
            patches where the model has a grid of tokens, else pixels.
        baseline: "drop_tokens" (patches leave the sequence), "mask_tokens" (no token sees them), or what takes their
            place: "mean", "black", "blur", "road", a number, a tensor; `None` for "drop_tokens" where that can be done,
            else "mean".
        score: softmax probability or logit of the class.
        additional_forward_args: what else the model takes.
        budget: bytes that one forward may hold; more examples go in several.
        internal_batch_size: how many examples one forward may hold at most, whatever the budget.
        autocast: `torch.bfloat16` or `torch.float16` runs the perturbed forwards under it; scores stay in float64.
        seed: of the noise of "road".

    Example:
        >>> import torch
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> from xattr.metrics import Perturber
        >>> bound = Perturber(embedded_model("class-token")).bind(digit_scenes("report", n=2).images)
        >>> bound.features.unit, bound.features.operator, bound.score(torch.ones(2, 1, 36, dtype=torch.bool)).shape
        ('patch', 'drop_tokens', torch.Size([2, 1]))
    """

    forward_func: Callable[..., Any]
    unit: Unit = None
    baseline: Baseline = None
    score: Score = "prob"
    additional_forward_args: Any = None
    budget: int = 2**30
    internal_batch_size: int | None = None
    autocast: torch.dtype | None = None
    seed: int = 0

    def bind(self, inputs: Any, target: Target = None) -> Bound:
        """Fix images and classes; without a target the predicted classes.

        Raises:
            ValueError: a setting is none of its choices, or labels do not fit.
            UnsupportedModelError: patches, or dropping tokens, were asked for, and the model does not allow it.
        """
        if self.score not in ("prob", "logit"):
            raise ValueError(f'score={self.score!r}; expected "prob" or "logit".')
        if self.internal_batch_size is not None and self.internal_batch_size < 1:
            raise ValueError(f"internal_batch_size={self.internal_batch_size!r}; expected 1 or more, or None.")
        checked = Inputs.of(inputs)
        one = _Run(self, checked).of(torch.tensor([0]))
        with torch.no_grad():
            layout = observe(self.forward_func, one, self.additional_forward_args).record.layout
        runner = self._runner(one)
        labels, unit, grid = self._features(layout, checked.image)
        run = _Run(self, checked)
        run = dataclasses.replace(run, bytes_each=peak_bytes(lambda: run.forward(one)))
        run = dataclasses.replace(run, target=resolve(target, run.scores()))
        class_ = "predicted" if target is None else "given"
        if runner is not None:
            return _Shortened(run, runner, class_)
        return _Filled(run, labels, unit, grid, class_)

    def _runner(self, inputs: Inputs) -> TokenRunner | None:
        kind = _RUNNERS.get(self.baseline) if isinstance(self.baseline, str) else None
        patches = self.unit is None or (isinstance(self.unit, str) and self.unit == "patch")
        if kind is not None and not patches:
            raise ValueError(f'baseline="{kind.operator}" removes patches; expected unit="patch" or None.')
        if kind is not None:
            return kind(self.forward_func, inputs, self.additional_forward_args)
        if self.baseline is None and patches:
            with contextlib.suppress(UnsupportedModelError):
                return TokenDropper(self.forward_func, inputs, self.additional_forward_args)
        return None

    def _features(self, layout: Layout | None, images: Tensor) -> tuple[Tensor, str, tuple[int, int] | None]:
        size = (images.shape[2], images.shape[3])
        if isinstance(self.unit, Tensor):
            labels = self.unit.long()
            if tuple(labels.shape[-2:]) != size or labels.ndim not in (2, 3) or int(labels.min()) < 0:
                raise ValueError(
                    f"unit {list(labels.shape)} does not fit images {list(images.shape)}; expected [H, W]."
                )
            if labels.ndim == 3 and len(labels) != len(images):
                raise ValueError(f"unit holds labels of {len(labels)} images; found {len(images)} images.")
            return labels.to(images.device), "region", None
        if self.unit not in (None, "patch", "pixel"):
            raise ValueError(f'unit={self.unit!r}; expected "patch", "pixel", or a tensor of labels [H, W].')
        if self.unit == "pixel" or (self.unit is None and layout is None):
            return torch.arange(size[0] * size[1], device=images.device).view(size), "pixel", None
        if layout is None:
            raise UnsupportedModelError('unit="patch": no grid of tokens was found in this model; use unit="pixel".')
        return patch_labels(layout.grid, size).to(images.device), "patch", layout.grid


@dataclass(frozen=True)
class _Run:
    """One call of the model on perturbed images, and how many fit into the budget."""

    settings: Perturber
    inputs: Inputs
    target: Any = None
    bytes_each: int = 0

    def of(self, rows: Tensor) -> Inputs:
        """The inputs of some images, repeated as asked."""
        others = {
            k: v[rows] if isinstance(v, Tensor) and v.ndim and len(v) == len(self.inputs.image) else v
            for k, v in self.inputs.others.items()
        }
        return Inputs((self.inputs.image[rows],), self.inputs.is_tuple, self.inputs.key, others)

    def scores(self) -> Tensor:
        """Of the pictures as they are, `[B, ...]`."""
        rows = torch.arange(len(self.inputs.image), device=self.inputs.image.device)
        return torch.cat([logits(self.forward(self.of(part)), len(part)) for part in self.chunks(rows)])

    def values(self, output: Any, rows: Tensor) -> Tensor:
        """The explained number of each row, `[n]` in float64."""
        scores = logits(output, len(rows)).double()
        target = self.target
        if isinstance(target, Tensor):
            target = target[rows]
        elif isinstance(target, list):
            target = [target[int(i)] for i in rows]
        if self.settings.score == "prob" and scores.ndim > 1 and scores.shape[1] > 1:
            scores = scores.softmax(1)
        return select(scores, target)

    def chunks(self, rows: Tensor) -> Iterator[Tensor]:
        """Rows that fit into the budget at once."""
        fit = self.settings.budget // max(1, self.bytes_each)
        return iter(rows.split(max(1, min(fit, self.settings.internal_batch_size or fit))))

    def forward(self, inputs: Inputs) -> Any:
        """The model in evaluation mode, without gradients."""
        model = self.settings.forward_func
        model = model.module if isinstance(model, torch.nn.DataParallel) else model
        args, kwargs = inputs.arguments(inputs.tensors, self.settings.additional_forward_args)
        with torch.no_grad(), self.precision(), PLAIN_EXECUTION, ModuleWatch():
            return model(*args, **kwargs)

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """The autocast that was asked for."""
        dtype = self.settings.autocast
        return torch.autocast(self.inputs.image.device.type, dtype) if dtype else contextlib.nullcontext()


class _Filled:
    """Removed pixels show something else."""

    def __init__(self, run: _Run, labels: Tensor, unit: str, grid: tuple[int, int] | None, class_: str) -> None:
        images, settings = run.inputs.image, run.settings
        self._run, self._labels = run, labels
        wide = labels.expand(len(images), *labels.shape[-2:]).flatten(1)
        valid = torch.zeros(len(images), int(labels.max()) + 1, dtype=torch.bool, device=images.device)
        self._road = isinstance(settings.baseline, str) and settings.baseline == "road"
        baseline = "mean" if settings.baseline is None or self._road else settings.baseline
        self._fill, operator = replacement(baseline, settings.forward_func, images)
        operator = "road" if self._road else operator
        self.features = Features(valid.scatter(1, wide, True), unit, operator, settings.score, class_, labels, grid)

    def score(self, keep: Tensor, show_progress: bool = False) -> Tensor:
        batch, steps, _ = keep.shape
        found = torch.empty(batch * steps, dtype=torch.float64, device=keep.device)
        for part in _progress(self._run, torch.arange(batch * steps, device=keep.device), show_progress):
            rows = torch.div(part, steps, rounding_mode="floor")
            labels = self._labels[rows] if self._labels.ndim == 3 else self._labels.expand(len(rows), -1, -1)
            shown = keep.flatten(0, 1)[part].gather(1, labels.flatten(1)).view(labels.shape)[:, None]
            inputs = self._run.of(rows)
            images = inputs.image
            images = imputed(images, shown, seed=self._run.settings.seed) if self._road else torch.where(
                shown, images, self._fill[rows]
            )  # fmt: skip
            changed = Inputs((images,), inputs.is_tuple, inputs.key, inputs.others)
            found[part] = self._run.values(self._run.forward(changed), rows)
        return found.view(batch, steps)


class _Shortened:
    """Removed patches are no longer in the sequence, or no token sees them."""

    def __init__(self, run: _Run, runner: TokenRunner, class_: str) -> None:
        images, layout = run.inputs.image, runner.layout
        self._run, self._runner = run, runner
        labels = patch_labels(layout.grid, (images.shape[2], images.shape[3])).to(images.device)
        valid = torch.ones(len(images), layout.size, dtype=torch.bool, device=images.device)
        # Without a token that is no patch nothing is left of an empty picture.
        empty = "mean" if layout.tokens == layout.size else None
        self._empty = replacement("mean", run.settings.forward_func, images)[0]
        self.features = Features(
            valid, "patch", runner.operator, run.settings.score, class_, labels, layout.grid, empty
        )  # fmt: skip

    def score(self, keep: Tensor, show_progress: bool = False) -> Tensor:
        batch, steps, _ = keep.shape
        flat = keep.flatten(0, 1)
        counts = flat.any(1).long() if self._runner.ragged else flat.sum(1)
        found = torch.empty(batch * steps, dtype=torch.float64, device=keep.device)
        parts = [part for n in counts.unique().tolist() for part in self._run.chunks((counts == n).nonzero()[:, 0])]
        for part in tqdm(parts, disable=not show_progress, leave=False):
            rows = torch.div(part, steps, rounding_mode="floor")
            inputs = self._run.of(rows)
            if self.features.empty and int(counts[part[0]]) == 0:
                empty = Inputs((self._empty[rows],), inputs.is_tuple, inputs.key, inputs.others)
                output = self._run.forward(empty)
            else:
                with self._run.precision():
                    output = self._runner(inputs, flat[part])
            found[part] = self._run.values(output, rows)
        return found.view(batch, steps)


def _progress(run: _Run, rows: Tensor, show_progress: bool) -> Any:
    return tqdm(list(run.chunks(rows)), disable=not show_progress, leave=False)
