"""Parameter randomisation: what is randomised, in which order, on a copy, and how maps are compared."""

import sys

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.utils.prune
from skimage.metrics import structural_similarity
from torch import nn

from tests.models import EinsumAttentionViT, images, tiny
from tests.trace.test_safety import mixed_model, same, state
from xattr.attr import CentreMap, GradientXToken, GradSkip
from xattr.metrics import entropy
from xattr.metrics.randomisation import complexity_rise, randomisation


def gradskip(model, x, target):
    return GradSkip(model).attribute(x, target=target)


def spied(model, x=None, **arguments):
    """The result, and the parameters of the model that was explained, at each call."""
    seen = []

    def explain(one, given, target):
        seen.append({name: p.detach().clone() for name, p in one.named_parameters(remove_duplicate=False)})
        return torch.arange(256.0).view(1, 1, 16, 16).expand(len(given), -1, -1, -1)

    return randomisation(explain, model, images(1) if x is None else x, **arguments), seen


def changed(one, other):
    return {name for name in one if not torch.equal(one[name], other[name])}


def of(layer, names, model):
    return {n for n in names if (n == layer or n.startswith(f"{layer}.")) and len(model.get_parameter(n).unique()) > 1}


@pytest.mark.parametrize("mode", ["cascade", "independent"])
def test_what_is_randomised(mode):
    model = tiny()
    found, seen = spied(model, mode=mode)
    assert len(seen) == len(found.layers) + 1
    assert found.layers[0] == "head"
    assert set(found.layers[-3:]) == {"patch_embed.proj", "pos_embed", "cls_token"}
    blocks = [name.split(".")[1] for name in found.layers if name.startswith("blocks.")]
    assert blocks == sorted(blocks, reverse=True)
    assert found.layers.index("blocks.2.mlp.fc1") > found.layers.index("blocks.2.mlp.fc2")
    sofar = set()
    for layer, now in zip(found.layers, seen[1:], strict=True):
        own = {layer} if layer in seen[0] else {n for n in seen[0] if n.rpartition(".")[0] == layer}
        own = {name for name in own if len(seen[0][name].unique()) > 1}
        assert own
        sofar = sofar | own if mode == "cascade" else own
        assert changed(seen[0], now) == sofar
        for name in sofar:
            assert torch.equal(now[name].flatten().sort().values, seen[0][name].flatten().sort().values)
            if len(now[name].unique()) == now[name].numel():
                assert bool((now[name] != seen[0][name]).all())
    if mode == "cascade":
        assert sofar == set(seen[0])


def test_new_values_depend_on_the_seed_and_the_name_alone():
    model = tiny()
    model.blocks[2].mlp.fc1.load_state_dict(model.blocks[1].mlp.fc1.state_dict())
    _, after = spied(model, layers=["blocks"])[1]
    assert bool((after["blocks.1.mlp.fc1.weight"] != after["blocks.2.mlp.fc1.weight"]).any())
    layers = ["head", "blocks.1", "cls_token"]
    one, other, alone = (
        spied(model, layers=names, mode=mode)[1][1:]
        for names, mode in ((layers, "cascade"), (layers[::-1], "cascade"), (layers, "independent"))
    )
    assert not changed(one[-1], other[-1])
    for name in one[-1]:
        assert any(torch.equal(one[-1][name], values[name]) for values in alone)
    assert changed(one[-1], spied(model, layers=layers, seed=1)[1][-1]) == {
        name for layer in layers for name in of(layer, one[-1], model)
    }


def test_the_order_is_that_of_the_forward():
    """The modules of this model are registered kind by kind, and run block by block."""
    found, _ = spied(EinsumAttentionViT())
    assert found.layers == ("head", "out.1", "qkv.1", "norms.1", "out.0", "qkv.0", "norms.0", "stem")


