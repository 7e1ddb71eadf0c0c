"""One observed pass of an unmodified model: its attention maps, residual sums and gradients, with nothing changed."""

from .errors import InputError, OutputError, TargetError, UnseenError, UnsupportedModelError, XattrError
from .inputs import Inputs
from .observe import Pass, attention_maps, observe
from .outputs import Target
from .record import Activation, Attention, Block, Layout, Record, gradients
from .trace import Trace

__all__ = [
    "Activation",
    "Attention",
    "Block",
    "InputError",
    "Inputs",
    "Layout",
    "OutputError",
    "Pass",
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
]
