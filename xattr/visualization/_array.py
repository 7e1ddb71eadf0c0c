"""Reading what users hand over: tensors, arrays and PIL pictures as numpy arrays, without importing their library."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing import TypeAlias

    import torch
    from PIL.Image import Image

    ArrayLike: TypeAlias = torch.Tensor | NDArray[Any]
    ImageLike: TypeAlias = torch.Tensor | NDArray[Any] | Image

_HERE = str(Path(__file__).parent)


def is_pil(value: object) -> bool:
    """Whether ``value`` is a PIL picture; told by its methods, so that PIL need not be installed."""
    return hasattr(value, "getbands") and hasattr(value, "convert")


def as_numpy(value: Any) -> NDArray[Any]:
    """Copies a tensor (any device, with gradient, half precision), an array or a PIL picture into a numpy array.

    Args:
        value: a tensor or array of any shape, a PIL picture, a number or a sequence of numbers.

    Returns:
        An array of the same shape; floats as float64, integers and booleans as they are. Colour pictures of PIL come
        as bytes ``[H, W, 3]`` (palette looked up, transparency dropped), grey ones as ``[H, W]``.

    Raises:
        TypeError: if it holds no real numbers.

    Example:
        >>> as_numpy(np.float16([0.5, 1.0])).dtype
        dtype('float64')
    """
    if is_pil(value):
        # One-band pictures of integers or floats ("I;16", "F") would be cut to bytes by a conversion to RGB.
        array = np.asarray(value if value.mode[0] in "IFL" and len(value.getbands()) == 1 else value.convert("RGB"))
    elif hasattr(value, "detach") and hasattr(value, "cpu"):
        tensor = value.detach().cpu()
        # numpy knows no bfloat16, and some accelerators no float64: hence the host first, then the cast.
        array = (tensor.double() if tensor.is_floating_point() else tensor).numpy()
    else:
        array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"expected real numbers, found dtype {array.dtype} in a {type(value).__name__}")
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def resize(values: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.float64]:
    """Resizes a map bilinearly, with the geometry of ``torch.nn.functional.interpolate(align_corners=False)``.

    Args:
        values: ``[H, W]``, finite.
        size: the height and width wanted.

    Returns:
        ``[*size]``; the very same array where nothing changes.

    Example:
        >>> resize(np.array([[0.0, 1.0]]), (1, 4)).tolist()
        [[0.0, 0.25, 0.75, 1.0]]
    """
    for axis, new in enumerate(size):
        old = values.shape[axis]
        if old == new:
            continue
        at = np.clip((np.arange(new) + 0.5) * (old / new) - 0.5, 0, old - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, old - 1)
        part = (at - low).reshape((-1, 1) if axis == 0 else (1, -1))
        values = values.take(low, axis) * (1 - part) + values.take(high, axis) * part
    return values


def nearest(values: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Resizes ``[H, W]`` to ``[*size]`` by taking the nearest entry; for masks, which must not be blended."""
    rows, columns = (((np.arange(n) + 0.5) * (o / n)).astype(int) for n, o in zip(size, values.shape, strict=True))
    picked: NDArray[Any] = values[rows[:, None], columns[None, :]]
    return picked


def warn(message: str) -> None:
    """Warns once, and blames the line outside this package that called: that is where something can be changed."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)
