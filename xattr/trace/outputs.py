"""From what a model returns to one score per image: logits, and the target by Captum's conventions."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .errors import OutputError, TargetError

Target: TypeAlias = "int | tuple[int, ...] | Tensor | list[int] | list[tuple[int, ...]] | None"


def logits(output: Any, batch: int) -> Tensor:
    """The tensor of scores in a model's output.

    Args:
        output: a tensor, or an object or mapping with `logits` (Hugging Face).
        batch: number of images that went in.

    Returns:
        The scores, `[B, C]`, `[B]`, or dense `[B, C, ...]`.

    Raises:
        OutputError: anything else; the message lists what was found and shows a lambda that picks one.
    """
    if isinstance(output, Tensor):
        found = output
    elif isinstance(output, Mapping) and "logits" in output:
        found = output["logits"]
    elif isinstance(getattr(output, "logits", None), Tensor):
        found = output.logits
    else:
        raise OutputError(_describe(output))
    if found.ndim == 0 or len(found) != batch:
        raise OutputError(
            f"the model returned scores of shape {list(found.shape)} for {batch} images; expected one row per image, "
            f"[{batch}, classes]."
        )
    return found


def _describe(output: Any) -> str:
    if isinstance(output, Mapping):
        parts, pick = output.items(), f"[{next(iter(output), 'name')!r}]"
    elif isinstance(output, (tuple, list)):
        parts, pick = enumerate(output), "[0]"  # type: ignore[assignment]
    else:
        return f"the model returned a {type(output).__name__}; expected a tensor of scores or an object with .logits."
    listed = ", ".join(f"{k}: {list(v.shape) if isinstance(v, Tensor) else type(v).__name__}" for k, v in parts)
    return (
        f"the model returned a {type(output).__name__} of ({listed}); expected a tensor of scores or an object with "
        f".logits. Pick one, for instance forward_func = lambda images: model(images){pick}."
    )


def resolve(target: Target, scores: Tensor) -> Target:
    """Check a target against the scores and decide what `None` means.

    `None` is the predicted class of each image for scores `[B, C]` with C > 1, and the only score of a model with one
    output. Negative indices count from the end. One index holds for all images; a list or 1-D tensor has one per
    image; dense scores `[B, C, h, w]` take a tuple of indices for all axes behind the batch.

    Returns:
        A target that `select` takes.

    Raises:
        TargetError: out of range, of the wrong length, or of a kind that is no index.
    """
    batch, outer = len(scores), tuple(scores.shape[1:])
    if target is None:
        if len(outer) > 1:
            raise TargetError(_message(target, scores, "a dense output needs a tuple of indices"))
        return scores.detach().argmax(1) if outer and outer[0] > 1 else (0 if outer else None)
    if isinstance(target, np.ndarray):
        target = torch.as_tensor(target)
    if isinstance(target, Tensor):
        if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool or target.ndim > 1:
            raise TargetError(_message(target, scores, f"a tensor {list(target.shape)} of {target.dtype} is no index"))
        target = int(target) if target.numel() == 1 else target.tolist()
    if isinstance(target, list):
        if len(target) != batch:
            raise TargetError(_message(target, scores, f"{len(target)} targets for {batch} images"))
        return [_index(one, outer, scores) for one in target]  # type: ignore[return-value]
    return _index(target, outer, scores)


def _index(target: Any, outer: tuple[int, ...], scores: Tensor) -> tuple[int, ...] | int | None:
    if isinstance(target, Tensor) and target.numel() == 1 and not target.is_floating_point():
        target = int(target)
    index = target if isinstance(target, tuple) else (target,)
    if any(isinstance(i, bool) or not isinstance(i, numbers.Integral) for i in index):
        raise TargetError(_message(target, scores, f"a {type(target).__name__} is no index"))
    index = tuple(map(int, index))
    if not outer and index == (0,):
        return None
    if len(index) != len(outer):
        raise TargetError(_message(target, scores, f"{len(index)} indices for {len(outer)} axes behind the batch"))
    for i, size in zip(index, outer, strict=True):
        if not -size <= i < size:
            why = "the model has one output, and the other class is its negative" if size == 1 else f"{i} is outside"
            raise TargetError(_message(target, scores, why))
    return index[0] if len(index) == 1 else index


def _message(target: Any, scores: Tensor, why: str) -> str:
    outer = list(scores.shape[1:])
    ranges = " x ".join(f"0..{n - 1} (or -{n}..-1 from the end)" for n in outer) or "None only"
    hint = ""
    if isinstance(target, Tensor) and target.ndim > 1:
        hint = " For one row of labels per image pass one index at a time, for instance target=labels.argmax(1)."
    if len(outer) > 1:
        hint = " Or let forward_func return one score per class: lambda images: model(images).flatten(2).mean(2)."
    shown = target if not isinstance(target, Tensor) else target.tolist()
    if isinstance(target, Tensor) and target.numel() > 20:
        shown = f"a tensor {list(target.shape)}"
    return f"target={shown!r} does not fit an output of shape {list(scores.shape)}: {why}; allowed is {ranges}.{hint}"


def select(scores: Tensor, target: Target) -> Tensor:
    """The score of each image, `[B]`, for a target that `resolve` returned."""
    if target is None:
        return scores
    if isinstance(target, (int, tuple)):
        index = target if isinstance(target, tuple) else (target,)
        return scores[(slice(None), *index)]  # type: ignore[index]
    rows = torch.arange(len(scores), device=scores.device)
    columns = torch.as_tensor(target, device=scores.device)
    return scores[rows, columns] if columns.ndim == 1 else scores[(rows, *columns.T)]