class Shared(nn.Module):
    """A weight that two layers share, torch's attention, and a root that owns a parameter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.rand(3))
        self.first, self.last = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)
        self.last.weight = self.first.weight
        self.attention = nn.MultiheadAttention(3, 1, batch_first=True)

    def forward(self, x):
        x = self.first(x.flatten(2).mT * self.scale)
        return self.last(self.attention(x, x, x)[0]).mean(1)


def test_shared_weights_change_together_and_stay_shared():
    model = Shared()
    found, seen = spied(model, layers=["last", "first"])
    assert changed(*seen[:2]) == {"first.weight", "last.weight", "last.bias"}
    assert torch.equal(seen[1]["first.weight"], seen[1]["last.weight"])
    assert not changed(*seen[1:])
    found, seen = spied(model, mode="independent")
    attention = {"attention.out_proj", "attention"}  # the projection is not called: it runs with its attention
    assert found.layers[0] == "last"
    assert set(found.layers[1:3]) == attention
    assert found.layers[3:] == ("first", "scale")
    assert changed(seen[0], seen[-2]) == {"first.weight", "last.weight"}
    assert changed(seen[0], seen[-1]) == {"scale"}
    assert model.last.weight is model.first.weight


def test_parametrised_pruned_and_wrapped_models():
    model = tiny(depth=1)
    nn.utils.parametrizations.weight_norm(model.blocks[0].mlp.fc1)
    nn.utils.prune.l1_unstructured(model.blocks[0].attn.qkv, "weight", amount=0.3)
    model.blocks[0].mlp.fc2 = nn.utils.parametrizations.orthogonal(model.blocks[0].mlp.fc2)
    model(images(1))
    before = state(model)
    found, seen = spied(nn.DataParallel(model) if not torch.cuda.is_available() else model)
    assert not any("parametrizations" in name or name.startswith("module.") for name in found.layers)
    place = found.layers.index("blocks.0.mlp.fc1")
    weight = "blocks.0.mlp.fc1.parametrizations.weight.original"
    assert changed(seen[place], seen[place + 1]) == {"blocks.0.mlp.fc1.bias", weight + "0", weight + "1"}
    maps = lambda one, x, target: one.blocks[0].attn.qkv.weight.detach()[None, None]
    pruned = randomisation(maps, model, images(1), layers=["blocks.0.attn.qkv.bias", "blocks.0.attn.qkv"])
    assert float(pruned.spearman[0]) == 1
    assert same(before, state(model))


def test_nothing_of_the_users_changes_and_the_copy_is_in_evaluation_mode():
    model, x = mixed_model(), images()
    before, image, random = state(model), x.clone(), torch.get_rng_state()
    modes, calls = set(), []

    def explain(one, given, target):
        assert one is not model
        modes.update(part.training for part in one.modules())
        calls.append(target)
        with torch.no_grad():
            one.vit.cls_token.zero_()  # even what an explanation does to its model
        if len(calls) > 2:
            raise RuntimeError("inside the explanation")
        return gradskip(one, given, target)

    with pytest.raises(RuntimeError, match="inside the explanation"):
        randomisation(explain, model, x)
    complexity_rise(gradskip, model, x, 1)
    assert modes == {False}
    assert all(torch.equal(target, calls[0]) for target in calls)
    assert same(before, state(model))
    assert torch.equal(x, image)
    assert torch.equal(random, torch.get_rng_state())


def test_the_class_is_that_of_the_trained_model():
    model, x, asked = tiny(), images(3), []
    explain = lambda one, given, target: asked.append(target) or gradskip(one, given, target)
    found = randomisation(explain, model, x, layers=["head", "blocks.0"])
    wanted = model(x).argmax(1)
    assert all(torch.equal(target, wanted) for target in asked)
    assert torch.equal(found.spearman, randomisation(gradskip, model, x, wanted, layers=["head", "blocks.0"]).spearman)
    assert torch.equal(found.ssim, randomisation(gradskip, model, x, wanted.tolist(), layers=["head", "blocks.0"]).ssim)


def test_values_against_other_libraries_and_image_by_image():
    model, x, maps = tiny(), images(3), []
    target = model(x).argmax(1)

    def explain(one, given, classes):
        maps.append(GradientXToken(one).attribute(given, target=classes).double())
        other = torch.linspace(-1, 1, 32).expand_as(maps[-1])
        return torch.cat([maps[-1] - other, other], 1)  # channels are summed

    found = randomisation(explain, model, x, target, layers=["blocks.2", "blocks.0"])
    for step in range(2):
        for i in range(3):
            one, other = (maps[k][i, 0].double().numpy() for k in (0, step + 1))
            rho = scipy.stats.spearmanr(one.ravel(), other.ravel()).statistic
            assert float(found.spearman[step, i]) == pytest.approx(rho, abs=1e-6)
            one, other = (m / np.abs(m).max() for m in (one, other))
            wanted = structural_similarity(
                one, other, data_range=2, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
            )
            assert float(found.ssim[step, i]) == pytest.approx(wanted, abs=1e-6)
    assert found.undefined.tolist() == [0, 0]
    order = torch.tensor([2, 0, 1])
    other = randomisation(explain, model, x[order], target[order], layers=["blocks.2", "blocks.0"])
    assert torch.allclose(other.spearman, found.spearman[:, order], atol=1e-3)
    alone = [randomisation(explain, model, x[i : i + 1], target[i : i + 1], layers=["blocks.2"]) for i in range(3)]
    assert torch.allclose(torch.cat([part.ssim for part in alone], 1), found.ssim[:1], atol=1e-3)


def test_the_test_tells_methods_that_look_at_the_weights_from_those_that_do_not():
    model, x = tiny(), images(3)
    control = randomisation(lambda one, given, target: CentreMap(one).attribute(given), model, x)
    assert torch.allclose(control.spearman, torch.ones(1, dtype=torch.float64))
    assert torch.allclose(control.ssim, torch.ones(1, dtype=torch.float64))
    found = randomisation(gradskip, model, x)
    assert float(found.spearman[-1].abs().max()) < 0.7
    assert float(found.ssim[-1].max()) < 0.7
    assert (found.mode, found.seed, found.higher_is_better) == ("cascade", 0, False)
    # what an explanation draws is no difference between models
    noise = randomisation(lambda one, given, target: torch.rand(3, 1, 16, 16), model, x, layers=["head"])
    assert torch.equal(noise.spearman, torch.ones(1, 3, dtype=torch.float64))
    noisy = lambda one, given, target: gradskip(one, given, target) + torch.rand(3, 1, 32, 32)
    first, _ = randomisation(noisy, model, x, layers=["head"]), torch.rand(5)
    assert torch.equal(first.ssim, randomisation(noisy, model, x, layers=["head"]).ssim)


def test_maps_without_order_are_counted():
    calls = []

    def explain(one, given, target):
        calls.append(one)
        maps = torch.rand(5, 1, 11, 11, generator=torch.Generator().manual_seed(len(calls)))
        maps[0] = 3
        if len(calls) > 1:
            maps[1], maps[2, 0, 0, 0], maps[3, 0, 0, 0] = 0, torch.nan, torch.inf
        return maps

    found = randomisation(explain, tiny(), images(5), layers=["head", "norm"])
    assert found.spearman.isnan().tolist() == found.ssim.isnan().tolist() == [[True, True, True, True, False]] * 2
    assert found.undefined.tolist() == [4, 4]


def test_complexity_rise():
    model, x, maps = tiny(), images(3), []
    found = complexity_rise(lambda *given: maps.append(gradskip(*given)) or maps[-1], model, x, 1)
    before, after = (entropy(m) for m in maps)
    assert torch.allclose(found, (after - before) / before)
    assert bool((found != 0).all())
    _, seen = spied(model)
    final = tiny()
    final.load_state_dict({**final.state_dict(), **seen[-1]})  # all weights, as at the end of the cascade
    assert torch.allclose(gradskip(final, x, 1), maps[1], atol=1e-6)
    pixel = torch.zeros(3, 1, 4, 4)
    pixel[0, 0, 0, 0], pixel[2] = 1, 1
    shown = iter([pixel, torch.ones_like(pixel)])
    undefined = complexity_rise(lambda *given: next(shown), model, x, 1)
    assert undefined.isnan().tolist() == [True, True, False]
    assert float(undefined[2]) == 0


def test_the_callers_gradient_state_does_not_matter():
    model, x = tiny(), images()

    def explain(one, given, target):
        leaf = given.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(one(leaf)[:, 1].sum(), leaf)
        return gradient

    wanted = randomisation(explain, model, x, 1, layers=["head"])
    with torch.no_grad():
        found = randomisation(explain, model.requires_grad_(False), x, 1, layers=["head"])
    assert torch.equal(found.spearman, wanted.spearman)
    with torch.inference_mode():
        found = randomisation(gradskip, model, x, 1, layers=["head"])
    assert torch.equal(found.spearman, randomisation(gradskip, model, x, 1, layers=["head"]).spearman)


def test_additional_arguments():
    class Two(EinsumAttentionViT):
        def forward(self, x, factor):
            return factor * super().forward(x)

    model, x, asked = Two(), images(), []
    explain = lambda one, given, target: asked.append(target) or given
    randomisation(explain, model, x, layers=["head"], additional_forward_args=-1)
    assert torch.equal(asked[0], EinsumAttentionViT.forward(model, x).argmin(1))


def test_without_scikit_image(monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage.metrics", None)
    with pytest.raises(ModuleNotFoundError, match=r"scikit-image: pip install 'captum-xattr\[metrics\]'"):
        randomisation(gradskip, tiny(), images())
    assert complexity_rise(gradskip, tiny(), images(), 1).shape == (2,)


def test_what_it_refuses():
    model, x = tiny(), images()
    with pytest.raises(ValueError, match="mode='both'"):
        randomisation(gradskip, model, x, mode="both")
    with pytest.raises(
        ValueError, match=r"found layers \['block.1'\]; expected modules with parameters, such as block"
    ):
        randomisation(gradskip, model, x, layers=["block.1"])
    for layers in ([], ["hea"], ["head", "head.weigh"]):
        with pytest.raises(ValueError, match=r"found layers \["):
            randomisation(gradskip, model, x, layers=layers)
    with pytest.raises(ValueError, match="found a function; expected a module that has parameters"):
        randomisation(gradskip, lambda z: z, x)
    with pytest.raises(ValueError, match="found a Identity; expected a module that has parameters"):
        complexity_rise(gradskip, nn.Identity(), x)
    with pytest.raises(ValueError, match="windows of 11 x 11 pixels"):
        randomisation(lambda one, given, target: given[..., :8, :], model, x)
    with pytest.raises(ValueError, match=r"explain returned \[1, 3, 32, 32\] for 2 images"):
        randomisation(lambda one, given, target: given[:1], model, x)
    with pytest.raises(ValueError, match="explain returned tuple for 2 images"):
        complexity_rise(lambda one, given, target: (given,), model, x)
    sizes = iter([32, 16])
    with pytest.raises(ValueError, match="expected one shape"):
        randomisation(lambda one, given, target: given[..., : next(sizes)], model, x, layers=["head"])


def test_a_method_is_no_function_of_a_model():
    model = tiny()
    with pytest.raises(ValueError, match="explain is a GradSkip; expected a function"):
        randomisation(GradSkip(model), model, images())
