"""A model by name or from a file, with how it wants its images and what its classes are called."""

from .class_names import find_class, short_name
from .model import Loaded, load
from .pretrained import label_names

__all__ = ["Loaded", "find_class", "label_names", "load", "short_name"]
