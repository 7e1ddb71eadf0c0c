"""Infidelity (Yeh et al., arXiv:1901.09392), with and without the scale of the map, from the same draws.

Captum's `infidelity` finds the same numbers if it is given these draws. It is not called: one call returns one of the
two numbers and never the factor, its draws depend on the batch, and its scale-free number subtracts large sums.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..trace import Inputs, Target
from ..trace.run import Run, Score
from .features import finite, patch_labels
from .fills import Baseline, replacement
from .perturber import Bound, Perturber

Perturbation = Literal["squares", "gaussian"]


@dataclass(frozen=True)
class Infidelity:
    """How far the drops of the score are from what a map says of them; lower is better.

    Attributes:
        value: with the best factor for each image, `[B]` in float64, in squared units of the score.
        raw: with the map as it is, `[B]`.
        factor: the best one, `[B]`; negative where the map has the wrong sign.
        perturbation: "squares" or "gaussian".
        size: side of the squares in pixels, or standard deviation of the noise in units of the input.
        baseline: what the squares show; `None` for noise.
        score: "prob" or "logit".
        class_: "predicted" or "given".
        samples: number of draws, the same for every image.
        seed: of the draws.
        higher_is_better: `False`.
    """

    value: Tensor
    raw: Tensor
    factor: Tensor
    perturbation: str
    size: float
    baseline: str | None
    score: str
    class_: str
    samples: int
    seed: int
    higher_is_better: bool = False


def infidelity(
    forward_func: Callable[..., Any],
    inputs: Any,
    attributions: Tensor,
    target: Target = None,
    *,
    perturbation: Perturbation = "squares",
    size: float | None = None,
    baseline: Baseline = "mean",
    score: Score = "prob",
    samples: int = 64,
    seed: int = 0,
    additional_forward_args: Any = None,
    internal_batch_size: int | None = None,
    show_progress: bool = False,
) -> Infidelity:
    """Mean squared error with which a map predicts what the score loses under perturbation; lower is better.

        raw = E (s - d)^2,   value = E (factor s - d)^2   with   factor = E[s d] / E[s^2],   d = f(x) - f(x')

    * "squares": in `x'` a square shows `baseline`, its centre drawn anywhere in the picture; `s` is the sum of the map
      over it. For maps that say what a pixel contributes (relevance, gradient times input: multiplied by the input).
    * "gaussian": `x' = x - I` with noise `I`; `s` is the sum of `I * map`. For maps that say how steep the score is,
      with a value for each entry of the input (gradients: not multiplied by the input).

    `value` depends neither on the scale of the map nor on its sign, which is in `factor`: of two maps that differ in
    sign alone, the wrong one has a negative factor. A map of 0 has the factor 0 and the largest value, `E d^2`.

    Args:
        forward_func: a module or any callable, but no `Perturber`.
        inputs: images `[B, C, H, W]`.
        attributions: for "squares" `[B, C, h, w]`: channels are summed, since a pixel goes with all of them, and what a
            cell of a coarser grid holds is divided among its pixels. For "gaussian" of the shape of the input.
        target: class index, or one for each image; `None` is the predicted class.
        perturbation: "squares" or "gaussian".
        size: side of the squares in pixels, `None` for a quarter of the shorter side of the picture; or standard
            deviation of the noise in units of the input, `None` for 0.1.
        baseline: what squares show: "mean", "black", "blur", a number, or a tensor.
        score: softmax probability or logit.
        samples: number of draws.
        seed: of the draws.
        additional_forward_args: what else the model takes.
        internal_batch_size: how many images one forward may hold at most; `None` for what fits into the budget of a
            `Perturber`.
        show_progress: whether to draw a progress bar.

    Raises:
        ValueError: maps that do not fit, or a setting that is none of its choices.

    Cost: `samples + 2` forwards an image.

    Example:
        >>> import torch
        >>> from xattr.metrics.infidelity import infidelity
        >>> weights, x = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.ones(1, 1, 2, 2)
        >>> found = infidelity(lambda z: (z * weights).sum((1, 2, 3)), x, 0.5 * x * weights, size=1)
        >>> bool(found.raw > 0.01), bool(found.value < 1e-9), round(float(found.factor), 2)
        (True, True, 2.0)
    """
    if isinstance(forward_func, (Perturber, Bound)):
        raise ValueError(f"found a {type(forward_func).__name__}; infidelity has its own draws: give it the model.")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples={samples!r}; expected a positive whole number.")
    images = Inputs.of(inputs).image.detach()
    fill, name = None, None
    if perturbation == "squares":
        fill, name = _picture(baseline, forward_func, images)
        size = max(1, min(images.shape[2:]) // 4) if size is None else size
        maps, draws = _pixels(attributions, images), _squares(images, size, samples, seed)
    elif perturbation == "gaussian":
        size = 0.1 if size is None else size
        maps, draws = _entries(attributions, images), _noise(images, size, samples, seed)
    else:
        raise ValueError(f'perturbation={perturbation!r}; expected "squares" or "gaussian".')
    run = Run(forward_func, Inputs.of(inputs), additional_forward_args, score, internal_batch_size=internal_batch_size)
    run = run.bound(target)
    s, d = _sums_and_drops(run, maps, draws, fill, show_progress)
    power = s.square().sum(1)
    factor = (s * d).sum(1) / torch.where(power > 0, power, 1)
    return Infidelity(
        value=(factor[:, None] * s - d).square().mean(1),
        raw=(s - d).square().mean(1),
        factor=factor,
        perturbation=perturbation,
        size=float(size),
        baseline=name,
        score=run.score,
        class_="predicted" if target is None else "given",
        samples=samples,
        seed=seed,
    )


def _sums_and_drops(run: Run, maps: Tensor, draws: Tensor, fill: Tensor | None,
                    show_progress: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What the map says of each draw, and what the score loses, both `[B, samples]` in float64."""
    draws = torch.cat([torch.zeros_like(draws[:1]), draws])  # the first is the image itself
    sums = torch.zeros(len(maps), len(draws), dtype=torch.float64, device=maps.device)

    def output(part: Tensor, rows: Tensor) -> Any:
        inputs, drawn = run.of(rows), draws[part % len(draws)]
        if fill is not None:
            changed, moved = torch.where(drawn, fill[rows], inputs.image), drawn.double()
        else:
            changed = inputs.image - drawn
            moved = inputs.image.double() - changed.double()  # what rounding left of the noise
        sums.view(-1)[part] = (moved * maps[rows]).flatten(1).sum(1)
        return run.forward(dataclasses.replace(inputs, tensors=(changed,)))

    scores = run.each(torch.zeros_like(sums, dtype=torch.int64), output, show_progress)
    return sums[:, 1:], scores[:, :1] - scores[:, 1:]


def _pixels(attributions: Tensor, images: Tensor) -> Tensor:
    """What each pixel contributes, `[B, 1, H, W]` in float64."""
    (height, width), shape = images.shape[2:], list(attributions.shape)
    if len(shape) not in (3, 4) or shape[0] != len(images) or shape[-2] > height or shape[-1] > width:
        raise ValueError(
            f"attributions {shape} for images {list(images.shape)}; expected maps [B, C, h, w], no larger than them."
        )
    values = finite(attributions.detach().double()).to(images.device)
    values = (values[:, None] if values.ndim == 3 else values.sum(1, keepdim=True)).flatten(1)
    cells = patch_labels((shape[-2], shape[-1]), (height, width)).to(images.device)
    return (values / torch.bincount(cells.flatten()))[:, cells.flatten()].view(-1, 1, height, width)


def _entries(attributions: Tensor, images: Tensor) -> Tensor:
    """How steep the score is in each entry of the input, `[B, C, H, W]` in float64."""
    if attributions.shape != images.shape:
        raise ValueError(
            f"attributions {list(attributions.shape)} for images {list(images.shape)}; Gaussian noise moves each entry "
            f'of the input, so it takes maps of that shape. perturbation="squares" takes others.'
        )
    return finite(attributions.detach().double()).to(images.device)


def _picture(baseline: Baseline, model: Any, images: Tensor) -> tuple[Tensor, str]:
    if baseline is None or (isinstance(baseline, str) and baseline not in ("mean", "black", "blur")):
        raise ValueError(f'baseline={baseline!r}; expected "mean", "black", "blur", a number, or a tensor.')
    return replacement(baseline, model, images)


def _squares(images: Tensor, side: float, samples: int, seed: int) -> Tensor:
    """Where each draw removes, boolean `[samples, 1, H, W]`."""
    if isinstance(side, bool) or not isinstance(side, int) or not 1 <= side <= min(images.shape[2:]):
        raise ValueError(f"size={side!r}; expected the side of a square in pixels, 1 to {min(images.shape[2:])}.")
    generator, inside = torch.Generator().manual_seed(seed), []
    for length in images.shape[2:]:
        # The centre lies anywhere: of squares that stay inside, next to none would reach a corner.
        first = torch.randint(length, (samples, 1), generator=generator) - side // 2
        inside.append((torch.arange(length) >= first) & (torch.arange(length) < first + side))
    return (inside[0][:, None, :, None] & inside[1][:, None, None, :]).to(images.device)


def _noise(images: Tensor, scale: float, samples: int, seed: int) -> Tensor:
    """What each draw subtracts, `[samples, C, H, W]`."""
    if isinstance(scale, bool) or not 0 < scale < float("inf"):
        raise ValueError(f"size={scale!r}; expected a standard deviation above 0, in units of the input.")
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(samples, *images.shape[1:], generator=generator, dtype=torch.float64).to(images)
