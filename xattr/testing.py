"""Checks that tell a user where a method stands on a model of theirs."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from captum.attr import Attribution
from torch import Tensor, nn

from ._nested import replace_tensors, tensors_in
from .trace import InputError, Target
from .trace.inputs import as_tuple
from .trace.outputs import logits, resolve

__all__ = ["Precision", "check_precision"]


@dataclass(frozen=True)
class Precision:
    """How far explanations in a lower precision are from those in float32, per image.

    Attributes:
        dtype: the lower precision.
        cosine: cosine similarity of the flattened attributions, `[B]`; NaN where one of them is 0 or not finite.
        error: largest difference over the largest float32 value, `[B]`.
        same_class: whether the model predicts the same class, `[B]`.
    """

    dtype: torch.dtype
    cosine: Tensor
    error: Tensor
    same_class: Tensor

    def __str__(self) -> str:
        compared = self.cosine.isfinite()
        worst = float(self.cosine[compared].min()) if bool(compared.any()) else float("nan")
        error = float(self.error[compared].max()) if bool(compared.any()) else float("nan")
        count = len(self.cosine)
        return (
            f"{str(self.dtype).removeprefix('torch.')}: cosine with float32 at least {worst:.4f}, largest error "
            f"{error:.2g} of the maximum; of {count} images {count - int(compared.sum())} blank or not finite, "
            f"{int((~self.same_class).sum())} in another class"
        )


def check_precision(
    method: Attribution,
    inputs: Any,
    target: Target = None,
    *,
    dtypes: Sequence[torch.dtype] = (torch.bfloat16, torch.float16),
    **arguments: Any,
) -> list[Precision]:
    """Explain the same images with copies of the model in float32 and in lower precisions.

    All of them explain the same class: without a target, the one predicted in float32. The method, its model and the
    inputs are left as they are.

    Cost: one explanation in float32 and one for each precision, and a copy of the model for each.

    Args:
        method: a method whose `forward_func` is a module.
        inputs: images, or the mapping of a Hugging Face processor.
        target: as in `attribute`.
        dtypes: the lower precisions.
        **arguments: passed to `method.attribute`.

    Returns:
        One result for each precision.

    Raises:
        InputError: the method explains no module, which alone can be cast.

    Example:
        >>> from xattr.attr import GradSkip
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> from xattr.testing import check_precision
        >>> scenes = digit_scenes("report", n=2)
        >>> (half,) = check_precision(GradSkip(embedded_model("mean-pool")), scenes.images, dtypes=[torch.bfloat16])
        >>> half.cosine.shape, bool(half.cosine.min() > 0.99)
        (torch.Size([2]), True)
    """
    if not isinstance(method.forward_func, nn.Module):
        raise InputError(
            f"{type(method).__name__} explains a {type(method.forward_func).__name__}; expected a method made with a "
            f"module, which check_precision can copy and cast."
        )
    scores = _scores(method, inputs, arguments, torch.float32)
    target = resolve(target, scores)
    wanted = _explained(method, inputs, target, torch.float32, arguments)
    results = []
    for dtype in dtypes:
        found = _explained(method, inputs, target, dtype, arguments)
        size = wanted.abs().amax(1)
        zero = (size == 0) | (found.abs().amax(1) == 0)
        results.append(
            Precision(
                dtype,
                cosine=torch.where(zero, torch.nan, F.cosine_similarity(found, wanted, dim=1)),
                error=(found - wanted).abs().amax(1) / size,
                same_class=_scores(method, inputs, arguments, dtype).argmax(-1) == scores.argmax(-1),
            )
        )
    return results


def _cast(method: Attribution, inputs: Any, arguments: Any, dtype: torch.dtype) -> tuple[Attribution, Any, Any]:
    """Copies in a precision; a layer that the method holds is found again in the copy of its model."""
    to = partial(_floating_to, dtype=dtype)
    copied = copy.deepcopy(method)
    copied.forward_func.to(dtype)
    return (
        copied,
        replace_tensors(dict(inputs) if isinstance(inputs, Mapping) else inputs, to),
        replace_tensors(arguments, to),
    )


def _floating_to(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.detach().to(dtype) if tensor.is_floating_point() else tensor


def _scores(method: Attribution, inputs: Any, arguments: Any, dtype: torch.dtype) -> Tensor:
    """Scores in evaluation mode, in float32."""
    copied, cast, others = _cast(method, inputs, arguments, dtype)
    extra = as_tuple(others.get("additional_forward_args"))
    model = copied.forward_func.eval()
    with torch.no_grad():
        if isinstance(cast, dict):
            output = model(*extra, **cast)
        else:
            output = model(*(cast if isinstance(cast, tuple) else (cast,)), *extra)
    return logits(output, len(next(tensors_in(cast)))).float()


def _explained(method: Attribution, inputs: Any, target: Target, dtype: torch.dtype, arguments: Any) -> Tensor:
    """Attributions of all inputs, flattened, `[B, n]`, in float32."""
    copied, cast, others = _cast(method, inputs, arguments, dtype)
    found = copied.attribute(cast, target=target, **others)
    return torch.cat([part.detach().float().flatten(1) for part in tensors_in(found)], 1)
