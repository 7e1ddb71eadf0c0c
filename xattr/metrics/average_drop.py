"""Average drop and increase in confidence: what is left of the class when the image is multiplied by its map."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..trace import Inputs, Target
from ..trace.run import Run
from .features import feature_values
from .perturber import Bound, Perturber


@dataclass(frozen=True)
class AverageDrop:
    """Confidence before and after, one number for each image; means over images are the metrics of the literature.

    NaN where the map is constant: scaled to 0..1 it could keep everything or nothing.

    Attributes:
        drop: `max(0, p - p_m) / p`, 0 to 1, lower is better, `[B]` in float64; NaN where p is not above 0.
        increase: 1 where `p_m > p`, else 0, higher is better, `[B]` in float64.
        area: mean of the scaled map, 0 to 1: the share of the picture that was kept, `[B]` in float64.
        before: p, `[B]` in float64.
        after: p_m, `[B]` in float64.
        class_: "predicted" or "given".
    """

    drop: Tensor
    increase: Tensor
    area: Tensor
    before: Tensor
    after: Tensor
    class_: str


def average_drop(
    forward_func: Callable[..., Any],
    inputs: Any,
    attributions: Tensor,
    target: Target = None,
    *,
    additional_forward_args: Any = None,
    internal_batch_size: int | None = None,
) -> AverageDrop:
    """How far the class's probability falls when the image is multiplied by its map, scaled to 0..1 for each image.

        p = f(x),   p_m = f(x * m),   m = (map - min) / (max - min)

    Both numbers reward a map that keeps everything, so read `area` beside them. Chattopadhay et al., arXiv:1710.11063.
    Images are multiplied in the space of the input, where 0 is the mean colour of a normalised picture.

    Args:
        forward_func: a module or any callable, but no `Perturber`. A model with one output gives p itself.
        inputs: images `[B, C, H, W]`.
        attributions: maps `[B, C, h, w]`; channels are summed, other sizes resized bilinearly, signs count.
        target: class index, or one for each image; `None` is the predicted class.
        additional_forward_args: what else the model takes.
        internal_batch_size: how many images one forward may hold at most; `None` for what fits into the budget of a
            `Perturber`.

    Raises:
        ValueError: maps that do not fit the images, or hold what is no number.

    Cost: 3 forwards an image, the first of which finds the class.

    Example:
        >>> import torch
        >>> from xattr.metrics.average_drop import average_drop
        >>> x, heat = torch.ones(1, 1, 1, 2), torch.tensor([[[[0.0, 3.0]]]])
        >>> found = average_drop(lambda z: z.sum((1, 2, 3)), x, heat)
        >>> float(found.drop), float(found.increase), float(found.area)
        (0.5, 0.0, 0.5)
    """
    if isinstance(forward_func, (Perturber, Bound)):
        raise ValueError(f"found a {type(forward_func).__name__}; average_drop removes no features: give it the model.")
    checked = Inputs.of(inputs)
    images = checked.image.detach()
    if len(attributions) != len(images):
        raise ValueError(f"found {len(attributions)} attributions for {len(images)} images; expected one for each.")
    pixels = torch.arange(images.shape[2:].numel(), device=images.device).view(images.shape[2:])
    maps = feature_values(attributions, pixels, pixels.numel())
    low, high = maps.aminmax(dim=1, keepdim=True)
    constant = (low == high)[:, 0]
    scaled = (maps - low) / torch.where(high > low, high - low, 1)
    masked = images * scaled.view(-1, 1, *images.shape[2:]).to(images)
    run = Run(forward_func, checked, additional_forward_args, internal_batch_size=internal_batch_size).bound(target)

    def output(part: Tensor, rows: Tensor) -> Any:
        given = run.of(rows)
        shown = torch.where((part % 2 == 0)[:, None, None, None], given.image, masked[rows])
        return run.forward(dataclasses.replace(given, tensors=(shown,)))

    p, p_m = run.each(torch.zeros(len(images), 2, dtype=torch.int64, device=images.device), output, False).unbind(1)
    undefined = lambda values: values.masked_fill(constant, torch.nan)
    return AverageDrop(
        drop=undefined((p - p_m).clamp_min(0) / torch.where(p > 0, p, torch.nan)),
        increase=undefined((p_m > p).double()),
        area=undefined(scaled.mean(1)),
        before=p,
        after=undefined(p_m),
        class_="predicted" if target is None else "given",
    )
