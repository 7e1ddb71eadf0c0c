"""The model's score with a set of features kept: the one way in which metrics perturb a model."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..trace import Inputs, Target, UnsupportedModelError, observe
from ..trace.masked import TokenMasker
from ..trace.outputs import logits
from ..trace.record import Layout, Record
from ..trace.run import Run, Score
from ..trace.shortened import TokenDropper, TokenRunner
from .features import Features, Unit, patch_labels
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


@runtime_checkable
class Binds(Protocol):
    """A way of removing features, not bound to examples yet, such as a `Perturber`."""

    def bind(self, inputs: Any, target: Target = None) -> Bound:
        """Fix examples and classes."""


@dataclass(frozen=True)
class Perturber:
    """How features are removed from a picture.

    Args:
        forward_func: a module or any callable.
        unit: "patch", "pixel", or the number of the feature of each pixel, `[H, W]` or `[B, H, W]` from 0; `None` for
            patches where the model has a grid of tokens, else pixels.
        baseline: "drop_tokens" (patches leave the sequence), "mask_tokens" (no token sees them), or what takes their
            place: "mean", "black", "blur", "road", a number, a tensor; `None` for "drop_tokens" where that can be done,
            else "mask_tokens", else "mean".
        score: softmax probability or logit of the class; or "accuracy", 1 where it has the largest score alone, else 0.
        additional_forward_args: what else the model takes; a tensor with one entry for each image goes with it.
        budget: bytes that one forward may hold; more examples go in several; `None` for 128 MiB on a CPU,
            2 GiB elsewhere.
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
    budget: int | None = None
    internal_batch_size: int | None = None
    autocast: torch.dtype | None = None
    seed: int = 0

    def bind(self, inputs: Any, target: Target = None) -> Bound:
        """Fix images and classes; without a target the predicted classes.

        Raises:
            ValueError: a setting is none of its choices, or labels do not fit.
            UnsupportedModelError: patches, or dropping tokens, were asked for, and the model does not allow it.
        """
        if isinstance(inputs, Mapping) and "input_ids" in inputs:
            raise ValueError("found input_ids; a Perturber removes parts of pictures, TokenPerturber tokens of texts.")
        checked = Inputs.of(inputs)
        images, extra, limits = checked.image, self.additional_forward_args, (self.budget, self.internal_batch_size)
        run = Run(self.forward_func, checked, extra, self.score, *limits, self.autocast)
        one = run.of(torch.tensor([0]))
        with torch.no_grad():
            record = observe(self.forward_func, one).record
        runner = self._runner(one, record)
        labels, unit, grid = self._features(record.layout, images)
        run = run.bound(target)
        class_ = "predicted" if target is None else "given"
        if runner is not None:
            return _Shortened(run, runner, labels, class_)
        return _Filled(run, self, labels, unit, grid, class_)

    def _runner(self, inputs: Inputs, record: Record) -> TokenRunner | None:
        kind = _RUNNERS.get(self.baseline) if isinstance(self.baseline, str) else None
        patches = self.unit is None or (isinstance(self.unit, str) and self.unit == "patch")
        if kind is not None and not patches:
            raise ValueError(f'baseline="{kind.operator}" removes patches; expected unit="patch" or None.')
        if kind is not None:
            return kind(self.forward_func, inputs, record)
        for kind in _RUNNERS.values() if self.baseline is None and patches else ():
            with contextlib.suppress(UnsupportedModelError):
                return kind(self.forward_func, inputs, record)
        return None

    def _features(self, layout: Layout | None, images: Tensor) -> tuple[Tensor, str, tuple[int, int] | None]:
        size = (images.shape[2], images.shape[3])
        if isinstance(self.unit, Tensor):
            labels = self.unit
            whole = not (labels.is_floating_point() or labels.is_complex())
            if tuple(labels.shape[-2:]) != size or labels.ndim not in (2, 3) or not whole or int(labels.min()) < 0:
                raise ValueError(
                    f"unit {labels.dtype} {list(labels.shape)} does not fit images {list(images.shape)}; expected "
                    f"whole numbers from 0, [H, W] or [B, H, W]."
                )
            if labels.ndim == 3 and len(labels) != len(images):
                raise ValueError(f"unit holds labels of {len(labels)} images; found {len(images)} images.")
            # Numbers that do not occur would be features that no image has.
            return labels.unique(return_inverse=True)[1].to(images.device), "region", None
        if not (self.unit is None or isinstance(self.unit, str)) or self.unit not in (None, "patch", "pixel"):
            found = repr(self.unit) if isinstance(self.unit, str) else type(self.unit).__name__
            raise ValueError(f'unit={found}; expected "patch", "pixel", or a tensor of labels [H, W].')
        if self.unit == "pixel" or (self.unit is None and layout is None):
            return torch.arange(size[0] * size[1], device=images.device).view(size), "pixel", None
        if layout is None:
            raise UnsupportedModelError('unit="patch": no grid of tokens was found in this model; use unit="pixel".')
        return patch_labels(layout.grid, size).to(images.device), "patch", layout.grid


