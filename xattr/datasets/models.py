"""Small trained Vision Transformers that travel with the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

MODELS = ("class-token", "mean-pool", "distilled")
"""Names of the embedded models; they differ in what the classifier reads."""

SEEDS = (0, 1, 2)
"""Seeds each model was trained with; seed 0 for choices, the others to confirm a claim."""

ARCHITECTURE: dict[str, Any] = {
    "img_size": 24,
    "patch_size": 4,
    "in_chans": 1,
    "num_classes": 10,
    "embed_dim": 48,
    "depth": 8,
    "num_heads": 6,
    "mlp_ratio": 4.0,
}
"""What timm's constructor is given; all else is timm's default."""

_SHIPPED = Path(__file__).with_name("weights")
_CHECKOUT = Path(__file__).resolve().parents[2] / "benchmarks" / "weights"


def untrained_model(name: str, seed: int = 0) -> VisionTransformer:
    """An embedded model's architecture with timm's initial weights: the control in which nothing was learnt.

    Args:
        name: one of `MODELS`.
        seed: seed of the initial weights; torch's global generator is left as it was.

    Returns:
        The timm model in ``eval()``, float32, on the CPU; it maps ``[n, 1, 24, 24]`` in [0, 1] to ``[n, 10]``.

    Example:
        >>> from xattr.datasets import untrained_model
        >>> sum(p.numel() for p in untrained_model("mean-pool").parameters())
        229306
    """
    _check(name)
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import VisionTransformer

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any  # torch types every attribute of a module as a tensor or a module
        if name == "distilled":
            model = VisionTransformerDistilled(**ARCHITECTURE)
        elif name == "mean-pool":
            model = VisionTransformer(**ARCHITECTURE, class_token=False, global_pool="avg")
        else:
            model = VisionTransformer(**ARCHITECTURE)
    # Says to whoever asks a timm model for its preprocessing that images in [0, 1] are taken as they are.
    model.pretrained_cfg = {
        "input_size": (1, 24, 24),
        "mean": (0.0,),
        "std": (1.0,),
        "crop_pct": 1.0,
        "num_classes": 10,
    }
    ready: VisionTransformer = model.float().eval()
    return ready


def embedded_model(name: str, seed: int = 0) -> VisionTransformer:
    """A trained timm Vision Transformer for `digit_scenes`.

    24 x 24 images, patches of 4 x 4 (a 6 x 6 token grid), 8 blocks of 48 channels and 6 heads, about 229 thousand
    parameters. ``"class-token"`` classifies from the class token, ``"mean-pool"`` from the mean of the patch tokens
    (there is no class token), ``"distilled"`` averages two heads that read a class and a distillation token. Trained by
    ``benchmarks/train_embedded.py`` on the train digits (CC BY 4.0, see `digit_scenes`); the weights are stored in
    float16 and may be used under the same licence. `model_card` holds what was measured.

    Args:
        name: one of `MODELS`.
        seed: 0 is part of the installed library; 1 and 2 are in its source repository.

    Returns:
        The timm model in ``eval()``, float32, on the CPU; it maps ``[n, 1, 24, 24]`` in [0, 1] to ``[n, 10]``.

    Raises:
        ValueError: there is no such model.
        FileNotFoundError: the weights of this seed live in the repository and this is an installed copy.

    Example:
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> scenes = digit_scenes("report", n=50)
        >>> predicted = embedded_model("class-token")(scenes.images).argmax(dim=1)
        >>> bool((predicted == scenes.labels).float().mean() > 0.8)
        True
    """
    from safetensors.torch import load_file

    path = _find(name, seed, ".safetensors")
    model = untrained_model(name)
    model.load_state_dict({key: value.float() for key, value in load_file(path).items()})
    return model


def model_card(name: str, seed: int = 0) -> dict[str, Any]:
    """What is known of an embedded model: data, licence, command, versions and measured numbers.

    Args:
        name: one of `MODELS`.
        seed: one of `SEEDS`.

    Returns:
        The card, as written right after the training; every number was measured with the weights as stored.

    Raises:
        ValueError: there is no such model.
        FileNotFoundError: the card of this seed lives in the repository and this is an installed copy.

    Example:
        >>> from xattr.datasets import model_card
        >>> model_card("class-token")["accuracy"]["report"] >= 0.9
        True
    """
    card: dict[str, Any] = json.loads(_find(name, seed, ".json").read_text(encoding="utf-8"))
    return card


def _check(name: str) -> None:
    if name not in MODELS:
        raise ValueError(f"unknown embedded model {name!r}; choose one of {', '.join(MODELS)}")


def _find(name: str, seed: int, suffix: str) -> Path:
    _check(name)
    if seed not in SEEDS:
        raise ValueError(f"no embedded model with seed {seed}; trained seeds are {', '.join(map(str, SEEDS))}")
    return shipped_or_checkout(f"{name}-{seed}{suffix}", seed)


def folder_of(seed: int) -> Path:
    """Where the weights of a seed lie: only those of seed 0 ship, to keep the installed library small."""
    return _SHIPPED if seed == 0 else _CHECKOUT


def shipped_or_checkout(file: str, seed: int) -> Path:
    """A file of weights or its card.

    Raises:
        FileNotFoundError: it is not there.
    """
    path = folder_of(seed) / file
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: only seed 0 is installed, the other seeds live in the library's repository under "
            "benchmarks/weights; use seed=0, or work in a checkout (the scripts benchmarks/train_*.py make them)"
        )
    return path
