"""Small data with exact truth and small trained models: enough to try and to test every method offline."""

from xattr.datasets.cifar import CIFAR_CLASSES, cifar_model, cifar_photographs
from xattr.datasets.models import ARCHITECTURE, MODELS, SEEDS, embedded_model, model_card, untrained_model
from xattr.datasets.scenes import Pairs, Scenes, Split, cell_masks, digit_scenes, pair_scenes

__all__ = [
    "ARCHITECTURE",
    "CIFAR_CLASSES",
    "MODELS",
    "SEEDS",
    "Pairs",
    "Scenes",
    "Split",
    "cell_masks",
    "cifar_model",
    "cifar_photographs",
    "digit_scenes",
    "embedded_model",
    "model_card",
    "pair_scenes",
    "untrained_model",
]
