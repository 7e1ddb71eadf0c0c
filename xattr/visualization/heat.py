"""Colouring a heatmap, and laying it over its picture. Neither needs a figure; default colours need no matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ._array import resize
from ._maps import as_maps
from ._scale import Scale, Sign, remark
from .image import Layout, to_image

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

    from ._array import ArrayLike, ImageLike

#: The colour of zero in every default palette.
NEUTRAL = (0.97, 0.97, 0.97)
#: The colour of NaN and infinite entries: in no default palette, and no grey, which a picture may be.
MISSING = (0.25, 0.80, 0.42)

# From zero outwards, evenly spaced. Red is for, blue against, purple magnitude only: a colour means the same in every
# map, whether the map has one sign or two. The ends stay light enough to be told from a dark picture.
_FOR = (NEUTRAL, (0.99, 0.80, 0.62), (0.98, 0.51, 0.29), (0.88, 0.18, 0.15), (0.65, 0.00, 0.13))
_AGAINST = (NEUTRAL, (0.70, 0.85, 0.96), (0.38, 0.67, 0.90), (0.15, 0.43, 0.78), (0.06, 0.20, 0.58))
_SIZE = (NEUTRAL, (0.84, 0.78, 0.93), (0.67, 0.51, 0.85), (0.49, 0.24, 0.70), (0.29, 0.04, 0.48))

# matplotlib's diverging maps have their neutral colour in the middle, so zero is there even if nothing is negative.
_DIVERGING = frozenset(
    (
        "PiYG",
        "PRGn",
        "BrBG",
        "PuOr",
        "RdGy",
        "RdBu",
        "RdYlBu",
        "RdYlGn",
        "Spectral",
        "coolwarm",
        "bwr",
        "seismic",
        "berlin",
        "managua",
        "vanimo",
    )
)

# In the "heat" mode: how much of the picture the strongest colour hides.
_STRONGEST = 0.85

# The greys between which a muted picture lies: with neither black nor white in it, both a faint and a full colour
# differ from what is beneath.
_DARKEST, _LIGHTEST = 0.2, 0.8

Backdrop = Literal["picture", "grey"]


def colour(
    heat: ArrayLike,
    *,
    sign: Sign = "all",
    limit: float | None = None,
    percentile: float | None = None,
    cmap: str | Colormap | None = None,
) -> NDArray[np.float32]:
    """Colours one map; zero is always the neutral colour.

    Args:
        heat: ``[H, W]``, ``[1, H, W]`` or ``[1, 1, H, W]``; attributions with channels ``[C, H, W]`` are summed over
            them.
        sign: what is shown: ``"all"``, ``"positive"`` or ``"negative"`` values only, or ``"absolute"`` ones.
        limit: the magnitude that gets the strongest colour, to compare maps; by default the largest one shown.
        percentile: takes this percentile of the shown magnitudes instead of the largest, so that a few outliers do not
            make all the rest pale; larger values get the strongest colour.
        cmap: a colour map of matplotlib. If both signs are shown, or if it is one of matplotlib's diverging maps, zero
            lies at its middle, else at its start. By default positive values are red, negative ones blue, absolute
            ones purple, and zero is nearly white.

    Returns:
        RGBA ``[H, W, 4]``, float32 within 0..1, opaque. A map with nothing of this sign is neutral all over, with one
        ``UserWarning``; NaN and infinite entries are green, with one warning that counts them, and do not affect the
        scale. A map and any positive multiple of it look the same.

    Raises:
        ValueError: if ``heat`` is not one map, or ``sign``, ``limit`` or ``percentile`` are out of range.

    Example:
        >>> colour(np.array([[-2.0, 0.0, 1.0]]))[0, 1].round(2).tolist()
        [0.9700000286102295, 0.9700000286102295, 0.9700000286102295, 1.0]
    """
    (values,) = as_maps(heat, 1)
    scale = Scale.of([values], sign, limit, percentile)
    remark([("the map", values)], sign)
    return paint(values, scale, cmap)[0]


def overlay(
    heat: ArrayLike,
    image: ImageLike,
    *,
    alpha: float | Literal["heat"] = "heat",
    sign: Sign = "all",
    limit: float | None = None,
    percentile: float | None = None,
    cmap: str | Colormap | None = None,
    backdrop: Backdrop = "picture",
    mean: float | Sequence[float] | ArrayLike | None = None,
    std: float | Sequence[float] | ArrayLike | None = None,
    layout: Layout | None = None,
) -> NDArray[np.float32]:
    """Lays one map over its picture: an RGB array, no figure.

    Args:
        heat: one map, as in `colour`. Of another size than the picture it is resized bilinearly (corners not
            aligned) before it is coloured; the scale is that of the values as given.
        image: one picture, as in `to_image`.
        alpha: the share of the heat's colour: 0 gives the picture's pixels, 1 the heat's colours. ``"heat"`` lets it
            grow with the magnitude ``u`` relative to the limit, as ``0.85 * u * (2 - u)``, so that quiet regions show
            the picture.
        sign: see `colour`.
        limit: see `colour`.
        percentile: see `colour`.
        cmap: see `colour`.
        backdrop: ``"picture"`` is the picture as it is, ``"grey"`` a muted grey one, on which no colour of the picture
            can be taken for one of the heat.
        mean: see `to_image`.
        std: see `to_image`.
        layout: see `to_image`.

    Returns:
        ``[H, W, 3]`` of the picture's size, float32 within 0..1.

    Raises:
        ValueError: as `colour` and `to_image`, or if ``alpha`` is neither ``"heat"`` nor within 0..1.

    Example:
        >>> overlay(np.ones((4, 4)), np.zeros((3, 32, 48)), alpha=0).max().item()
        0.0
    """
    (values,) = as_maps(heat, 1)
    scale = Scale.of([values], sign, limit, percentile)
    picture = to_image(image, mean, std, layout=layout)
    check_blending(alpha, backdrop)
    remark([("the map", values)], sign)
    return blend(values, picture, scale, alpha, cmap, backdrop)


def check_blending(alpha: object, backdrop: object) -> None:
    """Raises a ``ValueError`` unless ``alpha`` is ``"heat"`` or a number within 0..1, and ``backdrop`` is known."""
    if backdrop not in ("picture", "grey"):
        raise ValueError(f"found backdrop {backdrop!r}: expected 'picture' or 'grey'")
    number = isinstance(alpha, (int, float, np.number)) and 0 <= float(alpha) <= 1
    if not number and not (isinstance(alpha, str) and alpha == "heat"):
        raise ValueError(f"found alpha {alpha!r}: expected a number within 0..1, or 'heat'")


def blend(
    values: NDArray[np.float64],
    picture: NDArray[np.float32],
    scale: Scale,
    alpha: float | Literal["heat"],
    cmap: str | Colormap | None,
    backdrop: Backdrop,
) -> NDArray[np.float32]:
    """``values [h, w]`` over ``picture [H, W, 3]``, without a word; see `overlay`."""
    colours, strength = paint(values, scale, cmap, picture.shape[:2])
    # Not linear: a small share of a colour that is paler, too, leaves half of the largest value nearly unseen. No root
    # either: its slope at zero would draw noise, and a seam along each change of sign.
    growth = _STRONGEST * strength * (2 - strength)
    share = growth[..., None] if isinstance(alpha, str) else np.float32(alpha)
    if backdrop == "grey":
        grey = picture @ np.array([0.299, 0.587, 0.114], np.float32)
        picture = (_DARKEST + (_LIGHTEST - _DARKEST) * grey[..., None]).repeat(3, -1)
    mixed: NDArray[np.float32] = picture * (1 - share) + colours[..., :3] * share
    return np.clip(mixed, 0, 1)


def paint(
    values: NDArray[np.float64], scale: Scale, cmap: str | Colormap | None, size: tuple[int, ...] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The colours ``[H, W, 4]`` of ``values [h, w]`` at ``size``, and their strength ``[H, W]``, without a word."""
    height, width = values.shape if size is None else size
    finite = np.isfinite(values)
    known = resize(np.where(finite, values, 0.0), (height, width))
    if not finite.all():
        # Each new entry is the mean of the finite ones near it, and missing where most of its surroundings are.
        weight = resize(finite.astype(np.float64), (height, width))
        with np.errstate(over="ignore"):
            known = known / np.maximum(weight, 0.5)
        finite = weight >= 0.5
    else:
        finite = np.ones((height, width), bool)
    unit = scale.unit(known)
    rgb = palette(unit, scale, cmap)
    rgb[~finite] = MISSING
    rgba = np.concatenate([rgb, np.ones((height, width, 1))], 2).astype(np.float32)
    return rgba, np.where(finite, np.abs(unit), 1.0).astype(np.float32)


