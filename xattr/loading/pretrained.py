"""Trained models by name: from timm, the Hugging Face hub, torchvision and this package."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from .._network import cached_or_downloaded, hub, one_line, require
from ..trace import Preprocessing, preprocessing
from ..trace.errors import LoadError

if TYPE_CHECKING:
    from PIL.Image import Image

Parts: TypeAlias = tuple[Module, Preprocessing, "tuple[str, ...] | None"]


def from_timm(name: str) -> Parts:
    """A timm model with its trained weights.

    Raises:
        LoadError: no such name, no trained classifier, or no way to get the weights.
    """
    import timm
    from timm.models import get_pretrained_cfg, list_pretrained

    try:
        config: Any = get_pretrained_cfg(name) if timm.is_model(name) else None
    except RuntimeError:  # no such tag
        config = None
    if config is None:
        raise LoadError(f"timm has no model {name!r}. {_close(name, [*timm.list_models(), *list_pretrained()])}")
    if not config.has_weights or not config.num_classes:
        what = "classifier" if config.has_weights else "trained weights"
        raise LoadError(f"timm has no {what} for {name!r}. {_close(name, list_pretrained())}")
    overlay: dict[str, Any] = {}
    if config.hf_hub_id and (path := _in_hub_cache(config)):
        # custom_load tells how the address in `url` is read, which these weights do not come from.
        overlay = {"file": path, "custom_load": config.custom_load == "hf"}
    elif config.hf_hub_id:
        require(hub(), f"timm/{name}")
    elif config.url and not _in_torch_cache(config.url):
        require(config.url, f"timm/{name}")
    try:
        model = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
    except (OSError, RuntimeError) as error:
        raise LoadError(f"timm/{name} could not be loaded: {one_line(error)}") from error
    return model, preprocessing(model), label_names(model)


def from_hub(name: str) -> Parts:
    """An image classifier from the Hugging Face hub, or from a local folder.

    Raises:
        LoadError: no such folder or name, no trained classifier, no way to get the weights, or no transformers.
    """
    try:
        from transformers import AutoImageProcessor, AutoModelForImageClassification
    except ImportError as error:
        raise LoadError(f"hf/{name} needs transformers; pip install 'captum-xattr[transformers]'.") from error
    if not Path(name).is_dir() and not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
        raise LoadError(f"hf/{name}: {name!r} is neither an existing folder nor a name on the hub such as owner/model.")
    processor = cached_or_downloaded(
        lambda local: AutoImageProcessor.from_pretrained(name, local_files_only=local), name, f"hf/{name}"
    )
    model, report = cached_or_downloaded(
        lambda local: AutoModelForImageClassification.from_pretrained(
            name, local_files_only=local, output_loading_info=True
        ),
        name,
        f"hf/{name}",
    )
    if missing := sorted(report.get("missing_keys", ())):
        raise LoadError(
            f"hf/{name} has no trained weights for {', '.join(missing[:4])}, so its scores would be random; expected a "
            f"model that was trained to classify images."
        )
    # Some weights are stored in half precision, which the CPU computes slowly and gradients suffer from.
    return model.float(), preprocessing(processor), label_names(model)


def from_torchvision(name: str) -> Parts:
    """A classifier of torchvision with its default weights.

    Raises:
        LoadError: no such name, no way to get the weights, or no torchvision.
    """
    try:
        from torchvision import models
    except ImportError as error:
        raise LoadError(f"torchvision/{name} needs torchvision; pip install torchvision.") from error
    known = models.list_models(module=models)
    if name.lower() not in known:
        raise LoadError(f"torchvision has no classifier {name!r}. {_close(name, known)}")
    weights: Any = models.get_model_weights(name).DEFAULT  # type: ignore[attr-defined]
    if not _in_torch_cache(weights.url):
        require(weights.url, f"torchvision/{name}")
    try:
        model = models.get_model(name, weights=weights)
    except (OSError, RuntimeError) as error:
        raise LoadError(f"torchvision/{name} could not be loaded: {one_line(error)}") from error
    return model, preprocessing(weights), tuple(weights.meta["categories"])


def from_datasets(name: str) -> Parts:
    """A small trained model of this package: `class-token`, `mean-pool`, `distilled` or `cifar`, and `:SEED` after it.

    Raises:
        LoadError: no such name, or the weights of that seed are not installed.
    """
    from ..datasets import MODELS, cifar_model, embedded_model

    kind, _, seed = name.partition(":")
    if kind not in (*MODELS, "cifar") or not (seed or "0").isdecimal():
        raise LoadError(f"found embedded/{name}; expected one of {', '.join((*MODELS, 'cifar'))}, with :SEED or not.")
    try:
        if kind == "cifar":
            model: Module = cifar_model(int(seed or 0))
            return model, preprocessing(model), label_names(model)
        return embedded_model(kind, int(seed or 0)), Preprocessing(_digits, (0.0,), (1.0,), (24, 24)), None
    except (ValueError, FileNotFoundError) as error:
        raise LoadError(f"embedded/{name}: {one_line(error)}") from error


def _digits(image: Image) -> Tensor:
    """A grey picture as the models of digit scenes take it."""
    return torch.from_numpy(np.array(image.resize((24, 24)), dtype=np.float32) / 255)[None]


def label_names(model: Module) -> tuple[str, ...] | None:
    """The class names that a timm or Hugging Face model carries or implies, synonyms separated by commas."""
    names = getattr(getattr(model, "config", None), "id2label", None)
    if isinstance(names, Mapping) and names:
        ordered = tuple(str(names[i]) for i in sorted(names))
        return None if all(re.fullmatch(r"LABEL_\d+", label) for label in ordered) else ordered
    config = getattr(model, "pretrained_cfg", None) or {}
    if not config or config.get("num_classes") != getattr(model, "num_classes", None):
        return None
    if config.get("label_names"):
        described = config.get("label_descriptions") or {}
        return tuple(str(described.get(label, label)) for label in config["label_names"])
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset(model)
    return tuple(ImageNetInfo(subset).label_descriptions()) if subset else None


def _in_hub_cache(config: Any) -> str | None:
    from huggingface_hub import try_to_load_from_cache

    repo, _, revision = config.hf_hub_id.partition("@")
    names = ["model.safetensors", "pytorch_model.bin"]
    if config.hf_hub_filename:
        names = [config.hf_hub_filename]
        if names[0].startswith("open_clip"):
            names.insert(0, "open_clip_model.safetensors")
    found = (try_to_load_from_cache(repo, name, revision=revision or None) for name in names)
    return next((path for path in found if isinstance(path, str)), None)


def _in_torch_cache(url: Any) -> bool:
    from torch.hub import get_dir

    return (Path(get_dir()) / "checkpoints" / str(url).rsplit("/", 1)[-1]).exists()


def _close(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name.lower(), list(known), n=5, cutoff=0.5)
    return f"Close are: {', '.join(close)}." if close else "No name is close to it."