class _Filled:
    """Removed pixels show something else."""

    def __init__(self, run: Run, settings: Perturber, labels: Tensor, unit: str, grid: tuple[int, int] | None,
                 class_: str) -> None:  # fmt: skip
        images = run.inputs.image
        self._run, self._labels, self._seed = run, labels, settings.seed
        wide = labels.expand(len(images), *labels.shape[-2:]).flatten(1)
        valid = torch.zeros(len(images), int(labels.max()) + 1, dtype=torch.bool, device=images.device)
        self._road = isinstance(settings.baseline, str) and settings.baseline == "road"
        baseline = "mean" if settings.baseline is None or self._road else settings.baseline
        self._fill, operator = replacement(baseline, settings.forward_func, images)
        operator = "road" if self._road else operator
        self.features = Features(
            valid.scatter(1, wide, True), unit, operator, run.score, class_, labels, grid, inputs=images
        )  # fmt: skip

    def score(self, keep: Tensor, show_progress: bool = False) -> Tensor:
        def output(part: Tensor, rows: Tensor) -> Any:
            labels = self._labels[rows] if self._labels.ndim == 3 else self._labels.expand(len(rows), -1, -1)
            shown = keep.flatten(0, 1)[part].gather(1, labels.flatten(1)).view(labels.shape)[:, None]
            inputs = self._run.of(rows)
            images = inputs.image
            images = imputed(images, shown, seed=self._seed) if self._road else torch.where(
                shown, images, self._fill[rows]
            )  # fmt: skip
            return self._run.forward(dataclasses.replace(inputs, tensors=(images,)))

        together = torch.zeros(keep.shape[:2], dtype=torch.int64, device=keep.device)
        return self._run.each(together, output, show_progress)


class _Shortened:
    """Removed patches are no longer in the sequence, or no token sees them."""

    def __init__(self, run: Run, runner: TokenRunner, labels: Tensor, class_: str) -> None:
        images, layout = run.inputs.image, runner.layout
        self._run, self._runner = run, runner
        valid = torch.ones(len(images), layout.size, dtype=torch.bool, device=images.device)
        self.features = Features(
            valid, "patch", runner.operator, run.score, class_, labels, layout.grid, self._without(), images
        )  # fmt: skip

    def _without(self) -> str | None:
        """The operator of the empty picture: a model may read patches alone, or pool over them."""
        none = torch.zeros(1, self._runner.layout.size, dtype=torch.bool, device=self._run.inputs.image.device)
        try:
            scores = logits(self._runner(self._run.of(torch.tensor([0])), none), 1)
        except (RuntimeError, IndexError, ValueError):
            return "mean"
        return None if bool(scores.isfinite().all()) else "mean"

    def score(self, keep: Tensor, show_progress: bool = False) -> Tensor:
        counts = keep.any(2).long() if self._runner.ragged else keep.sum(2)

        def output(part: Tensor, rows: Tensor) -> Any:
            inputs = self._run.of(rows)
            if self.features.empty and int(counts.flatten()[part[0]]) == 0:
                grey = replacement("mean", self._run.forward_func, inputs.image)[0]
                return self._run.forward(dataclasses.replace(inputs, tensors=(grey,)))
            with self._run.precision():
                return self._runner(inputs, keep.flatten(0, 1)[part])

        return self._run.each(counts, output, show_progress)
