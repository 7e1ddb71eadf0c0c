"""Heatmaps, overlays and comparison grids.

Nothing here is shown, registered or configured globally: figures are returned, ``rcParams`` and the backend stay as
they are, and matplotlib is imported when a figure is drawn.
"""

from .depth import depth_profile
from .figure import heatmap
from .grid import comparison
from .heat import colour, overlay
from .image import to_image

__all__ = ["colour", "comparison", "depth_profile", "heatmap", "overlay", "to_image"]
