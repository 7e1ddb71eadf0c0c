"""A figure laid out by hand, in inches: nothing can overlap, and nothing global is touched.

The only file that imports matplotlib at its top; the others import this one inside their functions.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath
from numpy.typing import NDArray

from ._scale import Scale

#: Point sizes of titles and of the numbers at a colour bar.
TITLE, NUMBERS = 9.0, 7.0
#: Height of a line of text, as a multiple of its point size.
_LEADING = 1.3
#: Dots per inch of a saved picture.
_DPI = 150


class Picture(Figure):
    """A figure without pyplot, which notebooks therefore cannot list, and show only because it can draw itself."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


@dataclass(frozen=True)
class Margins:
    """Inches kept free around the cells of a grid, and between them."""

    left: float = 0.04
    right: float = 0.04
    top: float = 0.04
    bottom: float = 0.04
    gap: float = 0.08


def grid(widths: Sequence[float], heights: Sequence[float], margins: Margins) -> tuple[Picture, list[list[Axes]]]:
    """A figure with ``len(heights)`` rows of ``len(widths)`` axes; sizes in inches, the first row on top."""
    wide = margins.left + sum(widths) + margins.gap * (len(widths) - 1) + margins.right
    high = margins.top + sum(heights) + margins.gap * (len(heights) - 1) + margins.bottom
    figure = Picture(figsize=(wide, high), facecolor="white")
    figure.set_layout_engine("none")  # rcParams may ask for another one
    rows: list[list[Axes]] = []
    top = high - margins.top
    for height in heights:
        left, row = margins.left, []
        for width in widths:
            row.append(figure.add_axes((left / wide, (top - height) / high, width / wide, height / high)))
            left += width + margins.gap
        rows.append(row)
        top -= height + margins.gap
    return figure, rows


def panel(ax: Axes, rgb: NDArray[Any]) -> None:
    """Draws ``[H, W, 3 or 4]`` with its own aspect, row 0 on top, whatever the user's rcParams say."""
    # "antialiased" shows small grids as crisp squares and does not alias photographs that are drawn smaller.
    ax.imshow(rgb, origin="upper", aspect="equal", interpolation="antialiased")
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():  # a map that is white at its edge still shows where it ends
        spine.set(visible=True, linewidth=0.5, color="0.6")


def entitle(ax: Axes, text: str) -> None:
    """A title, already wrapped; names are not read as formulas."""
    ax.set_title(text, fontsize=TITLE, pad=3, parse_math=False, linespacing=1.1)


def heading(figure: Figure, text: str, size: float = TITLE) -> None:
    """A line over all the axes, already wrapped."""
    top = 1 - 0.04 / figure.get_size_inches()[1]
    figure.text(0.5, top, text, ha="center", va="top", fontsize=size, parse_math=False)


