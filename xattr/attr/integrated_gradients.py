"""Captum's Integrated Gradients, run safely and in bounded batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import captum.attr
import torch
from captum.log import log_usage
from torch import Tensor
from tqdm import tqdm

from ..trace import Inputs, Target, gradients, observe
from ..trace.outputs import resolve, select
from ..trace.record import chunks
from ._map import result_dtype

__all__ = ["IntegratedGradients"]


class IntegratedGradients(captum.attr.IntegratedGradients):  # type: ignore[misc]
    """Captum's `IntegratedGradients` (Sundararajan et al., arXiv:1703.01365), with two differences.

    At most `internal_batch_size` images (32 by default) go through the model at once, also where this is less than the
    number of inputs; and the model runs observed: in evaluation mode, with nothing of it written.

    Cost: `n_steps + 1` forwards and `n_steps` backwards.

    Args:
        forward_func: a module or any callable.
        multiply_by_inputs: whether to multiply by `inputs - baselines`, as in Captum.

    Example:
        >>> from xattr.attr import IntegratedGradients
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> images = digit_scenes("report", n=2).images
        >>> IntegratedGradients(embedded_model("class-token")).attribute(images, n_steps=8).shape
        torch.Size([2, 1, 24, 24])
    """

    def __init__(self, forward_func: Callable[..., Any], multiply_by_inputs: bool = True) -> None:
        super().__init__(forward_func, multiply_by_inputs)
        self.gradient_func = _observed_gradients

    @classmethod
    def get_name(cls) -> str:
        """Readable name of the method."""
        return "xattr IntegratedGradients"

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        baselines: Any = None,
        target: Target = None,
        additional_forward_args: Any = None,
        n_steps: int = 50,
        method: str = "gausslegendre",
        internal_batch_size: int | None = 32,
        return_convergence_delta: bool = False,
        *,
        show_progress: bool = False,
    ) -> Any:
        """Explain one class for each image.

        Args:
            inputs: a tensor `[B, ...]`, a tuple of them, or the mapping of a Hugging Face processor.
            baselines: where the path begins: number, tensor `[B, ...]` or `[1, ...]`, tuple of them; or "mean", "black"
                (in pixel space) or "blur", as in `xattr.metrics.deletion`; `None` is 0.
            target: class index, or one for each image; `None` explains the predicted class.
            additional_forward_args: what else the model takes; tensors of batch size are split along.
            n_steps: points of the path.
            method: rule of integration, as in Captum.
            internal_batch_size: most images in one forward; `None` is 32 too.
            return_convergence_delta: return the completeness error `sum - (f(x) - f(baseline))`, `[B]`, as well.
            show_progress: whether to draw a progress bar.

        Returns:
            Attributions in the shape of the inputs, and the delta on request.

        Raises:
            TargetError: the target names no output.
            ValueError: `internal_batch_size` below 1, no baseline of that name, or nothing says what black is.
        """
        size = 32 if internal_batch_size is None else internal_batch_size
        if size < 1:
            raise ValueError(f"internal_batch_size={size}; expected at least 1.")
        checked = Inputs.of(inputs)
        if isinstance(baselines, str):
            from ..metrics.fills import replacement  # loads what no other use of this class needs

            baselines = replacement(baselines, self.forward_func, checked.image)[0]
        if checked.key is not None:
            bound = type(self)(_for_image(self.forward_func, checked), self.multiplies_by_inputs)
            return bound.attribute(
                checked.image,
                baselines,
                target,
                additional_forward_args,
                n_steps,
                method,
                size,
                return_convergence_delta,
                show_progress=show_progress,
            )
        count = len(checked.tensors[0])
        scores = _scores(self.forward_func, checked.tensors, additional_forward_args, size)
        target = resolve(target, scores)
        total: list[tuple[Tensor, ...]] = []
        for part in tqdm(list(chunks(count, size)), disable=not show_progress):
            tensors, starts, wanted, extra = (
                _take(value, part, count) for value in (checked.tensors, baselines, target, additional_forward_args)
            )
            total.append(
                captum.attr.IntegratedGradients.attribute.__wrapped__(
                    self, tensors, starts, wanted, extra, n_steps, method, internal_batch_size=size
                )
            )
        joined = tuple(torch.cat(parts) for parts in zip(*total, strict=True))
        dtype = result_dtype(checked.tensors[0])
        result: Any = tuple(part.detach().to(dtype) for part in joined)
        result = result if checked.is_tuple else result[0]
        if not return_convergence_delta:
            return result
        return result, self._delta(result, baselines, inputs, target, additional_forward_args, size)

    def compute_convergence_delta(
        self,
        attributions: Any,
        start_point: Any,
        end_point: Any,
        target: Target = None,
        additional_forward_args: Any = None,
    ) -> Tensor:
        """Completeness error of each image, `sum(attributions) - (f(end) - f(start))`, `[B]`."""
        return self._delta(attributions, start_point, end_point, target, additional_forward_args, 32)

    def _delta(
        self, attributions: Any, start_point: Any, end_point: Any, target: Target, extra: Any, size: int
    ) -> Tensor:
        attributions = attributions if isinstance(attributions, tuple) else (attributions,)
        ends = Inputs.of(end_point)
        starts = start_point if isinstance(start_point, tuple) else (start_point,) * len(ends.tensors)
        from_ = tuple(
            torch.zeros_like(end) if start is None else torch.zeros_like(end) + start
            for start, end in zip(starts, ends.tensors, strict=True)
        )
        scores, origin = (_scores(self.forward_func, tensors, extra, size) for tensors in (ends.tensors, from_))
        target = resolve(target, scores)
        total = sum(part.flatten(1).sum(1) for part in attributions)
        return total - (select(scores, target) - select(origin, target))  # type: ignore[return-value]


def _observed_gradients(
    forward_fn: Callable[..., Any], inputs: Any, target_ind: Target = None, additional_forward_args: Any = None
) -> tuple[Tensor, ...]:
    """Captum's `compute_gradients`, under observation."""
    observed = observe(forward_fn, Inputs(tuple(inputs)), additional_forward_args, record=False)
    return tuple(gradients(observed.score(target_ind), list(observed.roots)))


def _scores(forward_func: Callable[..., Any], tensors: tuple[Tensor, ...], extra: Any, size: int) -> Tensor:
    count = len(tensors[0])
    return torch.cat(
        [
            observe(
                forward_func, Inputs(_take(tensors, part, count)), _take(extra, part, count), record=False
            ).scores.detach()
            for part in chunks(count, size)
        ]
    )


def _take(value: Any, part: slice, count: int) -> Any:
    """The share of some images in an argument: what has one entry for each image is split."""
    if isinstance(value, tuple):
        return tuple(_take(one, part, count) for one in value)
    if isinstance(value, Tensor) and value.ndim and len(value) == count:
        return value[part]
    return value[part] if isinstance(value, list) and len(value) == count else value


def _for_image(forward_func: Callable[..., Any], inputs: Inputs) -> Callable[..., Any]:
    def call(image: Tensor, *extra: Any) -> Any:
        args, kwargs = inputs.arguments((image,), extra)
        return forward_func(*args, **kwargs)

    return call
