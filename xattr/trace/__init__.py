"""One observed pass of an unmodified model: its attention maps, residual sums and gradients, with nothing changed."""

from .errors import (
    InputError,
    LoadError,
    MethodError,
    OutputError,
    PreprocessingError,
    TargetError,
    UnseenError,
    UnsupportedModelError,
    XattrError,
)
from .inputs import Inputs
from .layers import Layer, LayerCut, LayerFinder, LayerKept
from .observe import Pass, attention_maps, observe
from .outputs import Target
from .preprocessing import Preprocessing, preprocessing
from .record import Activation, Attention, Block, Layout, Record, gradients
from .trace import Trace

__all__ = [
    "Activation",
    "Attention",
    "Block",
    "InputError",
    "Inputs",
    "Layer",
    "LayerCut",
    "LayerFinder",
    "LayerKept",
    "Layout",
    "LoadError",
    "MethodError",
    "OutputError",
    "Pass",
    "Preprocessing",
    "PreprocessingError",
    "Record",
    "Target",
    "TargetError",
    "Trace",
    "UnseenError",
    "UnsupportedModelError",
    "XattrError",
    "attention_maps",
    "gradients",
    "observe",
    "preprocessing",
]
