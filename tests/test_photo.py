"""One photograph explained, from Python and as a command."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import xattr.attr as xa
from xattr import _methods, _network, photo
from xattr.cli import app
from xattr.loading import Loaded
from xattr.photo import explain
from xattr.trace import (
    InputError,
    LoadError,
    MethodError,
    OutputError,
    TargetError,
    UnsupportedModelError,
    preprocessing,
)

from .models import tiny
from .trace.test_preprocessing import photograph

NAMES = ("tench, Tinca tinca", "tabby, tabby cat", "tiger cat", "espresso", "cup")


@pytest.fixture(scope="module")
def loaded():
    model = tiny()
    return Loaded(model, preprocessing(model), NAMES, "tiny")


@pytest.fixture(scope="module")
def result(loaded):
    return explain(photograph(), loaded, ["rollout", "grad_skip"])


class Conv(nn.Sequential):
    """No attention, five classes, one channel: the channels are what the methods are told apart by."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Conv2d(3, 4, 8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))


def test_maps_and_probabilities(loaded, result):
    x = loaded.preprocessing(photograph())
    probabilities = loaded.model(x).softmax(1)[0]
    order = probabilities.argsort(descending=True).tolist()
    assert [i for i, _, _ in result.top] == order
    assert [p for _, _, p in result.top] == pytest.approx(probabilities[order].tolist(), abs=1e-6)
    assert result.top[0][1] == loaded.class_name(order[0])
    assert result.target == order[0]
    assert list(result.maps) == ["AttentionRollout", "GradSkip"]
    assert result.failed == {}
    assert torch.equal(result.maps["GradSkip"], xa.GradSkip(loaded.model).attribute(x, target=order[0]))
    other = explain(photograph(), loaded, "gradskip", target=order[1])
    assert torch.equal(other.maps["GradSkip"], xa.GradSkip(loaded.model).attribute(x, target=order[1]))
    assert not torch.equal(other.maps["GradSkip"], result.maps["GradSkip"])


def test_table_and_figure(result):
    name, probability = result.explained
    assert f"explained: {name} ({result.target}), {probability:.1%}" in result.table
    assert len(result.table.splitlines()) == 3 + 5 + 2
    titles = [ax.get_title() for ax in result.figure.axes]
    assert titles == ["image", "AttentionRollout", "GradSkip"]
    assert any(f"tiny: {name}, {probability:.1%}" in text.get_text() for text in result.figure.findobj(_is_text))


def _is_text(artist):
    return hasattr(artist, "get_text")


def test_the_picture_shows_what_the_model_saw(loaded, result):
    shown = np.asarray(result.figure.axes[0].images[0].get_array())[..., :3]
    wanted = loaded.preprocessing.inverse(loaded.preprocessing(photograph()))[0].permute(1, 2, 0).numpy()
    shown = shown / 255 if shown.dtype == np.uint8 else shown
    assert shown.shape == wanted.shape
    assert np.abs(shown - wanted).max() <= 1.01 / 255


def test_channels_are_summed_and_pixels_are_enough(loaded):
    x = loaded.preprocessing(photograph())
    found = explain(photograph(), loaded, ["IG"], target=2).maps["IntegratedGradients"]
    wanted = xa.IntegratedGradients(loaded.model).attribute(x, target=2)
    assert wanted.shape == (1, 3, 32, 32)
    assert torch.equal(found, wanted.sum(1, keepdim=True))


@pytest.mark.parametrize(
    ("target", "index"),
    [(3, 3), ("3", 3), (-1, 4), ("-1", 4), ("Tabby_Cat", 1), ("tinca TINCA", 0), ("tiger", 2)],
)
def test_target(loaded, target, index):
    result = explain(photograph(), loaded, "centre-map", target)
    assert result.target == index
    assert result.explained[0] == loaded.class_name(index)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("cat", r"fits 2 classes: tabby \(1\), tiger cat \(2\)"),
        ("tabbi", r"none of the 5 class names; close are: tabby \(1\)"),
        (5, r"5 is outside; allowed is 0..4"),
        ("5", r"5 is outside; allowed is 0..4"),
        (1.5, "a float is no index"),
    ],
)
def test_wrong_target(loaded, target, message):
    with pytest.raises(TargetError, match=message):
        explain(photograph(), loaded, "centre-map", target)


