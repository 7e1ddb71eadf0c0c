"""The model on some rows of the examples: what everything shares that perturbs a model."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from tqdm import tqdm

from .functions import InEvaluation
from .inputs import Inputs
from .memory import peak_bytes
from .outputs import Target, logits, resolve, select
from .plain import plain_forward

Score: TypeAlias = Literal["prob", "logit", "accuracy"]

# A larger forward leaves the caches of a CPU, and is a quarter slower there; an accelerator wants it large.
BUDGET_CPU, BUDGET = 2**27, 2**31


@dataclass(frozen=True)
class Run:
    """Calls of the model on perturbed examples, as many at once as fit into the budget.

    A score or a batch size that is none of its choices is a `ValueError`.

    Attributes:
        forward_func: as are `score`, `budget`, `internal_batch_size` and `autocast`, the setting of the perturber.
        inputs: all examples as they are.
        extra: what else the model takes; what has one entry for each example goes with it.
        bytes_each: that one example needs.
        target: the classes, as `select` takes them.
    """

    forward_func: Callable[..., Any]
    inputs: Inputs
    extra: Any = None
    score: Score = "prob"
    budget: int | None = None
    internal_batch_size: int | None = None
    autocast: torch.dtype | None = None
    bytes_each: int = 0
    target: Any = None

    def __post_init__(self) -> None:
        if self.score not in ("prob", "logit", "accuracy"):
            raise ValueError(f'score={self.score!r}; expected "prob", "logit" or "accuracy".')
        if self.internal_batch_size is not None and self.internal_batch_size < 1:
            raise ValueError(f"internal_batch_size={self.internal_batch_size!r}; expected 1 or more, or None.")

    def bound(self, target: Target) -> Run:
        """With the bytes of one example measured, and the classes checked or predicted."""
        run = self.measured()
        return run.resolved(run.scores(), target)

    def measured(self) -> Run:
        """With the bytes of one example measured, at one forward."""
        one = self.of(torch.tensor([0]))
        return dataclasses.replace(self, bytes_each=peak_bytes(lambda: self.forward(one)))

    def resolved(self, scores: Tensor, target: Target) -> Run:
        """With the classes checked or predicted, from what the model returns for the examples as they are."""
        if self.score == "accuracy" and (scores.ndim < 2 or scores.shape[1] < 2):
            raise ValueError(f'score="accuracy" needs 2 classes or more, found {list(scores.shape)}: use "logit".')
        single = scores.ndim < 2 or scores.shape[1] == 1
        score = "logit" if single and self.score == "prob" else self.score  # a single output is no logit of a softmax
        return dataclasses.replace(self, target=resolve(target, scores), score=score)

    def of(self, rows: Tensor) -> Inputs:
        """The inputs of some examples, repeated as asked, with what else the model takes."""
        return self.inputs.beside(self.extra).rows(rows)

    def scores(self) -> Tensor:
        """Of the examples as they are, `[B, ...]`."""
        first = self.inputs.tensors[0]
        rows = torch.arange(len(first), device=first.device)
        return torch.cat([logits(self.forward(self.of(part)), len(part)) for part in self.chunks(rows)])

    def each(self, groups: Tensor, output: Callable[[Tensor, Tensor], Any], show_progress: bool) -> Tensor:
        """The explained number of each example and step, `[B, S]` in float64.

        Args:
            groups: whole numbers, `[B, S]`; only steps of one group go into one forward.
            output: of the model, from the numbers of steps, flattened, and the rows of the examples they are of.
            show_progress: whether to draw a progress bar.
        """
        found = torch.empty(groups.shape, dtype=torch.float64, device=groups.device)
        flat, steps = groups.flatten(), groups.shape[1]
        parts = [part for n in flat.unique().tolist() for part in self.chunks((flat == n).nonzero()[:, 0])]
        for part in tqdm(parts, disable=not show_progress):
            rows = torch.div(part, steps, rounding_mode="floor")
            found.view(-1)[part] = self.values(output(part, rows), rows)
        return found

    def values(self, output: Any, rows: Tensor) -> Tensor:
        """The explained number of each row, `[n]` in float64."""
        scores = logits(output, len(rows)).double()
        target = self.target
        if isinstance(target, Tensor):
            target = target[rows]
        elif isinstance(target, list):
            target = [target[int(i)] for i in rows]
        if self.score == "prob":
            scores = scores.softmax(1)
        if self.score == "accuracy":
            # A tie is a miss: which of the classes comes first should not matter.
            top = scores.topk(2, dim=1).values
            scores = ((scores == top[:, :1]) & (top[:, :1] > top[:, 1:])).double()
        return select(scores, target)

    def chunks(self, rows: Tensor) -> Iterator[Tensor]:
        """Rows that fit into the budget at once."""
        budget = self.budget or (BUDGET_CPU if rows.device.type == "cpu" else BUDGET)
        fit = int(budget // max(1, self.bytes_each))
        return iter(rows.split(max(1, min(fit, self.internal_batch_size or fit))))

    def forward(self, inputs: Inputs) -> Any:
        """The model in evaluation mode, without gradients."""
        with self.precision():
            return plain_forward(self.forward_func, inputs, InEvaluation())

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """The autocast that was asked for."""
        device = self.inputs.tensors[0].device.type
        return torch.autocast(device, self.autocast) if self.autocast else contextlib.nullcontext()
