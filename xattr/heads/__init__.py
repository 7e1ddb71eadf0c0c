"""Output heads that attend over all layers of a backbone, and the heads they are compared with."""

from .cache import cached_features
from .checks import Conditioning, conditioning, effective_weights, scorer_randomisation, stability
from .diagnosis import error_detection
from .explanation import HeadExplanation
from .layers import FeatureLayer, find_layers
from .mixing import LayaHead, MeanHead, MixingHead, ScalarMixHead
from .model import HEADS, LayaModel
from .plain import ConcatHead, LastLayerHead, LastLayerMLPHead, ProbeHead
from .profiles import Profile, profile
from .training import Fitted, accuracy, fit
from .truncation import EarlyExitModel, TruncatedModel, Truncation, exits, truncations

__all__ = [
    "HEADS",
    "ConcatHead",
    "Conditioning",
    "EarlyExitModel",
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
    "TruncatedModel",
    "Truncation",
    "accuracy",
    "cached_features",
    "conditioning",
    "effective_weights",
    "error_detection",
    "exits",
    "find_layers",
    "fit",
    "profile",
    "scorer_randomisation",
    "stability",
    "truncations",
]