def test_model_without_names(loaded):
    nameless = Loaded(loaded.model, loaded.preprocessing, None, "nameless")
    assert explain(photograph(), nameless, "centre-map", 2).explained[0] == "class 2"
    with pytest.raises(TargetError, match=r"'tabby' is a name, but the classes of nameless have none.*0\.\.4"):
        explain(photograph(), nameless, "centre-map", "tabby")
    with pytest.raises(LoadError, match="5 outputs but 2 class names"):
        explain(photograph(), Loaded(loaded.model, loaded.preprocessing, ("a", "b")), "centre-map")


def test_one_output(loaded):
    model = nn.Sequential(loaded.model, nn.Linear(5, 1))
    result = explain(photograph(), Loaded(model, loaded.preprocessing), "ig")
    assert result.target == 0
    x = loaded.preprocessing(photograph())
    assert result.top == [(0, "class 0", pytest.approx(model(x).sigmoid().item(), abs=1e-6))]
    dense = nn.Sequential(nn.Conv2d(3, 5, 3))
    with pytest.raises(OutputError, match=r"\[1, 5, 30, 30\]; expected one for each class"):
        explain(photograph(), Loaded(dense, loaded.preprocessing), "ig")


def test_a_method_that_refuses_is_reported_and_the_others_are_drawn(loaded):
    conv = Loaded(Conv(), loaded.preprocessing, NAMES, "conv")
    result = explain(photograph(), conv, ["gradskip", "ig"])
    assert list(result.maps) == ["IntegratedGradients"]
    assert list(result.failed) == ["GradSkip"]
    assert "attention" in result.failed["GradSkip"]
    assert "\n" not in result.failed["GradSkip"]
    assert f"GradSkip failed: {result.failed['GradSkip']}" in result.table.splitlines()
    with pytest.raises(MethodError, match=r"no method can explain conv\. GradSkip: .*AttentionRollout: "):
        explain(photograph(), conv, ["gradskip", "rollout"])


def test_a_bug_is_not_hidden(loaded, monkeypatch):
    def attribute(*args, **kwargs):
        raise ValueError("a bug")

    monkeypatch.setattr(xa.CentreMap, "attribute", attribute)
    with pytest.raises(ValueError, match="a bug"):
        explain(photograph(), loaded, ["centremap", "rollout"])


class Ruled(xa.CentreMap):
    """A method with rules."""

    def attribute(self, inputs, target=None, *, rule="one"):
        if rule == "refused":
            raise UnsupportedModelError("not\nthis model")
        if rule not in ("one", "two"):
            raise ValueError(f"there is no rule {rule}")
        return super().attribute(inputs, target) * (2 if rule == "two" else 1)


def test_rules(loaded, monkeypatch):
    monkeypatch.setitem(xa.METHODS, "Ruled", "controls")
    monkeypatch.setattr(xa, "Ruled", Ruled, raising=False)
    result = explain(photograph(), loaded, ["ruled", "RULED:two", "ruled:three", "ruled:refused"])
    assert list(result.maps) == ["Ruled", "Ruled:two"]
    assert torch.equal(result.maps["Ruled:two"], 2 * result.maps["Ruled"])
    assert result.failed == {"Ruled:three": "there is no rule three", "Ruled:refused": "not this model"}
    with pytest.raises(MethodError, match="CentreMap takes no rule, found 'centremap:two'; expected 'centremap'"):
        explain(photograph(), loaded, ["centremap:two"])


def test_methods_by_name(monkeypatch):
    names = ["gradskip", "Grad-Skip", "IG", "integrated_gradients", "rollout", "attention-rollout", "centreMAP"]
    found = [method.name for method in _methods.find_methods(names)]
    assert found == ["GradSkip", "IntegratedGradients", "AttentionRollout", "CentreMap"]
    with pytest.raises(MethodError, match="no method 'gradskipp'; there are GradSkip, "):
        _methods.find_methods(["gradskipp"])
    with pytest.raises(MethodError, match="found no method"):
        _methods.find_methods([])
    monkeypatch.setattr(xa, "METHODS", {"GradCam": "", "GradSkip": "gradskip", "CentreMap": "controls"})
    assert [method.name for method in _methods.find_methods(None)] == ["GradSkip", "GradCam"]


def test_other_types_and_nothing_of_the_model_changes(loaded):
    model = tiny().double().train()
    before = {name: p.clone() for name, p in model.named_parameters()}
    result = explain(photograph(), Loaded(model, loaded.preprocessing), "rollout")
    assert result.maps["AttentionRollout"].dtype == torch.float32
    assert model.training
    assert all(torch.equal(before[name], p) and p.grad is None for name, p in model.named_parameters())


