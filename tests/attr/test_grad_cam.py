"""Grad-CAM: the formula written out, Captum, layouts of features, and layers that cannot work."""

import pytest
import timm
import torch
import torch.nn.functional as F
from captum.attr import LayerGradCam
from torch import nn

from tests.attr.test_lrp import Net
from tests.cnns import CNNS, any_model, cnn
from tests.models import HF, images, relative_error, tiny
from xattr.attr import GradCam, InputSpace
from xattr.metrics import cost_in_forwards
from xattr.trace import InputError, UnsupportedModelError


def literal(model, layer, x, target, channels, cells, grid):
    """Sum over channels of mean gradient times value, with the layer's output taken by a hook of our own."""
    kept = []
    handle = layer.register_forward_hook(lambda module, args, output: kept.append(output))
    output = model(x)
    scores = getattr(output, "logits", output)
    handle.remove()
    (features,) = kept
    (gradient,) = torch.autograd.grad(scores[:, target].sum(), features)
    features, gradient = (t.detach().movedim(channels, -1).flatten(1, -2)[:, cells] for t in (features, gradient))
    return (gradient.mean(1, keepdim=True) * features).sum(-1).unflatten(1, grid)[:, None]


def swin():
    torch.manual_seed(0)
    options = {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2)}
    return timm.create_model("swin_tiny_patch4_window7_224", num_classes=5, **options).eval()


def hf_swin():
    from transformers import SwinConfig, SwinForImageClassification

    torch.manual_seed(0)
    sizes = {"image_size": 64, "window_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2]}
    return SwinForImageClassification(SwinConfig(**sizes, num_labels=5)).eval()


ALL = slice(None)
# a model, the layer, size of the image, its axis of channels, its patch tokens, their grid
LAYOUTS = {
    "feature map [B, C, h, w]": (lambda: cnn("resnet18"), "layer3", 64, 1, ALL, (4, 4)),
    "feature map in the middle": (lambda: cnn("densenet121"), "features.denseblock2", 64, 1, ALL, (8, 8)),
    "[B, h, w, C]": (swin, "layers.1", 64, -1, ALL, (8, 8)),
    "[B, h, w, C] inside a block": (swin, "layers.1.blocks.0.norm1", 64, -1, ALL, (8, 8)),
    "tokens that were merged": (hf_swin, "swin.encoder.layers.1.blocks.0.layernorm_before", 64, -1, ALL, (8, 8)),
    "tokens": (lambda: tiny(global_pool="avg", class_token=False), "blocks.1", 32, -1, ALL, (4, 4)),
    "class token": (tiny, "blocks.1.mlp", 32, -1, slice(1, None), (4, 4)),
    "class token and registers": (
        lambda: tiny("vit_small_patch14_reg4_dinov2"), "blocks.2.norm1", 32, -1, slice(5, None), (4, 4),
    ),
    "distillation token": (lambda: tiny("deit_tiny_distilled_patch16_224"), "blocks.0", 32, -1, slice(2, None), (4, 4)),
}  # fmt: skip


@pytest.mark.parametrize("kind", LAYOUTS)
def test_equals_the_formula(kind):
    make, layer, size, channels, cells, grid = LAYOUTS[kind]
    model, x = make(), images(2, size)
    module = model.get_submodule(layer)
    wanted = literal(model, module, x, 1, channels, cells, grid)
    signed = GradCam(model, layer).attribute(x, target=1, relu_attributions=False, upsample=None)
    assert relative_error(signed, wanted) < 1e-5
    found = GradCam(model, module).attribute(x, target=1, upsample=None)
    assert torch.equal(found, signed.relu())
    full = F.interpolate(found, size=(size, size), mode="bilinear")
    assert torch.equal(GradCam(model, module).attribute(x, target=1), full)


@pytest.mark.parametrize("name", CNNS)
def test_equals_captum_on_cnns(name):
    model, x = any_model(name)
    path = GradCam(model).found_layer(x)
    layer = model.get_submodule(path)
    scale = float(GradCam(model).attribute(x, target=2, relu_attributions=False).abs().max())
    assert scale > 0
    for relu in (True, False):
        wanted = LayerGradCam(model, layer).attribute(x, target=2, relu_attributions=relu)
        for given in (None, layer):
            found = GradCam(model, given).attribute(x, target=2, relu_attributions=relu, upsample=None)
            assert torch.allclose(found, wanted, atol=1e-5 * scale)
    channels = GradCam(model, layer).attribute(x, target=2, attr_dim_summation=False, relu_attributions=False)
    wanted = LayerGradCam(model, layer).attribute(x, target=2, attr_dim_summation=False)
    assert relative_error(channels, wanted.detach()) < 1e-5
    at_input = GradCam(model, layer).attribute(
        x, target=2, attribute_to_layer_input=True, attr_dim_summation=False, relu_attributions=False
    )
    wanted = LayerGradCam(model, layer).attribute(x, 2, None, True, attr_dim_summation=False)
    assert relative_error(at_input, (wanted[0] if isinstance(wanted, tuple) else wanted).detach()) < 1e-5


def test_the_layers_shape_is_kept_where_channels_are_last():
    found = GradCam(swin(), "layers.1").attribute(images(2, 64), target=1, attr_dim_summation=False)
    assert found.shape == (2, 8, 8, 32)
    summed = GradCam(swin(), "layers.1").attribute(images(2, 64), target=1, upsample=None, relu_attributions=False)
    signed = GradCam(swin(), "layers.1").attribute(
        images(2, 64), target=1, attr_dim_summation=False, relu_attributions=False
    )
    assert torch.allclose(signed.sum(-1), summed[:, 0], atol=1e-6)


# --- the layer that is chosen -----------------------------------------------------------------------------------------


def hf(kind, **options):
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**HF, **options}, num_labels=3)
    return getattr(transformers, f"{kind}ForImageClassification")(config).eval()


