"""Output heads that attend over all layers of a backbone, and the heads they are compared with."""

from .cache import cached_features
from .explanation import HeadExplanation
from .layers import FeatureLayer, find_layers
from .mixing import LayaHead, MeanHead, MixingHead, ScalarMixHead
from .model import HEADS, LayaModel
from .plain import ConcatHead, LastLayerHead, LastLayerMLPHead, ProbeHead
from .profiles import Profile, profile
from .training import Fitted, accuracy, fit

__all__ = [
    "HEADS",
    "ConcatHead",
    "FeatureLayer",
    "Fitted",
    "HeadExplanation",
    "LastLayerHead",
    "LastLayerMLPHead",
    "LayaHead",
    "LayaModel",
    "MeanHead",
    "MixingHead",
    "ProbeHead",
    "Profile",
    "ScalarMixHead",
    "accuracy",
    "cached_features",
    "find_layers",
    "fit",
    "profile",
]
