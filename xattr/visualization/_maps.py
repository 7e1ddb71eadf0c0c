"""Which maps, and which pictures, are in what was handed over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ._array import as_numpy, is_pil
from .image import Layout, to_image

if TYPE_CHECKING:
    from ._array import ArrayLike, ImageLike


def as_maps(heat: ArrayLike | Sequence[ArrayLike], pictures: int | None = None) -> list[NDArray[np.float64]]:
    """Splits attributions into one ``[H, W]`` map per picture; channels are summed.

    Args:
        heat: ``[H, W]``, ``[C, H, W]``, ``[B, H, W]``, ``[B, C, H, W]``, or a list of maps. Three axes are a batch
            where there are as many (and more than one) pictures, else one map with channels if the first is 1 or 3;
            without pictures any other number is a batch.
        pictures: how many pictures the maps belong to, if known.

    Returns:
        The maps, float64.

    Raises:
        ValueError: if the shape fits none of these, or the number of maps is not that of the pictures.

    Example:
        >>> [m.shape for m in as_maps(np.zeros((2, 3, 8, 9)))]
        [(8, 9), (8, 9)]
    """
    if isinstance(heat, (list, tuple)):
        if len(heat) == 1:  # what a method returns for a tuple of one input
            return as_maps(heat[0], pictures)
        found = [as_maps(one, 1)[0] for one in heat]
    else:
        values = as_numpy(heat).astype(np.float64)
        if values.ndim not in (2, 3, 4) or 0 in values.shape:
            raise ValueError(f"found heat of shape {values.shape}: expected [H, W], [C, H, W], [B, H, W], [B, C, H, W]")
        found = list(_split(values, pictures))
    if not found:
        raise ValueError("found no map")
    if pictures is not None and len(found) != pictures:
        raise ValueError(f"found {len(found)} maps for {pictures} picture(s): there must be one map for each")
    return found


def _split(values: NDArray[np.float64], pictures: int | None) -> NDArray[np.float64]:
    """``[B, H, W]`` from two, three or four axes."""
    shape = values.shape
    if values.ndim == 2:
        return values[None]
    if values.ndim == 3:
        if pictures is not None and pictures > 1 and shape[0] == pictures:
            return values
        if shape[0] not in (1, 3) and shape[2] not in (1, 3) and pictures is None:
            return values
        if shape[0] not in (1, 3):
            raise ValueError(
                f"found heat of shape {shape}"
                + (f" for {pictures} picture(s)" if pictures is not None else "")
                + ": channels come first, [C, H, W] with 1 or 3 of them; a batch is [B, 1, H, W]"
            )
        values = values[None]
    elif shape[3] in (1, 3) and shape[1] not in (1, 3):
        raise ValueError(f"found heat of shape {shape}: channels come first, [B, C, H, W]")
    # Infinite entries of both signs meet here; the result is NaN, which is counted and drawn as such.
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(values.sum(1))


def as_pictures(
    image: ImageLike | Sequence[ImageLike], mean: Any, std: Any, layout: Layout | None
) -> list[NDArray[np.float32]]:
    """One ``[H, W, 3]`` per picture, from one picture, a batch ``[B, ...]`` of four axes, or a list of pictures."""
    several: Sequence[Any]
    if isinstance(image, (list, tuple)):
        several = image
    elif not is_pil(image) and len(np.shape(image)) == 4:  # type: ignore[arg-type]
        several = [image[i] for i in range(len(image))]  # type: ignore[arg-type, index]
    else:
        several = [image]
    if not len(several):
        raise ValueError("found no picture")
    return [to_image(one, mean, std, layout=layout) for one in several]