def palette(unit: NDArray[np.float64], scale: Scale, cmap: str | Colormap | None) -> NDArray[np.float64]:
    """RGB ``[..., 3]`` for numbers within -1..1."""
    if cmap is None:
        outward: Any = _SIZE if scale.sign == "absolute" else _FOR
        both = np.array([*reversed(_AGAINST[1:]), *outward])
        at = np.linspace(-1, 1, len(both))
        return np.stack([np.interp(unit, at, both[:, channel]) for channel in range(3)], -1)
    load_canvas()  # for its message
    import matplotlib

    table = matplotlib.colormaps[cmap] if isinstance(cmap, str) else cmap
    middle = scale.signed or table.name.removesuffix("_r") in _DIVERGING
    # An odd number of colours, because only then one of them is the middle.
    steps = 257
    where = (unit + 1) / 2 if middle else np.abs(unit)
    colours = np.asarray(table.resampled(steps)(np.arange(steps)))[:, :3]
    return np.asarray(colours[np.rint(where * (steps - 1)).astype(int)], dtype=np.float64)


def load_canvas() -> ModuleType:
    """The module that draws; it imports matplotlib, which nothing else here needs.

    Raises:
        ImportError: in one line, without matplotlib.
    """
    try:
        from . import _canvas
    except ImportError as error:
        raise ImportError(f"drawing needs matplotlib (pip install matplotlib): {error}") from error
    return _canvas
