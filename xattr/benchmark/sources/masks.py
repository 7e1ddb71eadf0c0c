"""Boxes and masks of a picture as the model sees it: through the same resizing and cropping as the picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ...metrics import boxes_as_masks
from ...trace import Preprocessing
from ...trace.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Box", "paint_boxes", "paint_mask", "through"]

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom edge in pixels of the upright picture; the first pixel reaches from 0 to 1."""


def paint_boxes(boxes: Sequence[Box], size: tuple[int, int]) -> Image:
    """White where the centre of a pixel lies in a box, else black.

    Args:
        boxes: they may reach beyond the picture, and overlap; none leaves it black.
        size: width and height of the picture.

    Raises:
        InputError: a box has no area or lies outside the picture.

    Example:
        >>> import numpy as np
        >>> from xattr.benchmark.sources.masks import paint_boxes
        >>> np.asarray(paint_boxes([(1, 0, 3, 1)], (4, 2))) // 255
        array([[0, 1, 1, 0],
               [0, 0, 0, 0]], dtype=uint8)
    """
    from PIL import Image

    width, height = size
    for x1, y1, x2, y2 in boxes:
        box = f"box x1={x1:g}, y1={y1:g}, x2={x2:g}, y2={y2:g}"
        if not (math.isfinite(x1 + y1 + x2 + y2) and x1 < x2 and y1 < y2):
            raise InputError(f"found the {box}; expected numbers with x1 < x2 and y1 < y2.")
        if x1 >= width or y1 >= height or x2 <= 0 or y2 <= 0:
            raise InputError(
                f"found the {box} outside the picture of {width} x {height} (width x height, upright); expected pixels."
            )
    inside = boxes_as_masks([torch.tensor(boxes, dtype=torch.float64).view(-1, 4)], (height, width))[0, 0]
    return Image.fromarray(inside.numpy().astype(np.uint8) * 255)


def paint_mask(mask: Image, size: tuple[int, int]) -> Image:
    """White where a mask is not zero, else black; transparency does not count, of a palette its numbers do.

    Raises:
        InputError: the mask is not as large as the picture.
    """
    from PIL import Image

    if mask.size != size:
        raise InputError(
            f"the mask is {mask.width} x {mask.height}, the picture {size[0]} x {size[1]} (width x height, upright); "
            f"expected the same."
        )
    values = np.atleast_3d(np.asarray(mask))
    if mask.getbands()[-1] in "Aa":
        values = values[..., :-1]
    return Image.fromarray((values != 0).any(2).astype(np.uint8) * 255)


def through(painted: Image, preprocessing: Preprocessing) -> Tensor:
    """A painted mask as the model sees the picture, boolean `[1, 1, H, W]`.

    A pixel of the model counts where at least half of it is white. Whatever a transform does to places is followed as
    long as it is the same for every picture of this size, and colours stay what they are.

    Example:
        >>> import torch
        >>> from torchvision.transforms.functional import pil_to_tensor
        >>> from xattr.benchmark.sources.masks import paint_boxes, through
        >>> from xattr.trace import Preprocessing
        >>> half = lambda image: pil_to_tensor(image.resize((2, 1))) / 255
        >>> through(paint_boxes([(0, 0, 2, 2)], (4, 2)), Preprocessing(half, (0,), (1,), (1, 2)))
        tensor([[[[ True, False]]]])
    """
    from PIL import Image

    # Padding may have any colour; only what differs from a black picture was painted.
    white, black = (
        preprocessing.inverse(preprocessing(picture)).mean(1, keepdim=True)
        for picture in (painted, Image.new("L", painted.size))
    )
    return white - black > 0.5