def test_files(loaded, tmp_path):
    photograph().save(tmp_path / "cat.one.png")
    photograph().convert("RGBA").save(tmp_path / "alpha.png")
    photograph().quantize(50).save(tmp_path / "palette.png")
    result = explain(tmp_path / "cat.one.png", loaded, "centremap")
    again = explain(str(tmp_path / "alpha.png"), loaded, "centremap")
    assert result.top == again.top
    assert explain(tmp_path / "palette.png", loaded, "centremap").top != result.top
    assert result.save(tmp_path) == tmp_path / "cat.one-xattr.png"
    picture = np.asarray(Image.open(tmp_path / "cat.one-xattr.png"))
    assert min(picture.shape[:2]) > 300
    assert len(np.unique(picture.reshape(-1, picture.shape[-1]), axis=0)) > 200
    with pytest.raises(FileNotFoundError, match=r"nowhere.*create it first"):
        result.save(tmp_path / "nowhere")
    assert explain(Image.open(tmp_path / "alpha.png"), loaded, "centremap").photo == "alpha"
    assert explain(photograph(), loaded, "centremap").photo == "photo"


def test_wrong_files(loaded, tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    photograph().save(tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:2000])
    for name, message in {
        "text.png": "is no picture",
        "half.png": "is no picture",
        "none.png": "no photograph",
    }.items():
        with pytest.raises(InputError, match=message):
            explain(tmp_path / name, loaded, "centremap")
    with pytest.raises(InputError, match="found a Tensor"):
        explain(torch.zeros(3, 8, 8), loaded, "centremap")
    with pytest.raises(LoadError, match=r"Loaded\(model, preprocessing\(model\)\)"):
        explain(photograph(), loaded.model, "centremap")


FILE = """
import timm
import torch
from xattr.trace import preprocessing

def build():
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=3)
    return model, preprocessing(model), ["cat", "dog", "sea bird"]
"""


def test_command(tmp_path):
    photograph().save(tmp_path / "sea.png")
    (tmp_path / "mine.py").write_text(FILE)
    arguments = ["image", str(tmp_path / "sea.png"), "--model", f"{tmp_path / 'mine.py'}:build", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*arguments, "--method", "rollout", "--method", "centre-map", "--target", "BIRD"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "mine.py:build on sea"
    assert len([line for line in lines if line.endswith((" cat", " dog", " sea bird"))]) == 3
    assert any(line.startswith("explained: sea bird (2), ") for line in lines)
    assert lines[-1] == f"Picture: {tmp_path / 'sea-xattr.png'}"
    assert (tmp_path / "sea-xattr.png").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"photo": "none.png"}, "there is no photograph"),
        ({"--model": "timm/test_vit"}, "the weights of timm/test_vit are not in the cache"),
        ({"--model": "timm/test_vot"}, "Close are: test_vit"),
        ({"--method": "nothing"}, "there is no method 'nothing'"),
        ({"--target": "fish"}, "'fish' is none of the 3 class names"),
        ({"--out": "nowhere"}, "there is no folder 'nowhere'"),
    ],
)
def test_command_errors_are_one_line(tmp_path, monkeypatch, changed, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_network, "reachable", lambda url: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    photograph().save("sea.png")
    (tmp_path / "mine.py").write_text(FILE)
    options = {"photo": "sea.png", "--model": "mine.py:build", "--method": "centremap", "--target": "cat"} | changed
    done = CliRunner().invoke(
        app, ["image", options.pop("photo"), *(part for item in options.items() for part in item)]
    )
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("*-xattr.png"))


def test_command_tells_what_failed_and_what_is_remarkable(tmp_path, loaded, monkeypatch):
    class Blank(xa.CentreMap):
        def attribute(self, inputs, target=None):
            return super().attribute(inputs, target) * 0

    monkeypatch.setitem(xa.METHODS, "Blank", "controls")
    monkeypatch.setattr(xa, "Blank", Blank, raising=False)
    monkeypatch.setattr(photo, "load", lambda spec: Loaded(Conv(), loaded.preprocessing, NAMES, spec))
    photograph().save(tmp_path / "sea.png")
    done = CliRunner().invoke(
        app,
        ["image", str(tmp_path / "sea.png"), "--model", "conv", "--out", str(tmp_path)]
        + ["--method", "gradskip", "--method", "blank"],
    )
    assert done.exit_code == 0, done.output
    assert "GradSkip failed: " in done.stdout
    assert "Note: " in done.stderr
    assert "Blank" in done.stderr


def test_the_command_is_light():
    code = "import sys, xattr.cli; assert not {'torch', 'timm', 'PIL', 'matplotlib', 'transformers'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
