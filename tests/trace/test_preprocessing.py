"""Preprocessing against the libraries' own, and what photographs come as."""

import builtins
import importlib
import sys

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from torchvision.models import ResNet18_Weights
from torchvision.transforms.functional import pil_to_tensor
from transformers import (
    ConvNextImageProcessor,
    EfficientNetImageProcessor,
    MobileViTImageProcessor,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)

import xattr.trace
from xattr.trace import InputError, LoadError, Preprocessing, PreprocessingError, preprocessing

from ..models import HF, tiny


def photograph(height=90, width=140, seed=0):
    """Smooth colours with a little noise, so that neither flipped axes nor swapped channels go unseen."""
    y, x = np.meshgrid(np.linspace(0, 1, height), np.linspace(0, 1, width), indexing="ij")
    noise = np.random.default_rng(seed).random((height, width, 3)) * 30
    pixels = np.stack([200 * x, 200 * y, 200 * (1 - x) * y], -1) + noise
    return Image.fromarray(pixels.astype(np.uint8))


def plain(size=(90, 140), channels=3):
    """No resizing, no normalisation: what the model is shown is the photograph."""
    mean, std = (0.0,) * channels, (1.0,) * channels
    return Preprocessing(lambda image: pil_to_tensor(image) / 255, mean, std, size)


@pytest.mark.parametrize("name", ["test_vit", "resnet18", "tf_efficientnet_lite0"])
def test_timm_bit_for_bit(name):
    model = timm.create_model(name)
    config = resolve_model_data_config(model)
    found = preprocessing(model)
    assert torch.equal(found(photograph())[0], create_transform(**config)(photograph()))
    assert (found.mean, found.std) == (tuple(config["mean"]), tuple(config["std"]))
    assert found.size == config["input_size"][1:]


def test_timm_model_built_for_other_images():
    model = tiny(img_size=(32, 48), in_chans=1)
    found = preprocessing(model)
    assert found.size == (32, 48)
    assert len(found.mean) == len(found.std) == 1
    x = found(photograph())
    assert x.shape == (1, 1, 32, 48)
    assert model(x).shape == (1, 5)


