"""Integrated Gradients: Captum's numbers, in bounded batches, on any input form."""

import captum.attr
import pytest
import torch

from tests.models import images, relative_error, tiny
from xattr.attr import IntegratedGradients


@pytest.fixture(scope="module")
def model():
    return tiny()


@pytest.mark.parametrize("target", [1, [0, 3], torch.tensor([0, 3]), -1])
def test_equals_captum(model, target):
    x = images()
    base = torch.full_like(x[:1], 0.1)
    for arguments in ({}, {"baselines": base.expand_as(x), "n_steps": 7, "method": "riemann_trapezoid"}):
        wanted = captum.attr.IntegratedGradients(model).attribute(x, target=target, **arguments)
        assert relative_error(IntegratedGradients(model).attribute(x, target=target, **arguments), wanted) < 1e-5


@pytest.mark.parametrize("limit", [None, 8, 1])
def test_batches_never_exceed_the_limit(model, limit):
    x, seen = images(3), []
    handle = model.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[0]))
    found = IntegratedGradients(model).attribute(x, target=[0, 1, 2], n_steps=20, internal_batch_size=limit)
    handle.remove()
    assert max(seen) <= (limit or 32)
    wanted = captum.attr.IntegratedGradients(model).attribute(x, target=[0, 1, 2], n_steps=20)
    assert relative_error(found, wanted) < 1e-5


def test_completeness(model):
    x = images()
    found, delta = IntegratedGradients(model).attribute(x, target=1, n_steps=300, return_convergence_delta=True)
    change = model(x)[:, 1] - model(torch.zeros_like(x))[:, 1]
    assert delta.shape == (2,)
    assert torch.allclose(found.sum((1, 2, 3)) - delta, change, atol=1e-4)
    assert float((delta / change).detach().abs().max()) < 0.01
    assert IntegratedGradients(model).has_convergence_delta()


def test_baseline_equal_to_the_input_gives_zero(model):
    x = images()
    assert torch.equal(IntegratedGradients(model).attribute(x, baselines=x, target=1), torch.zeros_like(x))


def test_several_inputs_and_extra_arguments():
    f = lambda a, b, scale, factor: ((a * b).sum((1, 2, 3)) * scale)[:, None] * factor
    a, b, scale = images(3), images(3) + 1, torch.tensor([1.0, 2.0, 3.0])
    found = IntegratedGradients(f).attribute(
        (a, b), target=0, additional_forward_args=(scale, 2), internal_batch_size=2
    )
    wanted = captum.attr.IntegratedGradients(f).attribute((a, b), target=0, additional_forward_args=(scale, 2))
    assert isinstance(found, tuple)
    for one, other in zip(found, wanted, strict=True):
        assert relative_error(one, other) < 1e-5


def test_linear_model_is_explained_exactly():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)).double()
    x = images(2, 2, dtype=torch.float64)
    found = IntegratedGradients(net).attribute(x, target=2)
    assert found.dtype == torch.float64
    assert torch.allclose(found.flatten(1), x.flatten(1) * net[1].weight[2], atol=1e-6)


def test_batch_norm_stem_gives_one_image_the_map_it_has_in_a_batch():
    """torch's own BatchNorm backward is wrong at batch 1 when the gradient arrives token by token."""

    class Stem(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.norm = torch.nn.Conv2d(3, 8, 4, 4), torch.nn.BatchNorm2d(8)
            self.head = torch.nn.Linear(8, 5)
            torch.nn.init.normal_(self.norm.weight)

        def forward(self, x):
            tokens = self.norm(self.conv(x)).flatten(2).transpose(1, 2)
            return self.head(torch.relu(tokens).pow(2).mean(1))

    model, x = Stem().eval(), images(2)
    both = IntegratedGradients(model).attribute(x, target=1, n_steps=8)
    alone = IntegratedGradients(model).attribute(x[:1], target=1, n_steps=8, internal_batch_size=1)
    assert relative_error(alone, both[:1]) < 1e-5


def test_internal_batch_size_must_be_positive(model):
    with pytest.raises(ValueError, match="internal_batch_size"):
        IntegratedGradients(model).attribute(images(), target=1, internal_batch_size=0)
