"""How a model wants its images: from a photograph to its input, and back to what can be shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from .errors import InputError, PreprocessingError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Preprocessing", "preprocessing"]


@dataclass(frozen=True)
class Preprocessing:
    """From a photograph to a model's input.

    Attributes:
        transform: takes a PIL image in `RGB` (or `L`, for models of one channel), returns `[3, H, W]` (or `[1, H, W]`).
        mean: what it subtracts from each channel in 0..1; as many numbers as channels, one or three.
        std: what it then divides by.
        size: height and width of its result; of a square photograph, where it keeps the shape.
        order: order of the channels in the result.

    Example:
        >>> import torch
        >>> from PIL import Image
        >>> from xattr.trace import Preprocessing
        >>> black = lambda image: torch.full((3, 8, 8), -1.0)
        >>> p = Preprocessing(black, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), size=(8, 8))
        >>> x = p(Image.new("RGBA", (20, 10)))
        >>> x.shape, float(p.inverse(x).max())
        (torch.Size([1, 3, 8, 8]), 0.0)
    """

    transform: Callable[[Image], Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int]
    order: Literal["RGB", "BGR"] = "RGB"

    def __post_init__(self) -> None:
        mean, std = tuple(map(float, self.mean)), tuple(map(float, self.std))
        if len(mean) not in (1, 3) or len(mean) != len(std) or 0 in std:
            raise PreprocessingError(
                f"found mean {mean} and std {std}; expected one number each for a model of one channel, or three, and "
                f"no 0 in std."
            )
        if not isinstance(self.size, (tuple, list)) or len(self.size) != 2:
            raise PreprocessingError(f"found size={self.size!r}; expected height and width, such as (224, 224).")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "std", std)
        object.__setattr__(self, "size", (int(self.size[0]), int(self.size[1])))

    def __call__(self, image: Image) -> Tensor:
        """The input of the model for one photograph, `[1, C, H, W]`.

        The photograph is turned upright as its EXIF data say. Transparency is dropped, as the libraries do.

        Args:
            image: a PIL image in any mode.

        Raises:
            InputError: no PIL image, a mode that has no colours, or a transform that does not return `[C, H, W]`.
        """
        result = self.transform(_upright(image, "L" if len(self.mean) == 1 else "RGB"))
        if not isinstance(result, Tensor) or result.ndim != 3 or len(result) != len(self.mean):
            found = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise InputError(f"the transform returned {found}; expected a tensor [{len(self.mean)}, H, W].")
        return result[None]

    def inverse(self, x: Tensor) -> Tensor:
        """What the model is shown, as pictures in 0..1: `[..., C, H, W]` of the same shape."""
        x = x.detach().to(torch.promote_types(x.dtype, torch.float32))
        mean, std = (x.new_tensor(part)[:, None, None] for part in (self.mean, self.std))
        result = (x * std + mean).clamp(0, 1)
        return result.flip(-3) if self.order == "BGR" else result


def preprocessing(model: Any) -> Preprocessing:
    """Finds out how a model wants its images.

    Args:
        model: a timm model; a Hugging Face model that was loaded by name, or an image processor; the `transforms()` of
            torchvision's weights, or the weights. A `Preprocessing` is returned as it is.

    Raises:
        PreprocessingError: it does not say.
        LoadError: it is named but can be neither found in the cache nor downloaded.

    Example:
        >>> import timm
        >>> from xattr.trace import preprocessing
        >>> preprocessing(timm.create_model("test_vit")).size
        (160, 160)
    """
    if isinstance(model, Preprocessing):
        return model
    if getattr(model, "pretrained_cfg", None):
        return _of_timm(model)
    if callable(getattr(model, "transforms", None)) and hasattr(model, "meta"):
        model = model.transforms()
    if callable(model) and all(hasattr(model, name) for name in ("mean", "std", "crop_size", "resize_size")):
        return Preprocessing(model, tuple(model.mean), tuple(model.std), _pair(model.crop_size))
    processor = getattr(model, "image_processor", model)
    if callable(processor) and all(hasattr(processor, name) for name in ("image_mean", "image_std")):
        return _of_processor(processor)
    config = getattr(model, "config", None)
    name = getattr(config, "name_or_path", None) or getattr(config, "_name_or_path", None)
    if name:
        return _of_processor(_processor(name))
    unnamed = " whose config has no name_or_path" if config is not None else ""
    raise PreprocessingError(
        f"{type(model).__name__}{unnamed} does not say how it wants its images; expected a timm model "
        f"(pretrained_cfg), a Hugging Face model loaded by name or its image processor, or torchvision's "
        f"weights.transforms(). Otherwise build one: Preprocessing(transform, mean, std, size)."
    )


def _of_timm(model: Any) -> Preprocessing:
    from timm.data.config import resolve_model_data_config
    from timm.data.transforms_factory import create_transform

    config = resolve_model_data_config(model)
    # timm reports what the weights were trained on; the model at hand may have been built for other images.
    channels, size = _channels(model, config["input_size"][0]), _fixed_size(model) or config["input_size"][1:]
    if channels == 1 != len(config["mean"]):
        config |= {key: (float(np.mean(config[key])),) for key in ("mean", "std")}
    config["input_size"] = (channels, *size)
    return Preprocessing(create_transform(**config), tuple(config["mean"]), tuple(config["std"]), _pair(size))


def _channels(model: Any, default: int) -> int:
    stem = next((m for m in model.modules() if isinstance(m, torch.nn.Conv2d)), None)
    return 1 if stem is not None and stem.in_channels == 1 else default


def _fixed_size(model: Any) -> tuple[int, int] | None:
    patches: Any = getattr(model, "patch_embed", None)
    if getattr(patches, "strict_img_size", False) and getattr(patches, "img_size", None):
        return _pair(patches.img_size)
    return None


def _processor(name: str) -> Any:
    from .._network import cached_or_downloaded

    try:
        from transformers import AutoImageProcessor
    except ImportError as error:
        raise PreprocessingError(
            f"the image processor of {name!r} needs transformers; pip install 'captum-xattr[transformers]'."
        ) from error
    return cached_or_downloaded(
        lambda local: AutoImageProcessor.from_pretrained(name, local_files_only=local),
        name,
        f"the image processor {name!r}",
    )


def _of_processor(processor: Any) -> Preprocessing:
    mean, std = processor.image_mean, processor.image_std
    mode: Literal["L", "RGB"] = "L" if isinstance(mean, Sequence) and len(mean) == 1 else "RGB"

    def transform(image: Image) -> Tensor:
        return torch.as_tensor(np.asarray(processor(images=image, return_tensors="pt")["pixel_values"][0]))

    # What a processor says and what it does differ: some ignore their mean, divide twice, or swap red and blue.
    black, white = (_plain(transform, mode, colour) for colour in ("black", "white"))
    if black.ndim != 3 or len(black) not in (1, 3):
        raise PreprocessingError(
            f"{type(processor).__name__} returned pixel values of shape {list(black.shape)} for one image; expected "
            f"[channels, height, width] with one or three channels."
        )
    size = (black.shape[1], black.shape[2])
    low, high = (x[:, size[0] // 2, size[1] // 2].double() for x in (black, white))
    scale = 1 / (high - low)
    measured = (-low * scale).tolist(), scale.tolist()
    says_so = all(
        isinstance(said, Sequence) and np.shape(said) == np.shape(does) and np.allclose(said, does, atol=1e-5)
        for said, does in zip((mean, std), measured, strict=True)
    )
    mean, std = (mean, std) if says_so else measured
    order: Literal["RGB", "BGR"] = "RGB"
    if len(black) == 3:
        red = _plain(transform, mode, "red")[:, size[0] // 2, size[1] // 2].double()
        order = "BGR" if ((red - low) * scale)[2] > 0.5 else "RGB"
    return Preprocessing(transform, tuple(mean), tuple(std), size, order)


def _plain(transform: Callable[[Image], Tensor], mode: str, colour: str) -> Tensor:
    from PIL import Image

    return transform(Image.new(mode, (64, 64), colour))


def _pair(size: Any) -> tuple[int, int]:
    values = list(size) if isinstance(size, Sequence) else [size]
    return int(values[0]), int(values[-1])


def _upright(image: Any, mode: Literal["L", "RGB"]) -> Image:
    from PIL import Image, ImageOps

    if not isinstance(image, Image.Image):
        raise InputError(
            f"found a {type(image).__name__}; expected a PIL image, for instance Image.open(path) or "
            f"Image.fromarray(array)."
        )
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        # 16 bits: Pillow would cut at 255, which leaves white.
        values = np.asarray(image).astype(np.int64)
        values = values // 257 if values.max(initial=0) > 255 else values
        image = Image.fromarray(values.clip(0, 255).astype(np.uint8))
    if image.mode == "F":
        raise InputError("found a PIL image of floating-point numbers (mode F); expected bytes: scale it to 0..255.")
    try:
        return image.convert(mode)
    except ValueError as error:
        raise InputError(f"found a PIL image in mode {image.mode}, which Pillow cannot turn into {mode}.") from error
