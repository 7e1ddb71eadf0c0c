"""The model for photographs that travels with the library."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from xattr.datasets import CIFAR_CLASSES, cifar, cifar_model, cifar_photographs
from xattr.datasets.cifar import cifar_card, untrained_cifar_model
from xattr.trace import preprocessing

needs_data = pytest.mark.skipif("XATTR_DATA" not in os.environ, reason="XATTR_DATA names no folder with CIFAR-10")


@needs_data
def test_accuracy_on_test_images():
    import sys

    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    from train_cifar import photographs

    images, labels = photographs("test")
    with torch.inference_mode():
        right = (cifar_model()(images[::10].float() / 127.5 - 1).argmax(1) == labels[::10]).double().mean()
    assert abs(float(right) - cifar_card()["accuracy"]) < 0.04  # three standard errors of 1,000 images


def test_architecture():
    before = torch.get_rng_state()
    model = cifar_model()
    assert torch.equal(before, torch.get_rng_state())
    assert not any(module.training for module in model.modules())
    assert sum(isinstance(module, nn.BatchNorm2d) for module in model.modules()) == 2
    assert (len(model.blocks), model.blocks[0].attn.num_heads, model.num_prefix_tokens) == (8, 6, 1)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert sum(p.numel() for p in model.parameters()) == cifar_card()["parameters"]
    assert not torch.equal(model.head.weight, untrained_cifar_model().head.weight)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, len(CIFAR_CLASSES))


def test_it_says_how_it_wants_its_images():
    prepare = preprocessing(cifar_model())
    assert (prepare.size, prepare.mean, prepare.std) == ((32, 32), (0.5,) * 3, (0.5,) * 3)


def test_another_seed_says_where_it_is():
    with pytest.raises(FileNotFoundError, match="repository"):
        cifar_model(seed=9)


def test_the_model_knows_the_photographs():
    prepare = preprocessing(cifar_model())
    for name, picture in cifar_photographs().items():
        with torch.inference_mode():
            best, index = cifar_model()(prepare(picture)).softmax(1).max(1)
        assert (CIFAR_CLASSES[int(index)], float(best) > 0.6) == (name, True)


def test_every_photograph_has_its_licence():
    folder = Path(cifar.__file__).with_name("photographs")
    said = (folder / "LICENCES.md").read_text(encoding="utf-8")
    assert {path.name for path in folder.glob("*.jpg")} == {f"{name}.jpg" for name in cifar_photographs()}
    assert all(f"| {name}.jpg |" in said for name in cifar_photographs())
    assert said.count("CC0") + said.count("public domain") == len(cifar_photographs())
