"""A report of a benchmark: one HTML file that needs no network.

`render` turns a `Report`, which is data and nothing else, into the text of the page.
"""

from .data import Cell, Column, Curves, Entry, Layers, Report, Section, Tile
from .page import render

__all__ = ["Cell", "Column", "Curves", "Entry", "Layers", "Report", "Section", "Tile", "render"]
