"""Models by name and from files: what comes back, and one clear line where nothing can."""

import socket
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor, ViTModel

from xattr import _network
from xattr.loading import find_class, label_names, load, short_name
from xattr.trace import LoadError, Preprocessing, TargetError

from .models import HF

IMAGENET = ("tabby, tabby cat", "tiger cat", "Persian cat", "crane", "crane, lifter", "oystercatcher", "espresso")


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No server answers and every cache is empty; returns the folder of the caches."""
    monkeypatch.setattr(_network, "reachable", lambda url: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "server"),
    [
        ("timm/test_vit", "https://huggingface.co"),
        ("timm/gcvit_tiny", "https://github.com"),
        ("hf/nobody/nothing-of-this-name", "https://huggingface.co"),
        ("torchvision/resnet18", "https://download.pytorch.org"),
    ],
)
def test_without_network(offline, monkeypatch, spec, server):
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: asked.append(host))
    monkeypatch.setattr(_network, "reachable", lambda url: asked.append(url[: len(server)]))
    with pytest.raises(LoadError) as caught:
        load(spec)
    message = str(caught.value)
    assert f"the weights of {spec} are not in the cache and {server} cannot be reached" in message
    assert "FILE.py:factory" in message
    assert "\n" not in message
    # Asked once, and no library went on to try for its files: the hub's client alone waits 23 seconds for each. (New
    # versions of that client look up something of their own, once in a process.)
    assert asked.count(server) == 1
    assert len(asked) <= 2


def test_what_is_reachable(monkeypatch):
    import urllib.error
    import urllib.request

    def answer(result):
        def urlopen(request, timeout):
            assert timeout < 10
            raise result

        monkeypatch.setattr(urllib.request, "urlopen", urlopen)
        return _network.reachable("https://example.org")

    assert answer(urllib.error.HTTPError("", 403, "forbidden", {}, None))
    assert not answer(urllib.error.URLError("Name or service not known"))
    assert not answer(TimeoutError())


def test_timm_from_the_cache(offline):
    torch.manual_seed(3)
    wanted = timm.create_model("test_vit")
    repository = timm.models.get_pretrained_cfg("test_vit").hf_hub_id
    folder = offline / "hub" / f"models--{repository.replace('/', '--')}"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    save_file(wanted.state_dict(), folder / "snapshots" / "abc" / "model.safetensors")
    loaded = load("timm/test_vit")
    assert not loaded.model.training
    assert all(torch.equal(p, q) for p, q in zip(wanted.parameters(), loaded.model.parameters(), strict=True))
    assert loaded.preprocessing.size == (160, 160)
    assert loaded.name == "timm/test_vit"
    assert len(loaded.class_names) == 1000
    assert loaded.class_names[281] == "tabby, tabby cat"
    assert loaded.class_name(281) == "tabby"


def test_torchvision_from_the_cache(offline):
    from torchvision.models import ShuffleNet_V2_X0_5_Weights, shufflenet_v2_x0_5

    torch.manual_seed(3)
    wanted = shufflenet_v2_x0_5()
    (offline / "hub" / "checkpoints").mkdir(parents=True)
    file = Path(ShuffleNet_V2_X0_5_Weights.DEFAULT.url).name
    torch.save(wanted.state_dict(), offline / "hub" / "checkpoints" / file)
    with pytest.MonkeyPatch.context() as patch:
        # The name holds the hash of the trained weights, which these are not.
        patch.setattr("torchvision.models._api.load_state_dict_from_url", _without_hash)
        loaded = load("torchvision/shufflenet_v2_x0_5")
    assert all(torch.equal(p, q) for p, q in zip(wanted.parameters(), loaded.model.parameters(), strict=True))
    assert not loaded.model.training
    assert loaded.preprocessing.size == (224, 224)
    assert loaded.class_name(0) == "tench"


def _without_hash(url, **kwargs):
    return torch.hub.load_state_dict_from_url(url, **{**kwargs, "check_hash": False})


def test_hugging_face_folder(offline):
    names = {0: "cat, felis", 1: "dog", 2: "bird"}
    wanted = ViTForImageClassification(ViTConfig(**HF, id2label=names)).half()
    wanted.save_pretrained(offline)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(offline)
    loaded = load(f"hf/{offline}")
    assert loaded.class_names == ("cat, felis", "dog", "bird")
    assert loaded.preprocessing.size == (32, 32)
    assert not loaded.model.training
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert torch.equal(loaded.model.classifier.weight, wanted.classifier.weight.float())

    ViTForImageClassification(ViTConfig(**HF, num_labels=3)).save_pretrained(offline)
    assert load(f"hf/{offline}").class_names is None

    ViTModel(ViTConfig(**HF)).save_pretrained(offline)
    with pytest.raises(LoadError, match=r"no trained weights for classifier\.bias"):
        load(f"hf/{offline}")
    (offline / "preprocessor_config.json").unlink()
    with pytest.raises(LoadError, match="could not be loaded") as caught:
        load(f"hf/{offline}")
    assert "cache" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("timm/vit_tiny_patch16_225", "timm has no model 'vit_tiny_patch16_225'. Close are: vit_tiny_patch16_224"),
        ("timm/vit_tiny_patch16_224.nope", "timm has no model 'vit_tiny_patch16_224.nope'. Close are: vit_tiny_"),
        ("timm/qqqqqqqqqq", "No name is close"),
        ("timm/botnet50ts_256", "no trained weights for 'botnet50ts_256'"),
        ("timm/vit_small_patch14_dinov2", "no classifier for"),
        ("torchvision/resnet51", "torchvision has no classifier 'resnet51'. Close are: .*resnet50"),
        ("hf/./nowhere", "'./nowhere' is neither an existing folder nor a name on the hub"),
        ("resnet18", "found the model 'resnet18'; expected timm/NAME"),
        ("mine.py", "mine.py names no function; expected mine.py:factory"),
        ("mine.py:build", "there is no file 'mine.py'"),
        (torch.nn.Identity(), "found a Identity; .*Loaded"),
    ],
)
def test_what_cannot_be_had(offline, spec, message):
    with pytest.raises(LoadError, match=message):
        load(spec)


def test_missing_packages(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(LoadError, match=r"pip install 'captum-xattr\[transformers\]'"):
        load("hf/owner/name")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(LoadError, match="pip install torchvision"):
        load("torchvision/resnet18")


FILE = """
import helper_beside_it
import timm
import torch
from xattr.trace import Preprocessing, preprocessing

