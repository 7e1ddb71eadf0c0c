"""Choosing the gammas of LRP by a metric on given images."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..rules import RuleSet, gamma
from ..trace import Inputs, Target
from ..trace.record import chunks
from .lrp import LRP

__all__ = ["GammaTuning", "tune_gamma"]


@dataclass(frozen=True)
class GammaTuning:
    """What `tune_gamma` found.

    Attributes:
        convolution: best gamma of convolutions.
        linear: best gamma of linear layers.
        rule: the rule set with these gammas, for `LRP.attribute(rule=...)`.
        rows: `(convolution, linear, mean of the metric, its standard error)` of every pair that was tried.
    """

    convolution: float
    linear: float
    rule: RuleSet
    rows: tuple[tuple[float, float, float, float], ...]

    @property
    def table(self) -> str:
        """The rows as aligned text, best first."""
        lines = ["convolution  linear    metric  standard error"]
        for c, l, mean, error in sorted(self.rows, key=lambda row: -row[2]):
            lines.append(f"{c:11g}  {l:6g}  {mean:8.4f}  {error:14.4f}")
        return "\n".join(lines)


def tune_gamma(
    forward_func: Callable[..., Any],
    inputs: Any,
    metric: Callable[[Tensor], Tensor],
    target: Target = None,
    additional_forward_args: Any = None,
    *,
    convolution: Sequence[float] = (0.0, 0.1, 0.25, 1.0, 100.0),
    linear: Sequence[float] | None = (0.0, 0.05, 0.25, 1.0),
    batch_size: int = 16,
) -> GammaTuning:
    """Try gammas of the rule set `gamma` on images and take the pair with the highest mean of a metric.

    Tune on other images than those that a result is reported on. Ties go to the pair that comes first.

    Cost: about 4 forwards for each pair.

    Args:
        forward_func: a module or any callable that returns scores.
        inputs: the images, `[B, C, H, W]`.
        metric: takes the relevance in the shape of the inputs and returns one number for each image, `[B]`; higher is
            better.
        target: class index, or one for each image; `None` explains the predicted class.
        additional_forward_args: what else the model takes.
        convolution: gammas of convolutions to try.
        linear: gammas of linear layers to try; `None` for the same as in convolutions.
        batch_size: most images in one forward; a mapping, or images with `additional_forward_args`, go at once.

    Returns:
        The best pair, its rule set and the table of all.

    Raises:
        ValueError: nothing to try, a negative gamma, or a metric that does not give one finite number for each image.

    Example:
        >>> from xattr.attr import tune_gamma
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> from xattr.metrics import energy
        >>> scenes = digit_scenes("tuning", n=4)
        >>> found = tune_gamma(embedded_model("mean-pool"), scenes.images, lambda r: energy(r, scenes.masks),
        ...                    target=scenes.labels, convolution=[0.25], linear=[0, 0.25])
        >>> len(found.rows), found.rule.name
        (2, 'gamma')
    """
    pairs = [(c, c) for c in convolution] if linear is None else list(itertools.product(convolution, linear))
    if not pairs:
        raise ValueError("there is no gamma to try: convolution or linear is empty.")
    count, rows = len(Inputs.of(inputs).tensors[0]), []
    for pair in pairs:
        values = metric(_relevance(forward_func, inputs, target, additional_forward_args, pair, batch_size))
        values = values.detach().double()
        if values.shape != (count,) or not bool(torch.isfinite(values).all()):
            raise ValueError(
                f"the metric returned a tensor of shape {list(values.shape)} with "
                f"{int((~torch.isfinite(values)).sum())} values that are not finite; expected one finite number for "
                f"each image, [{count}]."
            )
        error = float(values.std()) / count**0.5 if count > 1 else float("nan")
        rows.append((*pair, float(values.mean()), error))
    best = max(rows, key=lambda row: row[2])
    return GammaTuning(best[0], best[1], gamma(best[0], best[1]), tuple(rows))


def _relevance(
    forward_func: Callable[..., Any], inputs: Any, target: Target, extra: Any, pair: tuple[float, float], size: int
) -> Any:
    method, rule = LRP(forward_func), gamma(*pair)
    if extra is not None or not isinstance(inputs, Tensor):
        return method.attribute(inputs, target, extra, rule=rule)
    each = isinstance(target, list) or (isinstance(target, Tensor) and target.numel() > 1)
    parts = []
    for part in chunks(len(inputs), size):
        parts.append(method.attribute(inputs[part], target[part] if each else target, rule=rule))  # type: ignore[index]
    return torch.cat(parts)
