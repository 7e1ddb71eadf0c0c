"""The picture under a heatmap, whatever layout, range or library it comes in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ._array import as_numpy, is_pil, warn

if TYPE_CHECKING:
    from ._array import ArrayLike, ImageLike

Layout = Literal["CHW", "HWC"]

# One step of a byte: what rounding in half precision, or resizing, may add to 0..1 without anybody seeing it.
_STEP = 1 / 255


def to_image(
    image: ImageLike,
    mean: float | Sequence[float] | ArrayLike | None = None,
    std: float | Sequence[float] | ArrayLike | None = None,
    *,
    layout: Layout | None = None,
) -> NDArray[np.float32]:
    """Turns any common kind of picture into ``[H, W, 3]`` in 0..1.

    Args:
        image: a tensor (any device, with gradient, half precision), an array or a PIL picture: ``[3, H, W]``,
            ``[1, H, W]``, ``[H, W]``, ``[H, W, 3]``, ``[H, W, 1]``, ``[H, W, 4]`` (transparency is dropped), or one
            of these with a leading batch axis of 1. Bytes count as 0..255, 16-bit integers as 0..65535, other
            integers as bytes if they are within 0..255 and one exceeds 1, floats as 0..1.
        mean: the mean subtracted by the model's preprocessing, one number or one per channel, to be undone.
        std: the standard deviation divided by, likewise. Of ``mean`` and ``std`` either may be left out.
        layout: ``"CHW"`` or ``"HWC"`` where the shape alone leaves it open, as with ``[3, 3, 3]``.

    Returns:
        ``[H, W, 3]``, float32 within 0..1; one channel is repeated. Values outside 0..1 are scaled so that the
        smallest becomes 0 and the largest 1, with a ``UserWarning`` that tells the range; after ``mean`` and ``std``
        they are cut instead, with a warning too, as those then do not belong to this picture. NaN and infinite values
        are drawn mid-grey, with a warning.

    Raises:
        ValueError: if the shape is no picture's or leaves the layout open, if bytes are given with ``mean`` or
            ``std``, or if these do not fit the channels.
        TypeError: if there are no real numbers in it.

    Example:
        >>> to_image(np.zeros((3, 32, 48))).shape
        (32, 48, 3)
        >>> to_image(np.full((1, 8, 8), -2.0), mean=0.5, std=0.25)[0, 0].tolist()
        [0.0, 0.0, 0.0]
    """
    pixels = as_numpy(image)
    if is_pil(image) and pixels.ndim == 3:
        layout = "HWC"
    pixels = _channels_last(pixels, layout)
    kind, normalised = pixels.dtype, mean is not None or std is not None
    if normalised and kind.kind in "iu":
        raise ValueError(f"found integers ({kind}), which no preprocessing has normalised: leave out mean and std")
    if kind == np.uint8:  # the photograph of a camera: nothing to be checked, and no need for eight bytes a value
        values = pixels.astype(np.float32) / 255
        return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3)))
    values = pixels.astype(np.float64) / _full_scale(pixels)
    if normalised:
        channels = values.shape[2]
        values = values * _per_channel(std, 1.0, channels, "std") + _per_channel(mean, 0.0, channels, "mean")
    values = _within_range(values, normalised)
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3)), dtype=np.float32)


def _channels_last(pixels: NDArray[Any], layout: Layout | None) -> NDArray[Any]:
    """``[H, W, 1 or 3]`` from every accepted shape."""
    shape = tuple(pixels.shape)
    if pixels.ndim == 4 and shape[0] == 1:
        pixels = pixels[0]
    elif pixels.ndim == 4:
        raise ValueError(f"found a batch of {shape[0]} pictures {shape}: hand over one of them, as in image[0]")
    if pixels.ndim == 2:
        pixels, layout = pixels[None], "CHW"
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise ValueError(f"found shape {shape}: a picture is [3, H, W], [1, H, W], [H, W] or [H, W, 3]")
    first, last = pixels.shape[0] in (1, 3), pixels.shape[2] in (1, 3)
    # Transparency comes only last: [3, 8, 4] is a narrow picture.
    last = last or (pixels.shape[2] == 4 and (not first or layout == "HWC"))
    if layout is None:
        if first and last:
            raise ValueError(f"found shape {shape}, which has its channels first or last: say layout='CHW' or 'HWC'")
        if not first and not last:
            raise ValueError(
                f"found shape {shape}, with 1 or 3 channels neither first nor last: pick the channels to be shown"
            )
        layout = "CHW" if first else "HWC"
    elif layout not in ("CHW", "HWC"):
        raise ValueError(f"found layout {layout!r}: expected 'CHW' or 'HWC'")
    elif not (first if layout == "CHW" else last):
        raise ValueError(f"found shape {shape}, which has no 1 or 3 channels in layout {layout!r}")
    pixels = pixels.transpose(1, 2, 0) if layout == "CHW" else pixels
    return pixels[:, :, :3]


def _full_scale(pixels: NDArray[Any]) -> float:
    """The value that stands for white, of all but bytes."""
    if pixels.dtype == np.uint16:
        return 65535.0
    # Bytes that went through torch's or numpy's default integer type; a mask of 0 and 1 stays what it is.
    return 255.0 if pixels.dtype.kind in "iu" and pixels.min() >= 0 and 1 < pixels.max() <= 255 else 1.0


def _per_channel(
    value: float | Sequence[float] | ArrayLike | None, default: float, channels: int, name: str
) -> NDArray[np.float64]:
    """``[1]`` or ``[channels]`` from a number, a list, or a tensor such as ``[1, 3, 1, 1]``."""
    numbers = np.asarray(as_numpy(default if value is None else value), dtype=np.float64).ravel()
    if numbers.size not in (1, channels):
        raise ValueError(f"found {numbers.size} values in {name} for {channels} channels: one, or one per channel")
    if not np.isfinite(numbers).all() or (name == "std" and (numbers == 0).any()):
        raise ValueError(f"found {name} {numbers.tolist()}: expected finite numbers, and none 0 in std")
    return numbers


def _within_range(values: NDArray[np.float64], normalised: bool) -> NDArray[np.float64]:
    """Brings ``[H, W, C]`` into 0..1, and says so where that changes the picture."""
    finite = np.isfinite(values)
    if not finite.all():
        warn(f"the picture has {int((~finite).sum())} of {values.size} values NaN or infinite; they are drawn grey")
        if not finite.any():
            return np.full_like(values, 0.5)
    low, high = float(values[finite].min()), float(values[finite].max())
    found = f"the picture has the range {low:.3g} to {high:.3g}"
    inside = low >= -_STEP and high <= 1 + _STEP
    if not inside and normalised:
        warn(f"{found} after mean and std: cut to 0..1; are they the right ones?")
    elif not inside:
        hint = "divide it by 255" if low >= 0 and high <= 255 else "hand over mean= and std= to undo a normalisation"
        warn(f"{found}, not 0..1: scaled from there; {hint} to see it as it is")
        if low == high:
            return np.full_like(values, 0.5)
        # Halves, because the difference of two finite numbers may be infinite.
        values = (values / 2 - low / 2) / (high / 2 - low / 2)
    return np.where(finite, np.clip(values, 0, 1), 0.5)


def smaller(picture: NDArray[np.float32], largest: int) -> NDArray[np.float32]:
    """``[H, W, 3]`` averaged over squares of pixels until about ``largest`` a side; the same where it is not larger."""
    k = math.ceil(max(picture.shape[:2]) / largest)
    if k == 1 or min(picture.shape[:2]) < k:
        return picture
    height, width = (n // k for n in picture.shape[:2])
    squares = picture[: height * k, : width * k].reshape(height, k, width, k, 3)
    return np.asarray(squares.mean((1, 3)), dtype=np.float32)
