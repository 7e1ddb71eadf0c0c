"""What takes the place of what is removed from a picture."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from ..trace import PreprocessingError, preprocessing
from ..trace.modules import unwrapped

Baseline: TypeAlias = "str | float | Tensor | None"


def replacement(baseline: Baseline, model: Any, images: Tensor) -> tuple[Tensor, str]:
    """The picture that shows where something is removed, and how it is called in results.

    Args:
        baseline: "mean" (0 in the space of a normalised input), "black" (0 before normalisation), "blur" (Gaussian, 11
            pixels, sigma 5), a number in the input's own space, or a tensor that broadcasts with `[B, C, H, W]`.
        model: asked for its mean and std by "black".
        images: the pictures, `[B, C, H, W]`.

    Returns:
        A tensor that broadcasts with the pictures.

    Raises:
        ValueError: there is no such baseline, it does not fit, or nothing says how the model's input is normalised.
    """
    if isinstance(baseline, Tensor):
        try:
            return baseline.to(images.device, images.dtype).expand(images.shape), "tensor"
        except RuntimeError:
            raise ValueError(f"baseline {list(baseline.shape)} does not fit images {list(images.shape)}.") from None
    if isinstance(baseline, (int, float)) and not isinstance(baseline, bool):
        return images.new_full((1, 1, 1, 1), float(baseline)).expand(images.shape), f"{float(baseline):g}"
    if baseline == "mean":
        return torch.zeros_like(images), "mean"
    if baseline == "black":
        return _black(model, images), "black"
    if baseline == "blur":
        return blurred(images), "blur"
    raise ValueError(
        f'baseline={baseline!r}; expected "drop_tokens", "mask_tokens", "mean", "black", "blur", "road", a number or a '
        f"tensor."
    )


def blurred(images: Tensor, kernel: int = 11, sigma: float = 5.0) -> Tensor:
    """Gaussian blur of `[B, C, H, W]`, its weights renormalised at the border."""
    offsets = torch.arange(kernel, dtype=torch.float64) - (kernel - 1) / 2
    weights = (-(offsets**2) / (2 * sigma**2)).exp()
    weights = (weights / weights.sum()).to(images.device, images.dtype)

    def along(x: Tensor) -> Tensor:
        pad = kernel // 2
        spread = F.conv2d(F.pad(x, (pad, pad)), weights.view(1, 1, 1, -1))
        inside = F.conv2d(F.pad(torch.ones_like(x), (pad, pad)), weights.view(1, 1, 1, -1))
        return spread / inside

    flat = images.flatten(0, 1)[:, None]
    return along(along(flat).mT).mT.view_as(images)


def _black(model: Any, images: Tensor) -> Tensor:
    try:
        wanted = preprocessing(unwrapped(model))
    except PreprocessingError as error:
        raise ValueError(
            f'baseline="black" means 0 before normalisation, and nothing says how this model normalises ({error}). '
            f"Give the number, or a tensor [1, C, 1, 1]: -mean / std."
        ) from None
    black = torch.tensor([-m / s for m, s in zip(wanted.mean, wanted.std, strict=True)])
    if len(black) not in (1, images.shape[1]):
        raise ValueError(f"this model normalises {len(black)} channels, and the images have {images.shape[1]}.")
    return black.view(1, -1, 1, 1).to(images.device, images.dtype).expand(images.shape)
