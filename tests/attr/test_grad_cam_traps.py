"""Grad-CAM where it could be wrong without a word: aliases, pads, containers, lost cells."""

import dataclasses
from collections import OrderedDict

import pytest
import timm
import torch
import torch.nn.functional as F
from captum.attr import LayerGradCam
from torch import nn

from tests.cnns import cnn
from tests.models import images, relative_error
from xattr.attr import GradCam
from xattr.trace import InputError, UnsupportedModelError


def cam(model, layer, x, at_input=False):
    return GradCam(model, layer).attribute(x, 1, None, at_input, False, upsample=None)


def captum_cam(model, layer, x, at_input=False):
    found = LayerGradCam(model, model.get_submodule(layer)).attribute(x, 1, None, at_input, False)
    return (found[0] if isinstance(found, tuple) else found).detach()


class Parts(nn.Module):
    """Two convolutions, an identity, an in-place ReLU; a test says how they are joined."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.o = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 5)
        self.i, self.r, self.way = nn.Dropout(0.1), nn.ReLU(inplace=True), way

    def forward(self, z):
        return self.o(self.way(self, z).mean((2, 3)))


def skip(m, z):
    y = m.a(z)
    return (y + m.b(m.i(y))).relu()


def read_before(m, z):
    y = m.a(z)
    h = m.b(y)
    return (m.i(y) + h).relu()


def named_after_relu(m, z):
    y = m.a(z)
    h = m.r(y)
    return y + m.b(h)


def kept_in_the_module(m, z):
    m.b.kept = m.b(m.a(z))
    return m.i(m.b.kept).relu()


@pytest.mark.parametrize("layer", ["a", "b", "i"])
@pytest.mark.parametrize("at_input", [False, True])
def test_everybody_who_holds_the_layers_tensor_goes_on_from_the_cut(layer, at_input):
    x = images()
    wanted = captum_cam(Parts(skip).eval(), layer, x, at_input)
    for way in (skip, read_before):
        assert relative_error(cam(Parts(way).eval(), layer, x, at_input), wanted) < 1e-5


def test_layers_whose_output_has_other_names():
    x = images()
    for way, layer in ((named_after_relu, "r"), (kept_in_the_module, "b")):
        model = Parts(way).eval()
        assert relative_error(cam(model, layer, x), captum_cam(model, layer, x)) < 1e-5


@pytest.mark.parametrize(
    "layer", ["layer4.1.conv1", "layer4.0.conv1", "layer4.0.downsample", "layer3.1", "layer1.0.bn1"]
)
def test_what_a_layer_takes_counts_on_all_its_ways(layer):
    model, x = cnn("resnet18"), images(2, 64)
    assert relative_error(cam(model, layer, x, True), captum_cam(model, layer, x, True)) < 1e-5


def test_a_call_that_does_not_count_is_not_read():
    def logged(m, z):
        y = m.a(z)
        with torch.no_grad():
            m.seen = m.a(z.flip(-1)).mean()
        return y.relu()

    wanted = cam(Parts(lambda m, z: m.a(z).relu()).eval(), "a", images())
    assert relative_error(cam(Parts(logged).eval(), "a", images()), wanted) < 1e-6


@dataclasses.dataclass
class Named:
    one: torch.Tensor
    two: torch.Tensor


CONTAINERS = {
    "tuple": (lambda a, b: (a, b), lambda o: o[1]),
    "dictionary": (lambda a, b: OrderedDict(one=a, two=b), lambda o: o["two"]),
    "dataclass": (Named, lambda o: o.two),
    "list in a tuple": (lambda a, b: ([a], [b, 3]), lambda o: o[1][0]),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_layers_that_return_several_tensors(kind):
    pack, pick = CONTAINERS[kind]

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)

        def forward(self, z):
            a = self.a(z)
            return pack(a, self.b(a))

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.packed = Packed()
            self.o = nn.Linear(8, 5)

        def forward(self, z):
            return self.o(pick(self.packed(z)).relu().mean((2, 3)))

    model, x = Outer().eval(), images()
    assert relative_error(cam(model, "packed", x), captum_cam(model, "packed.b", x)) < 1e-5


def test_the_found_layer_gives_the_same_map():
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    torch.manual_seed(0)
    models = [ResNetForImageClassification(ResNetConfig(**sizes, num_labels=5)).eval(), cnn("botnet26t_256")]
    for model, size in zip(models, (64, 256), strict=True):
        x = images(1, size)
        path = GradCam(model).found_layer(x)
        assert relative_error(cam(model, path, x), cam(model, None, x)) < 1e-5


# --- where the cells are ----------------------------------------------------------------------------------------------


class Spot(nn.Module):
    """The score is the brightness of patches, after something else."""

    def __init__(self, before):
        super().__init__()
        self.c = nn.Conv2d(3, 1, 4, 4, bias=False)
        nn.init.ones_(self.c.weight)
        self.before = before

    def forward(self, z):
        return self.c(self.before(z)).relu().mean((2, 3)).repeat(1, 2)


BRIGHT = torch.zeros(1, 3, 32, 64)
BRIGHT[..., 28:, 20:24] = 1


@pytest.mark.parametrize("pad", [(0, 0, 0, 32), (0, 0, 16, 16), (-16, 0), (16, 16)])
@pytest.mark.parametrize("mode", ["constant", "reflect"])
@pytest.mark.parametrize("layer", ["c", None])
def test_large_margins_and_crops_are_refused(pad, mode, layer):
    if mode == "reflect":
        pad = tuple(min(p, 31) for p in (*pad, 0, 0)[:4])
    model = Spot(lambda z: F.pad(z, pad, mode=mode)).eval()
    with pytest.raises(UnsupportedModelError):
        GradCam(model, layer).attribute(BRIGHT, target=0)


def test_small_margins_and_margins_taken_off_again_are_fine():
    for before in (lambda z: F.pad(z, (0, 3, 0, 3)), lambda z: F.pad(z, (9, 9, 9, 9))[:, :, 9:-9, 9:-9]):
        heat = GradCam(Spot(before).eval(), "c").attribute(BRIGHT, target=0)
        row, column = divmod(int(heat.argmax()), 64)
        assert 28 <= row < 32 and 20 <= column < 24


def test_writing_through_another_view_is_seen():
    class Mirror(Spot):
        def forward(self, z):
            y = self.c(z)
            tokens, view = y.flatten(2), y.view_as(y)
            view.copy_(view.flip(-1))
            return self.before(tokens).mean(2).repeat(1, 2)

    with pytest.raises(UnsupportedModelError):
        GradCam(Mirror(nn.ReLU()).eval(), "before").attribute(BRIGHT, target=0)


class Lost(nn.Module):
    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.between, self.stem, self.o = between, nn.Conv2d(3, 8, 3, 1, 1), nn.Linear(32, 5)
        self.b = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())

    def forward(self, z):
        return self.o(self.b(self.between(self.stem(z))).mean((2, 3)))


KEPT = {
    "every second": lambda t: t[:, :, ::2, 1::2],
    "dropout": lambda t: F.dropout2d(t, 0.1, False),
    "response norm": lambda t: F.local_response_norm(t, 2),
    "adaptive maximum": lambda t: F.adaptive_max_pool2d(t, 9),
    "option A": lambda t: F.pad(t[:, :4, ::2, ::2], (0, 0, 0, 0, 2, 2)) + F.avg_pool2d(t, 2),
    "softshrink": F.softshrink,
}


@pytest.mark.parametrize("name", KEPT)
def test_the_last_feature_map_is_found(name):
    assert GradCam(Lost(KEPT[name]).eval()).found_layer(images(2, 64)) == "b"


def test_no_early_layer_is_taken_where_the_cells_are_lost():
    for between in (lambda t: t.flip(-1), lambda t: torch.einsum("bchw->bcwh", t), nn.PixelShuffle(2)):
        model = Lost(lambda t, f=between: f(t).expand(-1, 8, -1, -1) if t.shape[1] != f(t).shape[1] else f(t)).eval()
        if isinstance(between, nn.PixelShuffle):
            model = Lost(lambda t: F.pixel_shuffle(t, 2).repeat(1, 4, 1, 1)).eval()
        with pytest.raises(UnsupportedModelError, match="no layer"):
            GradCam(model).attribute(images(2, 64), target=1)


def test_wide_pictures():
    model, x = cnn("resnet18"), torch.randn(1, 3, 64, 1200)
    assert relative_error(cam(model, "layer4", x), captum_cam(model, "layer4", x)) < 1e-5


def test_class_attention_reads_a_token_that_was_computed():
    model = timm.create_model("cait_xxs24_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2)
    assert GradCam(model.eval()).attribute(images(), target=1, upsample=None).shape == (2, 1, 4, 4)


# --- names and errors -------------------------------------------------------------------------------------------------


def test_paths_in_wrapped_models():
    net, x = cnn("resnet18"), images(2, 64)
    wanted = cam(net, "layer4", x)
    wrapped = nn.DataParallel(net)
    for model, path in (
        (wrapped, "layer4"),
        (wrapped, "module.layer4"),
        (torch.compile(net, backend="eager"), "_orig_mod.layer4"),
    ):
        assert relative_error(cam(model, path, x), wanted) < 1e-6


@pytest.mark.parametrize("name", ["conv1", "layer4"])
def test_backward_hooks_of_the_user_do_not_matter(name):
    net, x = cnn("resnet18"), images(2, 64)
    wanted = cam(net, "layer3", x)
    net.get_submodule(name).register_full_backward_hook(lambda *given: None)
    assert relative_error(cam(net, "layer3", x), wanted) < 1e-6


def test_errors_name_the_cause():
    class ByName(nn.Module):
        def __init__(self):
            super().__init__()
            self.c = nn.Conv2d(3, 5, 1)

        def forward(self, z):
            return self.c(input=z).mean((2, 3))

    with pytest.raises(InputError, match="by keywords"):
        cam(ByName().eval(), "c", images(), True)
