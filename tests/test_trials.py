"""Inputs on which today's tools fail their users, for every method that takes such a model."""

import functools

import pytest
import torch
import transformers
from torch import nn

from tests.models import HF, images, relative_error, sharpen, tiny
from tests.trace.test_safety import METHODS, mixed_model, same, state
from xattr.attr import AttentionRollout, GradCam, GradientXToken, GradSkip
from xattr.datasets import cifar_model
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