def wrap(text: str, width: float, size: float = TITLE) -> str:
    """Breaks ``text`` at spaces, then at underscores and capitals, then anywhere, into lines of ``width`` inches."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for piece in _pieces(paragraph):
            if line and _width(line + piece.rstrip(), size) > width:
                lines.append(line.rstrip())
                line = ""
            while _width(piece.rstrip(), size) > width and len(piece) > 1:
                fits = max(1, next(n for n in range(len(piece), 0, -1) if n == 1 or _width(piece[:n], size) <= width))
                lines.append(piece[:fits])
                piece = piece[fits:]
            line += piece
        lines.append(line.rstrip())
    return "\n".join(lines)


def _pieces(text: str) -> list[str]:
    """Splits ``text`` where a line may end; joined again the pieces are the text."""
    pieces = [""]
    for before, letter in zip(" " + text, text, strict=False):
        if before in " _-/+" or (letter.isupper() and before.islower()):
            pieces.append("")
        pieces[-1] += letter
    return [p for p in pieces if p]


def _width(text: str, size: float) -> float:
    """Inches that ``text`` takes; measured, not counted, as an "M" is three times an "i"."""
    if not text.strip():
        return 0.0
    try:
        # A pair of dollars would be read as a formula; letters that the font lacks would warn here and when drawn.
        plain = "".join(c if c.isascii() and c != "$" else "M" for c in text)
        return float(TextPath((0, 0), plain, size=size).get_extents().width) / 72
    except (ValueError, RuntimeError):  # a font that cannot be measured must not prevent the drawing
        return 0.65 * size * len(text) / 72


def text_height(text: str, size: float = TITLE) -> float:
    """Inches that the lines of ``text`` take."""
    return (text.count("\n") + 1) * size * _LEADING / 72 + 0.05


def _ticks(scale: Scale) -> dict[float, str]:
    """What stands at a colour bar, by height within 0..1."""
    top, bottom = f"{scale.limit:.2g}", f"-{scale.limit:.2g}"
    if scale.limit == 0:
        return {0.0: "0"}
    if scale.signed:
        return {0.0: bottom, 0.5: "0", 1.0: top}
    return {0.0: bottom, 1.0: "0"} if scale.sign == "negative" else {0.0: "0", 1.0: top}


def bar_width(scales: Sequence[Scale]) -> float:
    """Inches that the widest of the colour bars takes, with its numbers."""
    return 0.24 + max(_width(label, NUMBERS) for scale in scales for label in _ticks(scale).values())


def bar(beside: Axes, scale: Scale, colours: NDArray[np.float64]) -> None:
    """Puts an upright colour bar right of ``beside``: ``colours [N, 3]`` from the lowest value to the highest."""
    # An inset is as high as the picture is drawn, and takes no room from axes that belong to somebody else.
    beside.apply_aspect()  # which else happens when drawn: as wide as the picture is by then
    inches = max(beside.get_window_extent().width / root(beside).dpi, 0.1)
    ax = beside.inset_axes((1 + 0.06 / inches, 0, 0.1 / inches, 1))
    # Not matplotlib's own: that computes with the limits and overflows, or finds no range, at the ends of floats.
    ax.imshow(colours[:, None], origin="lower", aspect="auto", extent=(0, 1, 0, 1), interpolation="bilinear")
    ticks = _ticks(scale)
    ax.set_xticks([])
    ax.set_yticks(list(ticks), list(ticks.values()), fontsize=NUMBERS)
    ax.tick_params(axis="y", left=False, labelleft=False, right=True, labelright=True, length=2, pad=1, width=0.5)
    # The outer numbers stay inside the bar's height, so that they do not meet what is above and below.
    for at, label in zip(ticks, ax.get_yticklabels(), strict=True):
        label.set_verticalalignment("bottom" if at == 0 else "top" if at == 1 else "center")
    for spine in ax.spines.values():
        spine.set(visible=True, linewidth=0.5, color="0.6")


def outline(ax: Axes, mask: NDArray[np.bool_]) -> None:
    """Draws the edge of ``mask [H, W]`` along the sides of its pixels: black, with yellow inside, seen on anything."""
    padded = np.pad(mask, 1)
    lines = []
    for row, column in np.argwhere(padded[1:, 1:-1] != padded[:-1, 1:-1]):
        lines.append([(column - 0.5, row - 0.5), (column + 0.5, row - 0.5)])
    for row, column in np.argwhere(padded[1:-1, 1:] != padded[1:-1, :-1]):
        lines.append([(column - 0.5, row - 0.5), (column - 0.5, row + 0.5)])
    for width, shade in ((2.4, "black"), (1.2, "#ffe800")):
        ax.add_collection(LineCollection(lines, colors=shade, linewidths=width, capstyle="round"), autolim=False)


def root(ax: Axes) -> Figure:
    """The figure that ``ax`` is in, also where it lies in a subfigure."""
    figure: Any = ax.figure
    while not isinstance(figure, Figure):
        figure = figure.figure
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Writes the figure; PNG unless the name ends in another format that matplotlib writes."""
    path = Path(path).expanduser()
    known = figure.canvas.get_supported_filetypes()
    kind = path.suffix[1:].lower()
    figure.savefig(path, format=kind if kind in known else "png", dpi=_DPI)
