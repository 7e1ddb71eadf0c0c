"""Max-sensitivity (Yeh et al., arXiv:1901.09392): Captum's, run so that no image depends on another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import captum.metrics
import torch
from torch import Tensor, nn
from tqdm import tqdm

from ..trace import Inputs, Target
from ..trace.modules import in_evaluation_mode
from ..trace.outputs import resolve
from ..trace.run import Run


@dataclass(frozen=True)
class MaxSensitivity:
    """How much maps move under noise; lower is better.

    Attributes:
        value: largest change over the draws, `[B]` in float64; NaN where the map of the image itself is 0 everywhere.
        radius: of the noise, in units of the input.
        samples: number of draws, the same for every image.
        seed: of the draws.
        higher_is_better: `False`.
    """

    value: Tensor
    radius: float
    samples: int
    seed: int
    higher_is_better: bool = False


def max_sensitivity(
    explain: Any,
    inputs: Any,
    target: Target = None,
    *,
    radius: float = 0.02,
    samples: int = 10,
    seed: int = 0,
    internal_batch_size: int | None = None,
    show_progress: bool = False,
) -> MaxSensitivity:
    """Largest change of a map under small noise in the input, in lengths of the map; lower is better.

        value = max over draws of |map(x + noise) - map(x)| / |map(x)|,   noise uniform in -radius..radius

    A map that is always the same scores 0: read it beside a measure of faithfulness.

    Args:
        explain: a Captum attribution, or a function `explain(images, target=...)` that returns maps.
        inputs: images `[B, C, H, W]`.
        target: class index, or one for each image; `None` is the class that the attribution's model predicts for the
            image itself. A function gets `None`, and may then explain another class for each draw.
        radius: largest noise, in units of the input; 0.2 is in use too.
        samples: number of draws.
        seed: of the draws, and of those that `explain` makes itself.
        internal_batch_size: how many images `explain` gets at once; `None` for all draws of an image.
        show_progress: whether to draw a progress bar.

    Raises:
        ValueError: a setting that is none of its choices.

    Cost: `samples + 1` explanations an image.

    Example:
        >>> from xattr.attr import GradSkip
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> from xattr.metrics.sensitivity import max_sensitivity
        >>> x = digit_scenes("report", n=2).images
        >>> max_sensitivity(GradSkip(embedded_model("class-token")), x, samples=2).value.shape
        torch.Size([2])
    """
    most = samples if internal_batch_size is None else internal_batch_size
    for name, value in (("samples", samples), ("internal_batch_size", most)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r}; expected a positive whole number.")
    if not 0 < radius < float("inf"):
        raise ValueError(f"radius={radius!r}; expected a number above 0, in units of the input.")
    attribute, model = getattr(explain, "attribute", explain), getattr(explain, "forward_func", None)
    if not callable(attribute):
        raise ValueError(f"found a {type(explain).__name__}; expected a Captum attribution, or a function.")
    images = Inputs.of(inputs).image.detach()
    pairs = list(zip(images.split(1), _each(target, len(images)), strict=True))
    found = []
    with in_evaluation_mode(model) if isinstance(model, nn.Module) else contextlib.nullcontext():
        for image, class_ in tqdm(pairs, disable=not show_progress):
            if class_ is None and callable(model):
                class_ = resolve(None, Run(model, Inputs.of(image), score="logit").scores())
                class_ = int(class_) if isinstance(class_, Tensor) else class_
            one = lambda x, class_=class_: attribute(x, target=class_)
            found.append(_one_sensitivity(one, image, radius, samples, seed, min(most, samples)))
    return MaxSensitivity(torch.cat(found), radius, samples, seed)


def _one_sensitivity(explain: Callable[[Tensor], Any], image: Tensor, radius: float, samples: int, seed: int,
                     most: int) -> Tensor:  # fmt: skip
    """That of one image, `[1]`, by Captum."""
    generator = torch.Generator().manual_seed(seed)
    defined: list[bool] = []

    def maps(x: Tensor | tuple[Tensor]) -> tuple[Tensor]:
        with torch.enable_grad():  # which Captum switches off
            found = explain(x[0] if isinstance(x, tuple) else x)
        found = found[0] if isinstance(found, tuple) else found
        defined.append(bool(found.any()))
        return (found.detach().double().contiguous(),)

    def noisy(repeated: Tensor, radius: float) -> Tensor:
        # One at a time, so that a draw does not depend on how many go together.
        noise = torch.stack([torch.rand(image.shape[1:], generator=generator, dtype=torch.float64) for _ in repeated])
        return repeated + (radius * (2 * noise - 1)).to(repeated)

    with torch.random.fork_rng(devices=[image.device] if image.is_cuda else []):
        torch.manual_seed(seed)
        value: Tensor = captum.metrics.sensitivity_max(maps, image, noisy, radius, samples, max_examples_per_batch=most)
    return value if defined[0] else torch.full_like(value, torch.nan)  # the first map is that of the image itself


def _each(target: Target, count: int) -> list[Any]:
    """The class of each image."""
    classes = target.tolist() if isinstance(target, Tensor) else target
    if not isinstance(classes, list):
        return [classes] * count
    if len(classes) not in (1, count):
        raise ValueError(f"found {len(classes)} targets for {count} images; expected one for each, or one for all.")
    return classes if len(classes) == count else classes * count
