"""What a LAYA head says of its layers, and what gradients say of the same features."""

import pytest
import timm
import torch
import torch.nn.functional as F

from tests.attr.test_lrp import conserved
from tests.heads.test_model import scored
from tests.models import images, relative_error, tiny
from tests.trace.test_safety import same, state
from xattr.attr import LayaLayerAttribution, LayaPostHocAttribution, LayaTokenAttribution
from xattr.heads import LayaModel
from xattr.heads.collect import collect
from xattr.metrics import count_flops
from xattr.trace import TargetError, UnsupportedModelError


def vit(**options):
    return scored(LayaModel(tiny(), 5, pool="cls", width=8, **options))


def test_attention_and_contributions_are_the_heads_own():
    model, x = vit(), images()
    seen = model.explain(x)
    method = LayaLayerAttribution(model)
    assert torch.equal(method.attribute(x), seen.alpha)
    exact = method.attribute(x, target=[1, 4], scores="contribution")
    logits = model(x)[[0, 1], [1, 4]]
    assert torch.allclose(exact.sum(1) + model.head.classifier.bias[[1, 4]], logits, atol=1e-6)
    best = model(x).argmax(1)
    wanted = seen.contributions[torch.arange(2), :, best]
    assert torch.allclose(method.attribute(x, scores="contribution"), wanted, atol=1e-6)
    assert torch.equal(method.attribute((x,))[0], seen.alpha)
    assert not method.attribute(x).requires_grad


def test_one_forward_and_no_backward():
    model, x = vit(), images()
    with torch.no_grad():
        forward = count_flops(lambda: model(x))
    for scores in ("attention", "contribution"):
        assert count_flops(lambda: LayaLayerAttribution(model).attribute(x, 1, scores=scores)) <= 1.001 * forward  # noqa: B023


@pytest.mark.parametrize("kind", [LayaLayerAttribution, LayaPostHocAttribution, LayaTokenAttribution])
def test_nothing_changes_and_training_mode_does_not_matter(kind):
    model, x = vit(layer_dropout=0.5), images()
    wanted = kind(model).attribute(x, target=1)
    model.train()
    model.backbone.blocks[1].eval()
    before = state(model)
    assert torch.allclose(kind(model).attribute(x, target=1), wanted, atol=1e-6)
    assert same(before, state(model))


def test_bad_arguments_are_named():
    model, x = vit(), images()
    with pytest.raises(ValueError, match="scores='alpha'"):
        LayaLayerAttribution(model).attribute(x, scores="alpha")
    with pytest.raises(TargetError, match=r"0\.\.4"):
        LayaLayerAttribution(model).attribute(x, target=7, scores="contribution")
    with pytest.raises(ValueError, match="kind='ig'"):
        LayaPostHocAttribution(model).attribute(x, kind="ig")


def test_frozen_gradients_are_the_exact_contributions():
    model, x = vit().double(), images(dtype=torch.float64)
    exact = LayaLayerAttribution(model).attribute(x, 2, scores="contribution")
    method = LayaPostHocAttribution(model)
    for kind in ("gradient_x_input", "integrated_gradients"):
        assert relative_error(method.attribute(x, 2, kind=kind, alpha="frozen"), exact) < 1e-12
        through = method.attribute(x, 2, kind=kind)
        assert relative_error(through, exact) > 1e-2
    cam = method.attribute(x, 2, kind="grad_cam", alpha="frozen")
    assert relative_error(cam, exact.clamp_min(0)) < 1e-12
    alpha = LayaLayerAttribution(model).attribute(x)
    norms = alpha * model.head.classifier.weight[2].norm()
    assert relative_error(method.attribute(x, 2, kind="gradient_norm", alpha="frozen"), norms.detach()) < 1e-12


def test_integrated_gradients_through_the_scorer_are_complete():
    model, x = vit().double(), images(dtype=torch.float64)
    z = model.explain(x).z.detach()
    f = lambda z: (model.head.weigh(model.head.scores(z))[..., None] * z).sum(1) @ model.head.classifier.weight[2]
    found = LayaPostHocAttribution(model).attribute(x, 2, kind="integrated_gradients", n_steps=400)
    assert relative_error(found.sum(1), f(z).detach()) < 1e-4
    gradient = torch.autograd.functional.jacobian(lambda z: f(z).sum(), z)
    assert relative_error(LayaPostHocAttribution(model).attribute(x, 2), (gradient * z).sum(-1)) < 1e-10


