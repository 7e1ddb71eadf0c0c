"""A depth profile as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..heads.profiles import Profile


def depth_profile(
    profile: Profile,
    *,
    layers: Sequence[str] | None = None,
    few: int = 20,
    title: str | None = None,
    save: str | Path | None = None,
) -> Figure:
    """Mean layer attribution of all images and of each class, as numbers on colours.

    Args:
        profile: what `xattr.heads.profile` returned.
        layers: names of the layers; `None` for their numbers from 1.
        few: rows with fewer images than this are grey.
        title: of the picture.
        save: file to write the picture to.

    Returns:
        The figure, which pyplot does not know. A cell holds the mean and the half width of its 95 % interval, or a dash
        where there is no image.

    Example:
        >>> import torch
        >>> from xattr.heads import profile
        >>> from xattr.visualization import depth_profile
        >>> alpha, labels = torch.rand(50, 3).softmax(1), torch.arange(50) % 2
        >>> depth_profile(profile(alpha, labels, labels)).axes[0].get_ylabel()
        'true class (images)'
    """
    from ._canvas import TITLE, Picture, save_figure, wrap

    mean, half = profile.mean.numpy(), profile.half_width.numpy()
    rows, depth = mean.shape
    known = mean[np.isfinite(mean)]
    limit = float(np.abs(known).max()) if len(known) else 1.0
    low, colours = (-limit, "RdBu_r") if len(known) and known.min() < 0 else (0.0, "Reds")
    names = [str(i + 1) for i in range(depth)] if layers is None else list(layers)
    width = 2.4 + 0.62 * depth
    figure = Picture(figsize=(width, 1.3 + 0.36 * rows), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(mean, cmap=colours, vmin=low, vmax=limit or 1.0, aspect="auto")
    for i, count in enumerate(profile.counts.tolist()):
        grey = count < few
        if grey:
            axes.axhspan(i - 0.5, i + 0.5, color="0.88")
        for j in range(depth):
            text = "-" if np.isnan(mean[i, j]) else f"{mean[i, j]:.2f}"
            text += "" if np.isnan(half[i, j]) else f"\n\N{PLUS-MINUS SIGN}{half[i, j]:.2f}"
            dark = not grey and abs(mean[i, j]) > 0.6 * limit
            axes.text(j, i, text, ha="center", va="center", fontsize=6, color="white" if dark else "black")
    axes.axhline(0.5, color="black", linewidth=1)
    axes.set_xticks(range(depth), names, rotation=90 if max(map(len, names)) > 6 else 0)
    axes.set_yticks(
        range(rows), [f"{name} ({n})" for name, n in zip(profile.names, profile.counts.tolist(), strict=True)]
    )
    axes.set_xlabel("layer")
    axes.set_ylabel("true class (images)" if profile.by == "label" else "predicted class (images)")
    heading = title or f"{profile.which} images; grey: fewer than {few}"
    figure.suptitle(wrap(heading, 0.85 * width), fontsize=TITLE, parse_math=False)
    figure.colorbar(image, ax=axes)
    if save is not None:
        save_figure(figure, save)
    return figure
