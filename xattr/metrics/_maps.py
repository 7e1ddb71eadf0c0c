"""What every metric of a map does first: channels are summed, shapes and types compared."""

from __future__ import annotations

import torch
from torch import Tensor


def summed(maps: Tensor) -> Tensor:
    """The sum over channels as `[B, H * W]`, in float32 at least: half precision cannot even count the pixels."""
    if maps.ndim != 4:
        raise ValueError(f"maps are {list(maps.shape)}; expected [B, C, H, W].")
    return maps.detach().to(torch.promote_types(maps.dtype, torch.float32)).sum(1).flatten(1)


def paired(maps: Tensor, masks: Tensor, name: str = "masks") -> tuple[Tensor, Tensor]:
    """The sums over channels and the masks, both `[B, H * W]`, once they are known to fit."""
    if maps.ndim != 4 or masks.shape != (len(maps), 1, *maps.shape[2:]):
        raise ValueError(
            f"maps {list(maps.shape)} and {name} {list(masks.shape)}; expected [B, C, H, W] and [B, 1, H, W] that fit."
        )
    if masks.dtype != torch.bool:  # 0 and 255 would weigh, not choose
        raise ValueError(f"{name} are {masks.dtype}; expected torch.bool, for example {name} > 0.")
    return summed(maps), masks.flatten(1)
