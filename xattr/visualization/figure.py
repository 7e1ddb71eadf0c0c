"""Figures of one map, or of a row of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ._maps import as_maps, as_pictures
from ._scale import Scale, Sign, remark
from .heat import Backdrop, blend, check_blending, load_canvas, paint, palette
from .image import Layout, smaller

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

    from ._array import ArrayLike, ImageLike


# Inches around and between the pictures of a row. Nearly nothing: a saved map keeps the shape of its picture.
_MARGIN, _GAP = 0.04, 0.08

# Pixels a side, more than any screen or page shows of one picture: a camera's photograph would take minutes.
_LARGEST = 2048


def heatmap(
    heat: ArrayLike | Sequence[ArrayLike],
    image: ImageLike | Sequence[ImageLike] | None = None,
    *,
    sign: Sign = "all",
    alpha: float | Literal["heat"] = "heat",
    limit: float | None = None,
    percentile: float | None = None,
    cmap: str | Colormap | None = None,
    backdrop: Backdrop = "picture",
    mean: float | Sequence[float] | ArrayLike | None = None,
    std: float | Sequence[float] | ArrayLike | None = None,
    layout: Layout | None = None,
    title: str | Sequence[str] | None = None,
    colorbar: bool = False,
    ax: Axes | None = None,
    save: str | Path | None = None,
) -> Figure:
    """Draws a map, alone or over its picture; a batch becomes a row.

    Args:
        heat: ``[H, W]``, ``[1, H, W]``, ``[B, H, W]``, ``[B, 1, H, W]`` or a list of maps; attributions with channels,
            ``[3, H, W]`` or ``[B, C, H, W]``, are summed over them. Three axes are a batch where there are as many
            (and more than one) pictures, else channels if the first is 3: three maps without pictures are handed over
            as ``[3, 1, H, W]``. Of another size than the picture it is resized bilinearly.
        image: one picture as in `to_image`, or ``[B, 3, H, W]``, or a list of pictures.
        sign: ``"all"``, ``"positive"``, ``"negative"`` or ``"absolute"``; see `colour`.
        alpha: the share of the heat over the picture, or ``"heat"``: the stronger, the more; see `overlay`.
            Without a picture it has no effect.
        limit: the magnitude of the strongest colour; by default each map's largest. See `colour`.
        percentile: takes this percentile instead of the largest; see `colour`.
        cmap: a colour map of matplotlib; see `colour`.
        backdrop: the picture as it is, or ``"grey"``; see `overlay`.
        mean: see `to_image`.
        std: see `to_image`.
        layout: see `to_image`.
        title: a heading, or one for each map.
        colorbar: whether to draw the scale beside each map.
        ax: axes to draw into, of whatever figure; a batch becomes one row of pictures in them, without colour bar.
        save: a file to be written, PNG unless its name ends in another format that matplotlib writes.

    Returns:
        The figure, which pyplot does not know: nothing is shown, and nothing piles up. With ``ax``, the figure of that.
        Pictures of more than 2048 pixels a side are drawn smaller by a whole factor; `overlay` never does so.

    Raises:
        ValueError: if shapes, numbers or options do not fit; the message says what was found.
        FileNotFoundError: if the folder of ``save`` does not exist; before anything is drawn.
        ImportError: without matplotlib.

    Example:
        >>> figure = heatmap(np.eye(8), np.zeros((3, 32, 48)), title="diagonal")
        >>> figure.axes[0].get_title()
        'diagonal'
    """
    folder(save)
    check_blending(alpha, backdrop)
    pictures = None
    if image is not None:
        pictures = [smaller(p, _LARGEST) for p in as_pictures(image, mean, std, layout)]
    maps = as_maps(heat, None if pictures is None else len(pictures))
    scales = [Scale.of([m], sign, limit, percentile) for m in maps]
    titles = [title or ""] if title is None or isinstance(title, str) else [str(t) for t in title]
    if not (title is None or isinstance(title, str)) and len(titles) != len(maps):
        raise ValueError(f"found {len(titles)} titles for {len(maps)} map(s): one heading, or one for each")
    if ax is not None and colorbar and len(maps) > 1:
        raise ValueError(f"found colorbar=True for {len(maps)} maps in one ax=: leave out one of them")
    canvas = load_canvas()
    remark([(f"map {i}" if len(maps) > 1 else "the map", m) for i, m in enumerate(maps)], sign)
    if pictures is None:
        drawn = [paint(m, s, cmap)[0][..., :3] for m, s in zip(maps, scales, strict=True)]
    else:
        drawn = [blend(m, p, s, alpha, cmap, backdrop) for m, p, s in zip(maps, pictures, scales, strict=True)]

    figure: Figure
    if ax is not None:
        canvas.panel(ax, drawn[0] if len(drawn) == 1 else _side_by_side(drawn))
        if any(titles):
            canvas.entitle(ax, "   ".join(titles))
        figure, cells = canvas.root(ax), [ax]
    else:
        figure, cells = _row(drawn, titles, canvas.bar_width(scales) if colorbar else 0.0)
        for cell, pixels in zip(cells, drawn, strict=True):
            canvas.panel(cell, pixels)
    for cell, scale in zip(cells, scales, strict=False) if colorbar else []:
        canvas.bar(cell, scale, bar_colours(scale, cmap))
    if save is not None:
        canvas.save_figure(figure, save)
    return figure


def _row(drawn: Sequence[NDArray[np.float32]], titles: Sequence[str], beside: float) -> tuple[Figure, list[Axes]]:
    """A figure with one row of axes as wide as their pictures, with their titles, and ``beside`` inches for bars."""
    canvas = load_canvas()
    # One picture is large enough to be looked at; many share a width that a page or a notebook can hold.
    side = float(np.clip(16 / len(drawn), 1.4, 3.4))
    widths = [max(0.2, side * min(1, p.shape[1] / p.shape[0])) for p in drawn]
    height = max(max(0.2, side * min(1, p.shape[0] / p.shape[1])) for p in drawn)
    across = len(widths) > 1 and len(titles) == 1  # a heading belongs to the row, a list of titles to its cells
    room = [sum(widths) + (_GAP + beside) * (len(widths) - 1)] if across else widths
    texts = [canvas.wrap(text, inches) for text, inches in zip(titles, room, strict=True)]
    top = max(canvas.text_height(text) for text in texts) if any(texts) else _MARGIN
    margins = canvas.Margins(_MARGIN, _MARGIN + beside, top, _MARGIN, _GAP + beside)
    figure, (axes,) = canvas.grid(widths, [height], margins)
    if across:
        canvas.heading(figure, texts[0])
    else:
        for cell, text in zip(axes, texts, strict=True):
            canvas.entitle(cell, text)
    return figure, axes


def _side_by_side(drawn: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """One RGBA array with all the pictures in a row, and nothing (transparent) between them."""
    height = max(p.shape[0] for p in drawn)
    gap = max(1, round(0.04 * max(p.shape[1] for p in drawn)))
    row = np.zeros((height, sum(p.shape[1] + gap for p in drawn) - gap, 4), np.float32)
    left = 0
    for picture in drawn:
        top = (height - picture.shape[0]) // 2
        place = row[top : top + picture.shape[0], left : left + picture.shape[1]]
        place[..., :3], place[..., 3] = picture, 1
        left += picture.shape[1] + gap
    return row


def bar_colours(scale: Scale, cmap: str | Colormap | None) -> NDArray[np.float64]:
    """``[N, 3]``: the colours from the lowest value that the scale shows to the highest."""
    low = -1.0 if scale.signed or scale.sign == "negative" else 0.0
    high = 0.0 if scale.sign == "negative" else 1.0
    return palette(np.linspace(low, high, 129) * (scale.limit > 0), scale, cmap)


def folder(save: str | Path | None) -> None:
    """Raises a ``FileNotFoundError`` that names the folder, if the one to save into does not exist."""
    if save is not None and not (parent := Path(save).expanduser().parent).is_dir():
        raise FileNotFoundError(f"cannot save {Path(save).name!r}: there is no folder {str(parent)!r}; make it first")
