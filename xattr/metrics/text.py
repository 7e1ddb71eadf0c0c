"""Tokens of a text as what can be removed, so that every ordering metric works on models of text.

No library is known here: only the names `input_ids` and `attention_mask`, and that what belongs to tokens is
`[B, T, ...]`. T counts the tokens of the longest text, F = T.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..trace import Inputs, Target
from ..trace.run import Run, Score
from .features import Features
from .perturber import Bound

Operator = Literal["mask", "drop", "replace"]


@dataclass(frozen=True)
class TokenPerturber:
    """How tokens are removed from a text.

    Padding, where `attention_mask` is 0, is no feature. Special tokens are none either, and stay.

    Args:
        forward_func: a module or any callable that returns scores `[B, C]`, or an object with such `logits`.
        operator: "mask" sets `attention_mask` to 0, so that no token sees the removed one and places stay as they are.
            "drop" takes it out of the sequence, and padding too: positions are those that the model counts in the
            shorter text, or the given `position_ids`. "replace" puts another token there.
        token: its id, for instance that of the mask or of padding. Under "mask" and "drop" it stands for every token of
            a text of which nothing is left, which only happens without special tokens.
        special: which tokens stay: their ids (`tokenizer.all_special_ids`), or 1 at each of them, `[B, T]`, as
            `special_tokens_mask` has it.
        score: softmax probability or logit of the class.
        additional_forward_args: what else the model takes behind a tensor of ids.
        budget: bytes that one forward may hold; more texts go in several; `None` for 128 MiB on a CPU, 2 GiB
            elsewhere.
        internal_batch_size: how many texts one forward may hold at most, whatever the budget.
        autocast: `torch.bfloat16` or `torch.float16` runs the forwards under it; scores stay in float64.

    Example:
        >>> import torch
        >>> from xattr.metrics import leave_one_out
        >>> from xattr.metrics.text import TokenPerturber
        >>> counts = lambda ids: torch.nn.functional.one_hot(ids, 9).double().sum(1)  # how often each word occurs
        >>> bound = TokenPerturber(counts, "drop", special=[0], score="logit").bind(torch.tensor([[0, 7, 5, 7]]), 7)
        >>> bound.features.valid.tolist(), bound.score(torch.tensor([[[1, 1, 1, 1], [1, 0, 1, 1]]]) > 0).tolist()
        ([[False, True, True, True]], [[2.0, 1.0]])
        >>> leave_one_out(bound, None, torch.tensor([[0.0, 0.5, 0.1, 0.5]])).tolist()
        [1.0]
    """

    forward_func: Callable[..., Any]
    operator: Operator = "mask"
    token: int | None = None
    special: Tensor | Sequence[int] = ()
    score: Score = "prob"
    additional_forward_args: Any = None
    budget: int | None = None
    internal_batch_size: int | None = None
    autocast: torch.dtype | None = None

    def bind(self, inputs: Mapping[str, Any] | Tensor, target: Target = None) -> Bound:
        """Fix texts and classes; without a target the predicted classes.

        A score costs one forward for each text and step; "drop" makes them shorter, and only texts that are left with
        as many tokens go into one forward, so that nothing is padded.

        Args:
            inputs: what a tokenizer gives: a mapping with `input_ids`, `[B, T]`, all of whose entries the model takes
                by name; or the ids alone, which it takes by position, and under "mask" by name.
            target: class index, or one for each text.

        Raises:
            ValueError: a setting is none of its choices, inputs are no texts, or nothing of a text can be removed.
        """
        if self.operator not in get_args(Operator):
            raise ValueError(f"operator={self.operator!r}; expected one of {list(get_args(Operator))}.")
        if self.operator == "replace" and self.token is None:
            raise ValueError('operator="replace" found no token; expected token=, the id that takes the place.')
        texts, attended = _texts(inputs, self.operator == "mask")
        valid = attended & ~_special(self.special, texts.tensors[0])
        if bare := (~valid.any(1)).nonzero()[:, 0].tolist():
            raise ValueError(f"texts {bare} hold only padding and special tokens; expected one that can be removed.")
        extra, limits = self.additional_forward_args, (self.budget, self.internal_batch_size)
        run = Run(self.forward_func, texts, extra, self.score, *limits, self.autocast).bound(target)
        if isinstance(run.target[0] if isinstance(run.target, list) else run.target, tuple):
            raise ValueError(
                f"target={target!r} fits scores of more than two axes; expected one row for each text, [B, C]. Pick "
                f"it, for instance forward_func = lambda **text: model(**text).logits[:, 0]."
            )
        return _Tokens(run, self, attended, valid, "predicted" if target is None else "given")


class _Tokens:
    """Removed tokens are not seen, are no longer in the sequence, or are others."""

    def __init__(self, run: Run, settings: TokenPerturber, attended: Tensor, valid: Tensor, class_: str) -> None:
        self._run, self._operator, self._token, self._attended = run, settings.operator, settings.token, attended
        replaced = f"replace {settings.token}"
        operator = replaced if self._operator == "replace" else self._operator
        # Without a token that stays nothing is left of an empty text.
        ends = self._operator != "replace" and settings.token is not None and bool((attended == valid).all(1).any())
        self.features = Features(valid, "token", operator, run.score, class_, empty=replaced if ends else None)

    def score(self, keep: Tensor, show_progress: bool = False) -> Tensor:
        gone = self.features.valid[:, None] & ~keep
        left = (self._attended[:, None] & ~gone).flatten(0, 1)
        counts = left.sum(1) if self._operator == "drop" else left.any(1).long()
        if self._operator != "replace" and self._token is None and not bool(counts.all()):
            raise ValueError(
                f'operator="{self._operator}" left nothing of a text; expected special tokens, which stay, or token=, '
                f"the id that then stands for each of its tokens."
            )

        def output(part: Tensor, rows: Tensor) -> Any:
            texts, count = self._run.of(rows), int(counts[part[0]])
            if self._token is not None and (self._operator == "replace" or not count):
                return self._run.forward(_replaced(texts, gone.flatten(0, 1)[part], self._token))
            if self._operator == "mask":
                return self._run.forward(_masked(texts, gone.flatten(0, 1)[part]))
            return self._run.forward(_shortened(texts, left[part].nonzero()[:, 1].view(-1, count)))

        return self._run.each(counts.view(keep.shape[:2]), output, show_progress)


def _replaced(texts: Inputs, gone: Tensor, token: int) -> Inputs:
    """Texts with another token in some places."""
    return dataclasses.replace(texts, tensors=(texts.tensors[0].masked_fill(gone, token),))


def _masked(texts: Inputs, gone: Tensor) -> Inputs:
    """Texts that no token sees in some places."""
    mask = texts.others["attention_mask"].masked_fill(gone, 0)
    return dataclasses.replace(texts, others=texts.others | {"attention_mask": mask})


def _shortened(texts: Inputs, kept: Tensor) -> Inputs:
    """Texts with some of their tokens; `kept`, `[n, k]`, are the numbers of these."""
    ids, rows = texts.tensors[0], torch.arange(len(kept), device=kept.device)[:, None]
    others = {
        name: value[rows, kept] if isinstance(value, Tensor) and value.shape[:2] == ids.shape else value
        for name, value in texts.others.items()
    }
    return dataclasses.replace(texts, tensors=(ids[rows, kept],), others=others)


def _texts(inputs: Mapping[str, Any] | Tensor, masked: bool) -> tuple[Inputs, Tensor]:
    """Checked inputs, with an `attention_mask` if it is asked for, and which tokens are no padding, `[B, T]`."""
    others = {k: v for k, v in inputs.items() if k != "input_ids"} if isinstance(inputs, Mapping) else {}
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
    if not isinstance(ids, Tensor) or ids.ndim != 2 or not ids.numel() or ids.dtype not in (torch.int64, torch.int32):
        shown = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(
            f"input_ids: found {shown}; expected whole numbers [B, T], alone or in a mapping, for instance from "
            f'tokenizer(texts, padding=True, return_tensors="pt").'
        )
    mask = others.get("attention_mask")
    if mask is None:
        mask = torch.ones_like(ids)
    elif not isinstance(mask, Tensor) or mask.shape != ids.shape or not bool(((mask == 0) | (mask == 1)).all()):
        shown = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"attention_mask: found {shown}; expected {list(ids.shape)}, 1 at tokens and 0 at padding.")
    if masked:
        others["attention_mask"] = mask
    by_name = isinstance(inputs, Mapping) or masked
    return Inputs((ids,), key="input_ids" if by_name else None, others=others), mask != 0


def _special(special: Tensor | Sequence[int], ids: Tensor) -> Tensor:
    """Which tokens are special, `[B, T]`."""
    given = torch.as_tensor(special, device=ids.device)
    if given.shape == ids.shape:
        return given != 0
    if given.ndim != 1 or (given.numel() and (given.is_floating_point() or given.dtype == torch.bool)):
        raise ValueError(
            f"special: found {given.dtype} {list(given.shape)}; expected ids [n], or 1 at special tokens "
            f"{list(ids.shape)}."
        )
    return torch.isin(ids, given)
