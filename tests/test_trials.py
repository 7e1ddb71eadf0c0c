"""Inputs on which today's tools fail their users, for every method that takes such a model."""

import functools

import pytest
import torch
import transformers
from torch import nn

from tests.models import HF, images, relative_error, sharpen, tiny
from tests.trace.test_safety import METHODS, mixed_model, same, state
from xattr import metrics
from xattr.attr import AttentionRollout, GradCam, GradientXToken, GradSkip, IntegratedGradients
from xattr.datasets import cifar_model
from xattr.metrics import Perturber, deletion, insertion_deletion
from xattr.trace import Inputs, OutputError, observe

MAPS = [GradSkip, AttentionRollout, GradientXToken, GradCam]


@pytest.fixture(params=METHODS)
def explain(request):
    kind, arguments = METHODS[request.param]
    return lambda model, x, target=1: kind(model).attribute(x, target=target, **arguments)


def hf(kind, suffix="", **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**HF, num_labels=3, **options)
    return sharpen(getattr(transformers, f"{kind}ForImageClassification{suffix}")(config).eval())


PREFIXES = {
    "class token": (1, tiny),
    "distilled": (2, lambda: tiny("deit_tiny_distilled_patch16_224")),
    "class token, 4 registers": (5, lambda: tiny("vit_small_patch14_reg4_dinov2")),
    "4 registers": (4, lambda: tiny("vit_little_patch16_reg4_gap_256")),
    "rotary, class token, 4 registers": (5, lambda: tiny("vit_small_patch16_dinov3")),
    "none": (0, lambda: tiny("vit_base_patch16_siglip_224")),
    "transformers, registers": (5, lambda: hf("Dinov2WithRegisters", mlp_ratio=2)),
}


@pytest.mark.parametrize("name", PREFIXES)
@pytest.mark.parametrize("kind", MAPS)
def test_prefix_tokens_do_not_shift_the_grid(name, kind):
    prefix, make = PREFIXES[name]
    model, x = make(), images()
    assert kind(model).attribute(x, target=1, upsample=None).shape == (2, 1, 4, 4)
    if kind is GradientXToken:
        # All relevance on one token: only its cell is lit.
        layout = observe(model, Inputs.of(x)).record.require_blocks("a test")
        tokens = torch.zeros(1, layout.tokens)
        tokens[0, prefix + 7] = 1
        assert tokens[:, layout.patches].unflatten(1, layout.grid)[0].nonzero().tolist() == [[1, 3]]


OBJECTS = {
    "ViT": lambda: hf("ViT"),
    "DeiT": lambda: hf("DeiT", "WithTeacher"),
    "DINOv2": lambda: hf("Dinov2", mlp_ratio=2),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_outputs_that_are_no_tensors(explain, name):
    model = OBJECTS[name]()
    x = images()
    wanted = explain(lambda z: model(z).logits, x)
    assert relative_error(explain(model, x), wanted) < 1e-6
    assert relative_error(explain(model, {"pixel_values": x}), wanted) < 1e-6


def test_a_tuple_is_listed_and_one_element_is_explained(explain):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.vit = tiny()

        def forward(self, z):
            return self.vit(z), self.vit.forward_features(z)

    model, x = Two().eval(), images()
    with pytest.raises(OutputError, match=r"0: \[2, 5\], 1: \[2, 17, 32\].*lambda images: model\(images\)\[0\]"):
        explain(model, x)
    assert relative_error(explain(lambda z: model(z)[0], x), explain(model.vit, x)) < 1e-6


def test_one_image_gives_the_map_that_it_has_in_a_batch(explain):
    """A convolution stem with batch norm, whose backward torch computes in another way for one image."""
    model = cifar_model()
    x = torch.nn.functional.interpolate(images(2, 8), scale_factor=4).tanh()
    together = explain(model, x, [3, 5])
    for i, target in enumerate([3, 5]):
        assert relative_error(explain(model, x[i : i + 1], target), together[i : i + 1]) < 1e-5


def doubled(model):
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, z):
            return self.inner(z) * 2.0

    return Doubled()  # in train mode itself; `model` stays as it is


WRAPPED = {
    "partial": lambda model: functools.partial(lambda scale, z: scale * model(z), 2.0),
    "closure": lambda model: lambda z: model(z) * 2.0,
    "bound method": lambda model: doubled(model).forward,
    "DataParallel": lambda model: nn.DataParallel(doubled(model)),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_any_callable_is_explained(explain, name):
    model, x = mixed_model(), images()
    before = state(model)
    wanted = explain(doubled(model), x)
    assert relative_error(explain(WRAPPED[name](model), x), wanted) < 1e-6
    assert same(before, state(model))


def test_blocks_that_are_compiled_one_by_one(explain):
    compilations = []

    def backend(graph, example_inputs):
        compilations.append(graph)
        return graph.forward

    torch.compiler.reset()
    model, x = tiny(), images()
    wanted = explain(model, x)
    for block in model.blocks:
        block.compile(backend=backend)
    model(x)
    before = len(compilations)
    assert before > 0
    assert relative_error(explain(model, x), wanted) < 1e-5
    model(x)
    assert len(compilations) == before


def test_autocast_stays_close(explain):
    model, x = tiny(global_pool="avg"), images()
    wanted = explain(model, x)
    inside = lambda z: torch.autocast("cpu", torch.bfloat16)(model)(z)
    with torch.autocast("cpu", torch.bfloat16):
        around = explain(model, x)
    for found in (around, explain(inside, x)):
        assert found.dtype == torch.float32
        assert float(torch.nn.functional.cosine_similarity(found.flatten(1), wanted.flatten(1)).min()) > 0.95
        assert not torch.equal(found, wanted)  # autocast was on


# --- fills: black is black in pixel space -----------------------------------------------------------------------------

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def shown_by(model, x, baseline):
    """What the model sees in place of a picture that is removed whole, by a metric and as a start of a path."""
    seen = []
    handle = model.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach().clone()))
    deletion(model, x, torch.rand(len(x), 1, 4, 4), 1, unit="patch", baseline=baseline, steps=1)
    removed = seen[-1][-1]
    handle.remove()
    delta = IntegratedGradients(model).attribute(x, baseline, 1, n_steps=20, return_convergence_delta=True)[0].sum()
    with torch.no_grad():
        path = model(x)[:, 1].sum() - model(removed.expand_as(x))[:, 1].sum()
    return removed, float(delta), float(path)


