"""Writing a picture into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_picture(figure: Figure, folder: str | Path, name: str) -> Path:
    """Write a figure as `<name>.png` into an existing folder.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"there is no folder {str(folder)!r} to write the picture into; create it first.")
    path = Path(folder) / f"{name}.png"
    figure.savefig(path, dpi=150)
    return path
