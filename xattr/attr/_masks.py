"""What methods share that score a model on masked images or on some of its tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from captum.attr import PerturbationAttribution
from torch import Tensor

from ..trace import Inputs, Target
from ..trace.memory import peak_bytes
from ..trace.run import Run
from ..trace.shortened import TokenDropper
from ._attention import Column
from ._map import MapAttribution


class MaskAttribution(MapAttribution, PerturbationAttribution):
    """A Captum attribution by scores of masked images."""


@dataclasses.dataclass(frozen=True)
class Forwards:
    """How the forwards of a method are run; the fields are keywords of `attribute`.

    Attributes:
        budget: bytes that one forward may hold; `None` for 128 MiB on a CPU, 2 GiB elsewhere.
        internal_batch_size: how many examples one forward may hold at most, whatever the budget.
        autocast: `torch.bfloat16` or `torch.float16` runs the masked forwards under it.
        show_progress: whether to draw a progress bar.
    """

    budget: int | None
    internal_batch_size: int | None
    autocast: torch.dtype | None
    show_progress: bool

    def of(self, forward_func: Any, inputs: Inputs, extra: Any) -> Run:
        """The model on these images, scored by the probability of a class."""
        return Run(forward_func, inputs, extra, "prob", self.budget, self.internal_batch_size, self.autocast)


def token_scores(method: MapAttribution, column: Column, extra: Any, target: Target, keep: Tensor,
                 forwards: Forwards) -> Tensor:  # fmt: skip
    """Probability of the class where only some patches are in the sequence, `[B, S]`, from a boolean `[B, S, P]`.

    Raises:
        UnsupportedModelError: tokens cannot be dropped from this model.
    """
    run = forwards.of(method.forward_func, column.inputs, extra)
    one = run.of(torch.tensor([0]))
    made: list[TokenDropper] = []
    record = column.record if len(column.inputs.image) == 1 else None
    size = peak_bytes(lambda: made.append(TokenDropper(method.forward_func, one, record)))
    run = dataclasses.replace(run, bytes_each=size).resolved(column.observed.scores, target)

    def output(part: Tensor, rows: Tensor) -> Any:
        with run.precision():
            return made[0](run.of(rows), keep.flatten(0, 1)[part])

    return run.each(keep.sum(2), output, forwards.show_progress)


def image_scores(run: Run, count: int, change: Callable[[Tensor, Tensor], Tensor], forwards: Forwards) -> Tensor:
    """Probability of the class of changed images, `[B, count]`.

    Args:
        run: the model and its images.
        count: how often each image is changed.
        change: from images `[n, C, H, W]` and the numbers of their changes, `[n]`, to changed images.
        forwards: how they are run.
    """

    def output(part: Tensor, rows: Tensor) -> Any:
        inputs = run.of(rows)
        changed = change(inputs.image, part % count)
        return run.forward(dataclasses.replace(inputs, tensors=(changed,)))

    image = run.inputs.image
    together = torch.zeros(len(image), count, dtype=torch.int64, device=image.device)
    return run.each(together, output, forwards.show_progress)


def coverage_corrected(scores: Tensor, masks: Tensor) -> Tensor:
    """`sum_k score_k mask_k / sum_k mask_k`, `[B, P]`, and 0 where no mask lies; from `[B, S]` and `[B, S, P]`."""
    wide = masks.to(scores.dtype)
    covered = wide.sum(1)
    return (scores[:, None] @ wide)[:, 0] / torch.where(covered > 0, covered, 1)


def checked_count(name: str, value: Any) -> int:
    """A whole number of at least 1.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r}; expected a whole number, 1 or more.")
    return value