HOW = Preprocessing(lambda image: torch.zeros(3, 8, 8), (0, 0, 0), (1, 1, 1), (8, 8))

class Mine(torch.nn.Linear):
    pass

def bare():
    return timm.create_model("test_vit")

def other_classes():
    return timm.create_model("test_vit", num_classes=7)

def pair():
    return Mine(2, 2).train(), HOW

def triple():
    return Mine(2, 2), HOW, ["cat", "dog"]

def unknown():
    return Mine(2, 2)

def wrong():
    return {"model": Mine(2, 2)}

def letters():
    return Mine(2, 2), HOW, "cat"

def broken():
    return 1 / 0
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "helper_beside_it.py").write_text("")
    (tmp_path / "mine.py").write_text(FILE)
    yield tmp_path / "mine.py"
    sys.modules.pop("helper_beside_it", None)


def test_file(file):
    before = list(sys.path)
    bare = load(f"{file}:bare")
    assert (bare.name, bare.preprocessing.size, bare.class_name(281)) == ("mine.py:bare", (160, 160), "tabby")
    assert not bare.model.training
    assert load(f"{file}:other_classes").class_names is None
    pair = load(f"{file}:pair")
    assert isinstance(pair.preprocessing, Preprocessing)
    assert not pair.model.training
    assert pair.class_name(1) == "class 1"
    assert load(f"{file}:triple").class_names == ("cat", "dog")
    assert sys.path == before


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("unknown", "returned Mine, which does not say how .* return \\(model, Preprocessing"),
        ("wrong", "returned dict; expected an nn.Module, \\(model, Preprocessing\\)"),
        ("letters", "returned a str as class names"),
        ("broken", "failed in line 34: ZeroDivisionError: division by zero"),
        ("nothing", "no function 'nothing'; it has Mine, bare,"),
    ],
)
def test_file_errors(file, factory, message):
    with pytest.raises(LoadError, match=message):
        load(f"{file}:{factory}")


def test_label_names_of_the_config():
    model = timm.create_model("test_vit", num_classes=2)
    model.pretrained_cfg = {"num_classes": 2, "label_names": ["n1", "n2"], "label_descriptions": {"n1": "cat, felis"}}
    assert label_names(model) == ("cat, felis", "n2")
    model.pretrained_cfg["num_classes"] = 3  # trained on others than the model at hand has
    assert label_names(model) is None
    assert label_names(torch.nn.Linear(2, 2)) is None


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        ("tabby", 0),
        ("TABBY CAT", 0),
        ("tabby_cat", 0),
        ("tabby, tabby cat", 0),
        ("lifter", 4),
        ("persian", 2),
        ("oyster", 5),
        (" espresso ", 6),
    ],
)
def test_class_names(wanted, index):
    assert find_class(wanted, IMAGENET) == index


def test_a_class_name_that_is_equal_wins_over_names_that_contain_it():
    assert find_class("cat", ["tiger cat", "cat, felis"]) == 1
    assert find_class("felis", ["felis silvestris", "cat, felis"]) == 1


def test_class_names_that_fit_several_or_none():
    with pytest.raises(TargetError, match=r"'crane' fits 2 classes: crane \(3\), crane \(4\)"):
        find_class("crane", IMAGENET)
    with pytest.raises(TargetError, match=r"fits 4 classes: tabby \(0\), .*Persian cat \(2\), oystercatcher \(5\)"):
        find_class("cat", IMAGENET)
    with pytest.raises(TargetError, match=r"'espressa' is none of the 7 class names; close are: espresso \(6\)"):
        find_class("espressa", IMAGENET)
    with pytest.raises(TargetError, match="none of the 7"):
        find_class(" ", IMAGENET)
    assert short_name("great white shark, white shark") == "great white shark"
