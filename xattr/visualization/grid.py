"""Methods side by side: one row per picture, one column per method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ._array import as_numpy, nearest
from ._maps import as_maps, as_pictures
from ._scale import Scale, Sign, remark
from .figure import folder
from .heat import Backdrop, blend, check_blending, load_canvas
from .image import Layout, smaller

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

    from ._array import ArrayLike, ImageLike

# A cell is some 200 dots wide when saved; of larger pictures a hundred blended copies would fill the memory.
_LARGEST = 640


def comparison(
    images: ImageLike | Sequence[ImageLike],
    maps: Mapping[str, ArrayLike | Sequence[ArrayLike]],
    *,
    scale: Literal["own", "shared"] = "own",
    masks: ArrayLike | Sequence[ArrayLike | None] | None = None,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    sign: Sign = "all",
    alpha: float | Literal["heat"] = "heat",
    percentile: float | None = None,
    cmap: str | Colormap | None = None,
    backdrop: Backdrop = "grey",
    mean: float | Sequence[float] | ArrayLike | None = None,
    std: float | Sequence[float] | ArrayLike | None = None,
    layout: Layout | None = None,
    save: str | Path | None = None,
) -> Figure:
    """Draws a grid: the pictures in the first column, then the maps of one method in each column.

    Args:
        images: ``[B, 3, H, W]``, ``[B, 1, H, W]``, a list of pictures (sizes may differ), or one picture; see
            `to_image`.
        maps: for each method's name, which becomes the column's title, its maps for all the pictures: ``[B, 1, H, W]``,
            ``[B, H, W]``, ``[B, C, H, W]`` (summed over channels) or a list. See `heatmap`.
        scale: ``"own"`` gives each map's largest magnitude the strongest colour, to compare where methods look;
            ``"shared"`` has one scale for each row, across methods, to compare how much they see.
        masks: ``[B, 1, H, W]``, ``[B, H, W]`` or a list in which ``None`` leaves one out: the outline of what is not 0
            is drawn on the picture. Of another size than the picture they are resized to the nearest entry.
        labels: a text for each row, such as the class that is explained.
        title: a heading.
        sign: see `colour`.
        alpha: see `overlay`; 1 shows the maps without the picture.
        percentile: see `colour`; with a shared scale it is taken over the row.
        cmap: see `colour`.
        backdrop: what is under the maps: a muted grey picture, as the first column shows it in colour, or the
            ``"picture"`` as it is; see `overlay`.
        mean: see `to_image`.
        std: see `to_image`.
        layout: see `to_image`.
        save: a file to be written, PNG unless its name ends in another format that matplotlib writes.

    Returns:
        The figure, which pyplot does not know. Its axes come row by row, the picture first. Pictures of more than 640
        pixels a side are drawn smaller by a whole factor.

    Raises:
        ValueError: if there is no method, if a method's maps, the masks or the labels are not one for each picture
            (the message names the method), or if an option is unknown.
        FileNotFoundError: if the folder of ``save`` does not exist.
        ImportError: without matplotlib.

    Example:
        >>> figure = comparison(np.zeros((2, 1, 24, 24)), {"ours": np.ones((2, 24, 24)), "theirs": np.ones((2, 6, 6))})
        >>> [ax.get_title() for ax in figure.axes[:3]]
        ['image', 'ours', 'theirs']
    """
    folder(save)
    check_blending(alpha, backdrop)
    if scale not in ("own", "shared"):
        raise ValueError(f"found scale {scale!r}: expected 'own' or 'shared'")
    if not isinstance(maps, Mapping) or not maps:
        raise ValueError("found no maps: hand over {name: maps} with at least one method")
    pictures = [smaller(p, _LARGEST) for p in as_pictures(images, mean, std, layout)]
    count = len(pictures)
    columns: dict[str, list[NDArray[np.float64]]] = {}
    for name, heat in maps.items():
        try:
            columns[str(name)] = as_maps(heat, count)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the maps of {name!r}: {error}") from error
    outlines = _as_masks(masks, pictures)
    if labels is not None and len(labels) != count:
        raise ValueError(f"found {len(labels)} labels for {count} picture(s): there must be one for each row")
    canvas = load_canvas()
    names = [f"{name!r} row {i + 1}" if count > 1 else repr(name) for name in columns for i in range(count)]
    remark(zip(names, (m for column in columns.values() for m in column), strict=True), sign)

    figure, rows = _grid(pictures, list(columns), labels, title)
    for i, (row, picture) in enumerate(zip(rows, pictures, strict=True)):
        canvas.panel(row[0], picture)
        if (mask := outlines[i]) is not None:
            canvas.outline(row[0], mask)
        line = [column[i] for column in columns.values()]
        shared = Scale.of(line, sign, None, percentile)
        for cell, values in zip(row[1:], line, strict=True):
            its = shared if scale == "shared" else Scale.of([values], sign, None, percentile)
            canvas.panel(cell, blend(values, picture, its, alpha, cmap, backdrop))
    if save is not None:
        canvas.save_figure(figure, save)
    return figure


def _grid(
    pictures: Sequence[NDArray[np.float32]], names: Sequence[str], labels: Sequence[str] | None, title: str | None
) -> tuple[Figure, list[list[Any]]]:
    """The figure with all its texts, and its axes row by row."""
    canvas = load_canvas()
    # Three methods fill a page's width with large pictures, fourteen get cells that still show a 24 x 24 grid.
    width = float(np.clip(18 / (len(names) + 1), 1.25, 2.4))
    heights = [width * float(np.clip(p.shape[0] / p.shape[1], 0.4, 2.0)) for p in pictures]
    titles = [canvas.wrap(name, width) for name in ("image", *names)]
    head = max(canvas.text_height(t) for t in titles)
    beside = [canvas.wrap(t, h) for t, h in zip(labels, heights, strict=True)] if labels else []
    left = max((canvas.text_height(t) for t in beside), default=0.0) + 0.06
    total = left + (width + 0.06) * (len(names) + 1)
    heading = canvas.wrap(title, total - 0.2, canvas.TITLE + 2) if title else ""
    above = canvas.text_height(heading, canvas.TITLE + 2) + 0.05 if heading else 0.0
    margins = canvas.Margins(left=left, right=0.06, top=head + above, bottom=0.06, gap=0.06)
    figure, rows = canvas.grid([width] * (len(names) + 1), heights, margins)
    for cell, text in zip(rows[0], titles, strict=True):
        canvas.entitle(cell, text)
    for row, text in zip(rows, beside, strict=False):
        row[0].set_ylabel(text, fontsize=canvas.TITLE, labelpad=3, parse_math=False, linespacing=1.1)
    if heading:
        canvas.heading(figure, heading, canvas.TITLE + 2)
    return figure, rows


def _as_masks(
    masks: ArrayLike | Sequence[ArrayLike | None] | None, pictures: Sequence[NDArray[np.float32]]
) -> list[NDArray[np.bool_] | None]:
    """One boolean mask of the picture's size, or nothing, for each picture."""
    if masks is None:
        return [None] * len(pictures)
    several: list[Any] = list(masks) if isinstance(masks, (list, tuple)) else []
    if not several:
        try:
            several = list(as_maps(as_numpy(masks) != 0, len(pictures)))
        except ValueError as error:
            raise ValueError(f"the masks: {error}") from error
    if len(several) != len(pictures):
        raise ValueError(f"found {len(several)} masks for {len(pictures)} picture(s): one for each, or None")
    fitted: list[NDArray[np.bool_] | None] = []
    for mask, picture in zip(several, pictures, strict=True):
        inside = None if mask is None else as_maps(as_numpy(mask) != 0, 1)[0] != 0
        fitted.append(None if inside is None else nearest(inside, picture.shape[:2]))
    return fitted