@pytest.mark.parametrize(
    "processor",
    [
        ViTImageProcessor(size={"height": 32, "width": 48}, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.4]),
        ViTImageProcessor(size={"height": 32, "width": 32}, do_normalize=False),
        ConvNextImageProcessor(size={"shortest_edge": 96}),
        EfficientNetImageProcessor(size={"height": 40, "width": 40}),
        MobileViTImageProcessor(size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32}),
    ],
    ids=["vit", "unnormalised", "convnext", "twice divided", "blue first"],
)
def test_hugging_face_bit_for_bit_and_back(processor):
    found = preprocessing(processor)
    wanted = processor(images=photograph(), return_tensors="pt")["pixel_values"]
    assert torch.equal(found(photograph()), wanted)
    # A plain colour survives resizing, so what is shown must be that colour, whatever the processor does to it.
    colour = Image.new("RGB", (64, 64), (250, 100, 20))
    x = found(colour)
    assert x.shape[-2:] == found.size
    shown = found.inverse(x)[0, :, found.size[0] // 2, found.size[1] // 2] * 255
    assert torch.allclose(shown, torch.tensor([250.0, 100, 20]), atol=0.6)


def test_hugging_face_says_its_own_numbers():
    found = preprocessing(ViTImageProcessor(image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225]))
    assert (found.mean, found.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert found.size == (224, 224)
    grey = preprocessing(ViTImageProcessor(image_mean=[0.5], image_std=[0.25]))
    assert grey(photograph()).shape == (1, 1, 224, 224)
    assert (grey.mean, grey.std) == ((0.5,), (0.25,))


def test_hugging_face_model_by_its_name(tmp_path):
    processor = ViTImageProcessor(size={"height": 32, "width": 32})
    ViTForImageClassification(ViTConfig(**HF)).save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    model = ViTForImageClassification.from_pretrained(tmp_path)
    assert torch.equal(
        preprocessing(model)(photograph()), processor(images=photograph(), return_tensors="pt")["pixel_values"]
    )
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(LoadError, match="could not be loaded"):
        preprocessing(model)
    with pytest.raises(PreprocessingError, match=r"no name_or_path.*Preprocessing\(transform, mean, std, size\)"):
        preprocessing(ViTForImageClassification(ViTConfig(**HF)))


def test_torchvision_bit_for_bit():
    weights = ResNet18_Weights.DEFAULT
    for given in (weights, weights.transforms()):
        found = preprocessing(given)
        assert torch.equal(found(photograph())[0], weights.transforms()(photograph()))
        assert found.mean == (0.485, 0.456, 0.406)
        assert found.size == (224, 224)


def test_inverse_is_the_resized_photograph():
    model = tiny()
    config = {**resolve_model_data_config(model), "input_size": (3, 32, 32)}
    resized = create_transform(**{**config, "mean": (0, 0, 0), "std": (1, 1, 1)})(photograph())
    found = preprocessing(model)
    shown = found.inverse(found(photograph()))
    assert shown.shape == (1, 3, 32, 32)
    assert float((shown[0] - resized).abs().max()) <= 1 / 255
    assert float(resized.std()) > 0.1


def test_inverse_takes_batches_halves_and_gradients():
    found = Preprocessing(lambda image: image, (0.5, 0.4, 0.3), (0.1, 0.2, 0.3), (8, 8))
    x = torch.randn(2, 3, 8, 8, dtype=torch.float16, requires_grad=True)
    shown = found.inverse(x)
    assert shown.dtype == torch.float32
    assert not shown.requires_grad
    assert float(shown.min()) == 0
    assert float(shown.max()) == 1


def test_modes():
    photo = photograph()
    rgb = plain()(photo)
    assert torch.equal(rgb[0] * 255, pil_to_tensor(photo).float())
    with_alpha = photo.convert("RGBA")
    with_alpha.putalpha(10)
    assert torch.equal(plain()(with_alpha), rgb)
    grey = photo.convert("L")
    assert torch.equal(plain()(grey), (pil_to_tensor(grey) / 255).expand(3, -1, -1)[None])
    assert torch.equal(plain(channels=1)(photo), (pil_to_tensor(grey) / 255)[None])
    palette = photo.quantize(200)
    assert palette.mode == "P"
    assert torch.equal(plain()(palette), (pil_to_tensor(palette.convert("RGB")) / 255)[None])
    assert float((plain()(palette) - rgb).abs().mean()) < 0.05
    assert plain()(photo.convert("CMYK")).shape == rgb.shape
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    assert deep.mode.startswith("I")
    assert torch.equal(plain()(deep), plain()(grey))


def test_upright(tmp_path):
    photo = photograph()
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise to see it
    photo.save(tmp_path / "turned.png", exif=exif)
    found = plain()(Image.open(tmp_path / "turned.png"))
    assert torch.equal(found, plain()(photo.transpose(Image.Transpose.ROTATE_270)))
    assert found.shape[-2:] == (140, 90)


@pytest.mark.parametrize("shape", [(40, 200), (200, 40), (3, 3)])
def test_shapes(shape):
    assert preprocessing(tiny())(photograph(*shape)).shape == (1, 3, 32, 32)


def test_errors():
    with pytest.raises(PreprocessingError, match=r"Linear does not say.*expected a timm model.*build one"):
        preprocessing(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="mean"):
        Preprocessing(lambda image: image, (0.5,), (0.5, 0.5), (8, 8))
    with pytest.raises(InputError, match="ndarray; expected a PIL image"):
        plain()(np.zeros((8, 8, 3)))
    with pytest.raises(InputError, match="floating-point"):
        plain()(Image.new("F", (8, 8)))
    with pytest.raises(InputError, match=r"returned \[1, 8, 8\].*\[3, H, W\]"):
        Preprocessing(lambda image: torch.zeros(1, 8, 8), (0, 0, 0), (1, 1, 1), (8, 8))(photograph())
    assert preprocessing(given := plain()) is given


def test_the_import_is_light(monkeypatch):
    monkeypatch.setattr(xattr.trace, "preprocessing", preprocessing)  # what the import below binds is taken back
    monkeypatch.delitem(sys.modules, "xattr.trace.preprocessing")
    imported, real = set(), builtins.__import__
    record = lambda name, *rest, **more: (imported.add(name), real(name, *rest, **more))[1]
    monkeypatch.setattr(builtins, "__import__", record)
    importlib.import_module("xattr.trace.preprocessing")
    assert "torch" in imported
    assert not {name.split(".")[0] for name in imported} & {"PIL", "timm", "transformers", "torchvision"}


@pytest.mark.parametrize("size", [32, (32,), None])
def test_a_size_is_height_and_width(size):
    with pytest.raises(PreprocessingError, match="expected height and width"):
        plain(size)
