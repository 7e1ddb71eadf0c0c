"""Noisy linear imputation (ROAD, Rong et al., arXiv:2202.00449): removed pixels become the mean of their neighbours."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Axial neighbours count twice as much as diagonal ones.
_WEIGHTS = torch.tensor([[1 / 12, 1 / 6, 1 / 12], [1 / 6, 0.0, 1 / 6], [1 / 12, 1 / 6, 1 / 12]], dtype=torch.float64)


def imputed(images: Tensor, keep: Tensor, *, noise: float = 0.01, seed: int = 0, tolerance: float = 1e-4) -> Tensor:
    """Pictures whose removed pixels solve `x_p = sum over neighbours q of w_pq x_q`, plus Gaussian noise.

    Neighbours outside the picture do not count, and the weights of the others are scaled to sum to 1. The systems of
    all pictures are solved by conjugate gradients at once, on their device.

    Args:
        images: `[n, C, H, W]`.
        keep: boolean, `[n, 1, H, W]`.
        noise: standard deviation.
        seed: of the noise, which is the same for every picture.
        tolerance: of the residual, relative to the largest value.

    Returns:
        The pictures, kept pixels untouched.
    """
    dtype = torch.promote_types(images.dtype, torch.float32)
    removed = (~keep).to(dtype)
    weights = _WEIGHTS.to(images.device, dtype)[None, None]
    count = F.conv2d(torch.ones_like(removed), weights, padding=1)  # 1, less at the border

    def neighbours(x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)[:, None]
        return F.conv2d(flat, weights, padding=1).view_as(x)

    # With each row times the weights inside the picture the system is symmetric.
    known = images.to(dtype) * keep
    right = removed * neighbours(known)
    x = torch.zeros_like(known)
    residual = right.clone()
    direction = residual.clone()
    size = residual.square().sum((2, 3), keepdim=True)
    limit = (tolerance * images.abs().amax((1, 2, 3), keepdim=True).to(dtype)) ** 2
    for _ in range(4 * sum(images.shape[2:])):
        # A picture that is done rests, so that it does not depend on how long the others take.
        active = residual.square().amax((1, 2, 3), keepdim=True) > limit * 1e-4
        if not bool(active.any()):
            break
        moved = removed * (count * direction - neighbours(direction))
        curve = (direction * moved).sum((2, 3), keepdim=True)
        step = active * size / torch.where(curve > 0, curve, torch.inf)
        x = x + step * direction
        residual = residual - step * moved
        after = residual.square().sum((2, 3), keepdim=True)
        direction = residual + after / torch.where(size > 0, size, 1) * direction
        size = after
    grain = torch.randn(images.shape[1:], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    filled = x + noise * grain.to(images.device, dtype)
    return torch.where(keep, images, filled.to(images.dtype))
