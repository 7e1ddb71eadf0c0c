"""Every method side by side, offline: on digit scenes, and with two extras on photographs."""

from .photographs import PHOTOGRAPHS, Photographs
from .scenes import MODELS, ROWS, Demo, Row, measure, run

__all__ = ["MODELS", "PHOTOGRAPHS", "ROWS", "Demo", "Photographs", "Row", "measure", "run"]