DEFAULTS = {
    "timm, class token": (tiny, 32, "blocks.2.norm1"),
    "timm, mean pool": (lambda: tiny(global_pool="avg"), 32, "blocks.2.norm1"),
    "timm, attention pool": (lambda: tiny("vit_base_patch16_siglip_224"), 32, "blocks.2.norm1"),
    "transformers ViT": (lambda: hf("ViT"), 32, "vit.layers.1.layernorm_before"),
    "transformers DINOv2": (lambda: hf("Dinov2", mlp_ratio=2), 32, "dinov2.encoder.layer.1.norm1"),
    "Swin": (swin, 64, "layers.1.blocks.0.norm1"),
    "ResNet": (lambda: cnn("resnet18"), 64, "layer4"),
    "EfficientNet": (lambda: cnn("tf_efficientnet_lite0"), 64, "bn2"),
    "DenseNet": (lambda: cnn("densenet121"), 64, "features"),
    "convolutions behind attention": (lambda: cnn("mobilevit_xxs"), 64, "final_conv"),
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_good_layer_is_chosen(kind):
    make, size, path = DEFAULTS[kind]
    model, x = make(), images(2, size)
    assert GradCam(model).found_layer(x) == path
    found = GradCam(model).attribute(x, target=1, relu_attributions=False)
    assert torch.isfinite(found).all() and found.abs().max() > 0
    assert relative_error(found, GradCam(model, path).attribute(x, target=1, relu_attributions=False)) < 1e-5
    grid = GradCam(model).attribute(x, target=1, upsample=None)
    assert torch.allclose(InputSpace(GradCam(model)).attribute(x, target=1).sum(), grid.sum(), rtol=1e-5)


def test_a_layer_whose_patches_get_no_gradient_is_refused():
    model, x = tiny(), images()
    for layer in (model.blocks[-1], model.blocks[-1].norm2, model.norm):
        with pytest.raises(
            UnsupportedModelError, match=r"no gradient reaches the patch tokens.*try 'blocks\.2\.norm1'"
        ):
            GradCam(model, layer).attribute(x, target=1)
    pooled = tiny(global_pool="avg")
    assert GradCam(pooled, pooled.blocks[-1]).attribute(x, target=1).max() > 0


def test_a_layer_without_known_cells_is_refused():
    model = swin()
    with pytest.raises(UnsupportedModelError, match=r"'layers\.1\.blocks\.0\.attn\.qkv' \[\d+, 16, 96\].*try"):
        GradCam(model, model.layers[1].blocks[0].attn.qkv).attribute(images(2, 64), target=1)
    with pytest.raises(UnsupportedModelError, match=r"'global_pool'.*layer4"):
        GradCam(cnn("resnet18"), "global_pool").attribute(images(2, 64), target=1)
    with pytest.raises(UnsupportedModelError, match="no layer"):
        GradCam(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 5))).attribute(images(), target=1)


def test_a_layer_that_does_not_run_or_does_not_count():
    model, x = cnn("resnet18"), images(2, 64)
    with pytest.raises(InputError, match="did not run"):
        GradCam(model, nn.Conv2d(3, 3, 1)).attribute(x, target=1)
    with pytest.raises(ValueError, match=r"no layer 'layer9'.*layer1"):
        GradCam(model, "layer9").attribute(x, target=1)
    with pytest.raises(ValueError, match="module"):
        GradCam(lambda z: model(z), "layer4").attribute(x, target=1)

    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = cnn("resnet18"), nn.Conv2d(3, 3, 1)

        def forward(self, z):
            self.idle(z)
            return self.used(z)

    idle = Idle().eval()
    with pytest.raises(InputError, match="'idle' has no influence"):
        GradCam(idle, idle.idle).attribute(x, target=1)


def test_a_score_without_gradient_warns():
    model = cnn("resnet18")
    nn.init.zeros_(model.fc.weight)
    with pytest.warns(UserWarning, match="gradient of the score is 0 at the layer 'layer4'"):
        assert not GradCam(model).attribute(images(2, 64), target=1).any()


# --- what must not matter ---------------------------------------------------------------------------------------------


WAYS = ["in-place modules", "in-place function", "in-place method", "in-place sum"]
PLACES = [(way, layer) for way in WAYS for layer in ("n1", "n2", "c2")] + [("in-place modules", None), (WAYS[0], "r")]


