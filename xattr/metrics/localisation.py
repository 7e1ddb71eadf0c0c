"""Where a map lies, compared with a mask of the thing explained. Higher is better in all of them."""

from __future__ import annotations

from torch import Tensor


def energy(maps: Tensor, masks: Tensor) -> Tensor:
    """Share of the positive mass of each map that lies inside its mask.

    Args:
        maps: `[B, C, H, W]`; channels are summed first, then negative values are set to 0.
        masks: boolean, `[B, 1, H, W]`.

    Returns:
        `[B]`, 0 to 1; 0 for a map without positive values.

    Example:
        >>> import torch
        >>> energy(torch.tensor([[[[3.0, 1.0]]]]), torch.tensor([[[[True, False]]]]))
        tensor([0.7500])
    """
    positive, inside = _paired(maps, masks)
    positive = positive.clamp_min(0)
    total = positive.sum(1)
    return (positive * inside).sum(1) / total.where(total > 0, 1)


def pointing(maps: Tensor, masks: Tensor) -> Tensor:
    """Pointing game: whether the largest value of each map lies inside its mask.

    Where several places share the largest value, the share of them that lies inside: the expected result of breaking
    the tie at random.

    Args:
        maps: `[B, C, H, W]`; channels are summed first.
        masks: boolean, `[B, 1, H, W]`.

    Returns:
        `[B]`, 0 to 1.

    Example:
        >>> import torch
        >>> pointing(torch.tensor([[[[1.0, 1.0, 0.0]]]]), torch.tensor([[[[True, False, True]]]]))
        tensor([0.5000])
    """
    values, inside = _paired(maps, masks)
    top = (values == values.amax(1, keepdim=True)).to(values.dtype)
    return (top * inside).sum(1) / top.sum(1)


def class_sensitivity(maps_a: Tensor, maps_b: Tensor, mask_a: Tensor) -> Tensor:
    """On images with two items: energy in item A of the map for class A, less that of the map for class B.

    A map that does not depend on the class scores 0, one that moves wholly to the named item 1.

    Args:
        maps_a: maps for the class of item A, `[B, C, H, W]`.
        maps_b: maps of the same images for the class of item B.
        mask_a: mask of item A, `[B, 1, H, W]`.

    Returns:
        `[B]`, -1 to 1.
    """
    return energy(maps_a, mask_a) - energy(maps_b, mask_a)


def _paired(maps: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    if maps.ndim != 4 or masks.ndim != 4 or len(maps) != len(masks) or maps.shape[2:] != masks.shape[2:]:
        raise ValueError(
            f"maps {list(maps.shape)} and masks {list(masks.shape)} do not fit; expected [B, C, H, W] and [B, 1, H, W]."
        )
    values = maps.detach().sum(1).flatten(1)
    return values, masks.flatten(1).to(values.dtype)
