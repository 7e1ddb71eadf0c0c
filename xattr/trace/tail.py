"""The operations between the last tokens and the scores, to be run again on other tokens of the same shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._nested import replace_tensors, tensors_in
from ..rules import RuleSet
from .errors import UnsupportedModelError
from .layers import LayerWatch
from .marks import Marks
from .outputs import logits
from .trace import Trace


@dataclass(eq=False)
class _Calls:
    """The calls behind some tokens, with what each made."""

    base: Tensor
    own: int
    calls: list[tuple[Any, Any, Any, Any]] = field(default_factory=list)


class Tail(LayerWatch):
    """Keeps the calls that lead from the last tokens to the output; what is kept of a block goes when it ends."""

    def __init__(self) -> None:
        self._begins: Tensor | None = None
        self._tails: list[_Calls] = []

    def tokens(self, made: Tensor) -> None:
        """A tail begins behind the call that makes these."""
        self._begins = made

    def operation(self, marks: Marks, name: str, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Keep the call with each tail that it belongs to."""
        made = list(tensors_in(out))
        behind = [tail for tail in self._tails if any(marks.ancestors(tensor) & tail.own for tensor in made)]
        if made and made[0] is self._begins:
            self._begins = None
            # Tokens that others were made of are not the last; a model that runs twice has two tails.
            others = [tail for tail in self._tails if tail not in behind]
            self._tails = [*others, _Calls(made[0], marks.own(made[0]))]
            return
        for tail in behind:
            tail.calls.append((func, args, kwargs, out))

    def scores(self, output: Tensor, tokens: Tensor, rules: RuleSet) -> tuple[Tensor, Tensor]:
        """What the rest of the model makes of other tokens.

        Args:
            output: the scores of the pass.
            tokens: in place of the last tokens, of the same shape.
            rules: of the backward.

        Returns:
            The scores, and the leaf that stands for the tokens in their graph.

        Raises:
            UnsupportedModelError: the kept calls do not make the scores.
        """
        makes = lambda tail: any(tensor is output for *_, out in tail.calls for tensor in tensors_in(out))
        tail = next(filter(makes, self._tails), None)
        if tail is None:
            raise UnsupportedModelError("the scores are not made of the last tokens of this model alone.")
        root = tokens.detach().clone().requires_grad_()
        with torch.inference_mode(False), torch.enable_grad(), Trace((root,), rules, record=False) as trace:
            found = {id(tail.base): trace.stand_ins[0]}

            def here(tensor: Tensor) -> Tensor:
                return found.get(id(tensor), tensor)

            for func, args, kwargs, out in tail.calls:
                made = func(*replace_tensors(args, here), **replace_tensors(kwargs, here))
                found.update(zip(map(id, tensors_in(out)), tensors_in(made), strict=True))
        return logits(found[id(output)], len(output)), root
