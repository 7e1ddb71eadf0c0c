"""Pictures and maps as data URIs, small enough that dozens of images times a dozen methods fit into one file."""

from __future__ import annotations

import base64
import io
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...visualization import colour

#: Pixels of the longer side that are kept; more would not be seen at the size of the wall.
PICTURE, MAP = 192, 80
#: Up to this many pixels the single ones are shown as squares.
CRISP = 64
#: Of the magnitudes of a map, the percentile that gets the strongest colour.
PERCENTILE = 99.0
#: Steps from zero to the strongest colour: more cannot be told apart, and fewer make a smaller file.
_STEPS = 31


@dataclass(frozen=True)
class Drawn:
    """A map as a picture.

    Attributes:
        uri: of the picture.
        crisp: whether its pixels should stay squares.
        sign: "signed" with values below zero, "≥ 0" without, "all 0", or "no numbers".
        said: its range of values, and how many are no numbers.
    """

    uri: str
    crisp: bool
    sign: str
    said: str


def picture_uri(picture: NDArray[np.uint8]) -> tuple[str, bool]:
    """Data URI of `[H, W, 3]` or `[H, W]`, and whether its pixels should stay squares."""
    pixels = np.asarray(picture)
    image = Image.fromarray(pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)
    if max(image.size) <= CRISP:
        return _uri(image, "PNG"), True
    return _uri(image.resize(_fitted(image.size, PICTURE), Image.Resampling.BOX), "JPEG"), False


def draw_map(heat: NDArray[Any]) -> Drawn:
    """One map `[h, w]` in the colours of `xattr.visualization`, on a scale of its own.

    A map with more pixels than are shown is averaged. The strongest colour is the `PERCENTILE` of its magnitudes.
    """
    values = np.asarray(heat, dtype=np.float64)
    finite = values[np.isfinite(values)]
    size = float(np.abs(finite).max()) if finite.size else 0.0
    # Divided first, as values of any size must pass through single precision.
    small = Image.fromarray((values / (size or 1.0)).astype(np.float32))
    small = small.resize(_fitted(small.size, MAP), Image.Resampling.BOX)
    rgb = _coloured(np.asarray(small, dtype=np.float64))
    said = f"values from {finite.min():.3g} to {finite.max():.3g}" if finite.size else "no values"
    if broken := values.size - finite.size:
        said += f", {broken} of {values.size} not a number"
    sign = "signed" if (finite < 0).any() else "≥ 0" if size else "all 0" if finite.size else "no numbers"
    return Drawn(_uri(_indexed(rgb), "PNG"), max(small.size) <= CRISP, sign, said)


def scale_uri() -> str:
    """The colours from -1 to 1 as a strip."""
    return _uri(_indexed(_bytes(colour(np.linspace(-1, 1, 2 * _STEPS + 1)[None]))), "PNG")


def _coloured(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    finite = np.isfinite(values)
    sizes = np.abs(values[finite])
    limit = float(np.percentile(sizes, PERCENTILE, method="higher") or sizes.max()) if sizes.size else 0.0
    unit = np.clip(np.round(values / (limit or 1.0) * _STEPS), -_STEPS, _STEPS) / _STEPS
    unit[~finite] = np.nan  # an infinite value is no strong one
    with warnings.catch_warnings():  # the page says itself what is empty or no number
        warnings.simplefilter("ignore")
        return _bytes(colour(unit, limit=1.0))


def _bytes(rgba: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.asarray(np.round(rgba[..., :3] * 255), dtype=np.uint8)


def _indexed(rgb: NDArray[np.uint8]) -> Image.Image:
    """A picture with a palette: a byte for each pixel, and those compress well."""
    colours, index = np.unique(rgb.reshape(-1, 3), axis=0, return_inverse=True)
    image = Image.frombytes("P", (rgb.shape[1], rgb.shape[0]), index.astype(np.uint8).tobytes())
    image.putpalette(colours.tobytes())
    return image


def _fitted(size: tuple[int, int], most: int) -> tuple[int, int]:
    shrink = max(1.0, max(size) / most)
    return max(1, round(size[0] / shrink)), max(1, round(size[1] / shrink))


def _uri(image: Image.Image, kind: str) -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"quality": 82} if kind == "JPEG" else {"optimize": True}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