CONVOLUTIONAL = {"layers": "stages", "example": images(1, 64)}


def backbones(name, dtype):
    torch.manual_seed(0)
    if name == "vit":
        return LayaModel(tiny().to(dtype), 5, pool="cls", width=8).to(dtype), images(1, dtype=dtype)
    if name == "swin":
        options = {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (1, 2), "num_heads": (1, 2)}
        net = timm.create_model("swin_tiny_patch4_window7_224", **options).to(dtype).eval()
        return LayaModel(net, 5, width=8).to(dtype), images(1, 64, dtype=dtype)
    net = timm.create_model("resnet10t", num_classes=5).to(dtype).eval()
    return LayaModel(net, 5, width=8, **CONVOLUTIONAL).to(dtype), images(1, 64, dtype=dtype)


class OneLayer(torch.nn.Module):
    """The contribution of one layer to one class with alpha held constant, as a model of its own."""

    def __init__(self, model, layer, alpha):
        super().__init__()
        self.model, self.layer, self.alpha = model, layer, alpha

    def forward(self, x):
        z = self.model.head.adapters(collect(self.model.backbone, self.model.layers, x))
        return (self.alpha[..., None] * (z @ self.model.head.classifier.weight.mT))[:, self.layer]


@pytest.mark.parametrize("name", ["vit", "resnet", "swin"])
def test_tokens_and_biases_are_the_contribution(name):
    """The relevance of the biases, which the evidence has by subtraction, against one found by gradients."""
    model, x = backbones(name, torch.float64)
    scored(model)
    seen = LayaTokenAttribution(model).explain(x, target=1)
    exact = LayaLayerAttribution(model).attribute(x, 1, scores="contribution")
    assert relative_error(seen.contributions, exact) < 1e-10
    total = seen.maps.sum((2, 3)) + seen.elsewhere + seen.biases
    assert relative_error(total, exact) < 1e-10
    alpha = model.explain(x).alpha.detach()
    for layer in range(len(model.layers)):
        everything, wanted = conserved(OneLayer(model, layer, alpha), x, "libra")
        assert wanted == pytest.approx(float(exact[0, layer]), rel=1e-9)
        assert everything == pytest.approx(wanted, rel=1e-8)
    assert float(seen.maps.abs().amax((0, 2, 3)).min()) > 0


def test_token_maps_of_a_layer_are_the_gradient_of_its_contribution():
    """On the first block nothing lies between its input and the feature but itself: by hand with plain gradients."""
    model, x = vit(), images()
    seen = LayaTokenAttribution(model).explain(x, target=1, gradients="plain")
    kept = {}
    handle = model.backbone.blocks[0].register_forward_pre_hook(lambda m, args: kept.update(x=args[0]))
    alpha = model.explain(x).alpha.detach()
    z = model.head.adapters(collect(model.backbone, model.layers, x))
    handle.remove()
    contributions = alpha * (z @ model.head.classifier.weight[1])
    for layer in range(3):
        (gradient,) = torch.autograd.grad(contributions[:, layer].sum(), kept["x"], retain_graph=True)
        by_token = (gradient * kept["x"]).sum(-1).detach()
        assert relative_error(seen.maps[:, layer].flatten(1), by_token[:, 1:]) < 1e-5
        assert relative_error(seen.elsewhere[:, layer], by_token[:, 0]) < 1e-5


def test_maps_are_resized_and_a_batch_equals_single_calls():
    model, x = vit(), images(3)
    maps = LayaTokenAttribution(model).attribute(x, target=[0, 1, 2])
    assert maps.shape == (3, 3, 32, 32)
    grid = LayaTokenAttribution(model).attribute(x, target=[0, 1, 2], upsample=None)
    assert torch.allclose(F.interpolate(grid, size=32, mode="bilinear"), maps, atol=1e-5)
    for i in range(3):
        assert relative_error(LayaTokenAttribution(model).attribute(x[i : i + 1], target=i), maps[i : i + 1]) < 1e-5


def test_a_backbone_without_places_is_refused_by_name():
    class Shuffled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.vit = tiny()

        def forward(self, x):
            return self.vit(
                x.flatten(2)[..., torch.randperm(1024, generator=torch.Generator().manual_seed(0))].view_as(x)
            )

    model = scored(LayaModel(Shuffled(), 5, pool="cls", width=8, example=images(1)))
    with pytest.raises(UnsupportedModelError, match="cells lie"):
        LayaTokenAttribution(model).attribute(images())
