"""Small data with exact truth and small trained models: enough to try and to test every method offline."""

from xattr.datasets.models import ARCHITECTURE, MODELS, SEEDS, embedded_model, model_card, untrained_model
from xattr.datasets.scenes import Pairs, Scenes, Split, cell_masks, digit_scenes, pair_scenes

__all__ = [
    "ARCHITECTURE",
    "MODELS",
    "SEEDS",
    "Pairs",
    "Scenes",
    "Split",
    "cell_masks",
    "digit_scenes",
    "embedded_model",
    "model_card",
    "pair_scenes",
    "untrained_model",
]