@pytest.mark.parametrize("baseline", ["black", "mean", "blur"])
def test_a_fill_is_what_its_name_says(baseline):
    model = tiny()
    model.pretrained_cfg = {"mean": MEAN.tolist(), "std": STD.tolist(), "input_size": (3, 32, 32)}
    x = (torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)) - MEAN.view(3, 1, 1)) / STD.view(3, 1, 1)
    removed, delta, path = shown_by(model, x, baseline)
    colours = {"black": [-2.118, -2.036, -1.804], "mean": [0.0, 0.0, 0.0], "blur": x[0].mean((1, 2)).tolist()}
    allowed = 0.05 * float(x.max() - x.min()) if baseline == "blur" else 1e-3
    assert (removed.mean((1, 2)) - torch.tensor(colours[baseline])).abs().max() < allowed
    assert delta == pytest.approx(path, rel=0.02)


def test_black_is_never_guessed():
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 5)), torch.rand(1, 3, 8, 8)
    with pytest.raises(ValueError, match="nothing says how this model normalises"):
        deletion(model, x, x, 1, baseline="black")
    with pytest.raises(ValueError, match="nothing says how this model normalises"):
        IntegratedGradients(model).attribute(x, "black", 1)
    with pytest.raises(ValueError, match="does not fit images"):
        deletion(model, x, x, 1, baseline=torch.zeros(1, 3, 7, 7))


# --- maps without a largest value, bounded batches, silence -----------------------------------------------------------


@pytest.mark.parametrize("name", ["zero", "negative", "small"])
def test_metrics_of_maps_that_cannot_be_scaled(name):
    model, x, masks = tiny(), images(2), torch.rand(2, 1, 32, 32) > 0.5
    some = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    maps = {"zero": torch.zeros_like(some), "negative": -some, "small": 1e-9 * some}[name]
    curves = insertion_deletion(model, x, maps, 1, steps=4)
    assert curves.difference.isfinite().all()
    assert (curves.deletion.ties == (1.0 if name == "zero" else 0.0)).all()
    assert metrics.violations(model, x, maps, 1).dtype == torch.bool
    assert metrics.leave_one_out(model, x, maps, 1).isnan().all() == (name == "zero")
    inside = metrics.energy(maps, masks)
    assert (
        torch.equal(inside, torch.zeros(2)) if name != "small" else torch.allclose(inside, metrics.energy(some, masks))
    )
    assert metrics.pointing(maps, masks).isfinite().all()
    assert metrics.segmentation_scores(maps, masks).miou.isfinite().all()


def test_integrated_gradients_from_the_image_itself_is_zero():
    x = images(1)
    assert not IntegratedGradients(tiny()).attribute(x, x, 1).any()


@pytest.mark.parametrize("limit", [None, 8, 1])
def test_no_method_sends_more_images_at_once_than_allowed(limit):
    model, x, seen = tiny(), images(2), []
    handle = model.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    found, delta = IntegratedGradients(model).attribute(
        x, target=torch.tensor([1, 3]), n_steps=64, internal_batch_size=limit, return_convergence_delta=True
    )
    most = max(seen)
    seen.clear()
    insertion_deletion(Perturber(model, "patch", "mean", internal_batch_size=limit), x, torch.rand(2, 1, 4, 4))
    handle.remove()
    assert most <= (limit or 32)
    assert limit is None or max(seen) <= limit
    whole = IntegratedGradients(model).attribute(x, target=torch.tensor([1, 3]), n_steps=64)
    assert relative_error(found, whole) < 1e-5
    assert (delta.abs() <= 0.01 * found.flatten(1).sum(1).abs()).all()


@pytest.mark.filterwarnings("error")
def test_not_one_byte_unless_asked(capfd):
    model, x = tiny(), images(8)
    maps = {}
    for loud in (False, True):
        heat = IntegratedGradients(model).attribute(x, target=1, n_steps=8, internal_batch_size=4, show_progress=loud)
        maps[loud] = heat, insertion_deletion(model, x, heat, 1, steps=4, show_progress=loud).difference
        out, err = capfd.readouterr()
        assert out == ""
        assert ("100%" in err) == loud
        assert loud or err == ""
    assert all(torch.equal(a, b) for a, b in zip(*maps.values(), strict=True))