@pytest.mark.parametrize(("way", "layer"), PLACES)
def test_in_place_operations_do_not_matter(way, layer):
    wanted = GradCam(Net().eval(), layer).attribute(images(), target=1)
    net = Net(way).eval()
    assert relative_error(GradCam(net, layer).attribute(images(), target=1), wanted) < 1e-6
    assert net.r.inplace is (way == "in-place modules")


def test_in_place_operations_of_timm():
    model, x = timm.create_model("resnet18", num_classes=5).eval(), images(2, 64)
    assert model.act1.inplace
    before = GradCam(model, "bn1").attribute(x, target=1)
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    assert relative_error(GradCam(model, "bn1").attribute(x, target=1), before) < 1e-6


def test_checkpoints_compilation_and_closures_do_not_matter():
    net, x = Net().eval(), images()
    wanted = GradCam(net, net.c2).attribute(x, target=1)
    again = Net("not reentrant").eval()
    assert relative_error(GradCam(again, again.c2).attribute(x, target=1), wanted) < 1e-6
    compiled = torch.compile(net, backend="eager")
    compiled(x)
    for layer in (net.c2, "c2", compiled.c2):
        assert relative_error(GradCam(compiled, layer).attribute(x, target=1), wanted) < 1e-6
    assert relative_error(GradCam(lambda z: net(z), net.c2).attribute(x, target=1), wanted) < 1e-6
    last = Net().eval().to(memory_format=torch.channels_last)
    found = GradCam(last, last.c2).attribute(x.to(memory_format=torch.channels_last), target=1)
    assert relative_error(found, wanted) < 1e-5


def test_a_module_that_runs_twice_is_read_at_its_last_call():
    class Twice(nn.Module):
        def __init__(self, shared):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b, self.o = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 5)
            self.r = nn.ReLU()
            self.q = self.r if shared else nn.ReLU()

        def forward(self, z):
            return self.o(self.r(self.b(self.q(self.a(z)))).mean((2, 3)))

    once, twice = Twice(False).eval(), Twice(True).eval()
    wanted = GradCam(once, once.r).attribute(images(), target=1)
    assert relative_error(GradCam(twice, twice.r).attribute(images(), target=1), wanted) < 1e-6


def test_height_and_width():
    class Spot(nn.Module):
        def __init__(self):
            super().__init__()
            self.c = nn.Conv2d(3, 1, 4, 4, bias=False)
            nn.init.ones_(self.c.weight)

        def forward(self, z):
            return torch.relu(self.c(z)).mean((2, 3)).repeat(1, 2)

    model, image = Spot().eval(), torch.zeros(1, 3, 40, 72)
    image[..., 8:12, 60:64] = 1
    grid = GradCam(model, model.c).attribute(image, target=0, upsample=None)
    assert grid.shape == (1, 1, 10, 18) and divmod(int(grid.argmax()), 18) == (2, 15)
    full = GradCam(model, model.c).attribute(image, target=0)
    row, column = divmod(int(full.argmax()), 72)
    assert full.shape == (1, 1, 40, 72) and 8 <= row < 12 and 60 <= column < 64
    odd = torch.randn(1, 3, 65, 97)
    assert GradCam(cnn("resnet18")).attribute(odd, target=1).shape == (1, 1, 65, 97)
    assert GradCam(cnn("resnet18")).attribute(odd, target=1, upsample=None).shape == (1, 1, 3, 4)


def test_one_image_does_not_depend_on_the_others():
    for model in (cnn("resnet18"), tiny()):
        x = images(3, 64 if hasattr(model, "layer4") else 32)
        together = GradCam(model).attribute(x, target=[0, 1, 2])
        for i in range(3):
            assert relative_error(GradCam(model).attribute(x[i : i + 1], target=i), together[i : i + 1]) < 1e-5


# --- cost -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [None, "layer4.1.bn2", "layer4"])
def test_cost_in_forwards(layer):
    model, x = cnn("resnet18"), images(1, 224)
    assert 1 <= cost_in_forwards(lambda z: GradCam(model, layer).attribute(z, target=1), model, x) <= 1.15


def test_cost_in_forwards_of_a_transformer():
    model = tiny(img_size=224, patch_size=16, embed_dim=192, depth=12, num_heads=3)
    for layer in (None, "blocks.11.norm1"):
        cost = cost_in_forwards(lambda z: GradCam(model, layer).attribute(z, target=1), model, images(1, 224))  # noqa: B023
        assert 1 <= cost <= 1.15


def test_nothing_in_front_of_the_layer_is_kept():
    saved = []

    def keep(tensor):
        saved.append(tensor.numel())
        return tensor

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = cnn("resnet18")

        def forward(self, z):
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                return self.net(z)

    model, x = Watched().eval(), images(1, 64)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        GradCam(model, model.net.layer4).attribute(x, target=1)
        late = sum(saved)
        saved.clear()
        GradCam(model, model.net.layer1).attribute(x, target=1)
        assert late * 50 < sum(saved)
