"""Many ways of writing products, gates and normalisations: the relevance of the input is the value, or one error.

All functions are free of biases, so that under a complete rule set input times gradient sums to the value.
"""

import pytest
import torch
import torch.nn.functional as F

from xattr.attr import LRP
from xattr.rules import gamma
from xattr.trace import UnsupportedModelError


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X, W, C, PICTURE = draw(2, 8), draw(8, 8, seed=5), draw(8, seed=6), draw(2, 4, 6, 6)
TOKENS, V = draw(2, 5, 8, seed=7), draw(8, 8, seed=8)


def total(function, x, rules):
    """Relevance of each input, and the value."""
    relevance, delta = LRP(lambda z: function(z).flatten(1).sum(1)).attribute(
        x, rule=rules, return_convergence_delta=True
    )
    return relevance.flatten(1).sum(1), relevance.flatten(1).sum(1) - delta


def in_place_product(x):
    y = x @ W
    y *= y
    return y


COMPLETE = {
    "a mask": lambda x: x * (x > 0),
    "a detached factor": lambda x: x * (x @ W).detach(),
    "one hot": lambda x: F.one_hot(x.argmax(1), 8).to(x.dtype) * x,
    "mean over a mask": lambda x: ((x @ W) * (x > 0)).sum(1, keepdim=True) / (x > 0).sum(1, keepdim=True),
    "a detached weight": lambda x: F.linear(x, (x @ W).detach()),
    "an activation and a mask": lambda x: x @ W + torch.tanh(x) * (x > 0),
    "a mask of masks": lambda x: x.masked_fill((x > 0) * (x < 1), 0),
    "a constant over a norm": lambda x: x * (C / x.norm(dim=1, keepdim=True)),
    "one over a norm": lambda x: x * (1 / x.norm(dim=1, keepdim=True)),
    "lerp by a gate": lambda x: torch.lerp(x @ W, x, torch.sigmoid(x)),
    "lerp by a number": lambda x: torch.lerp(x @ W, x, 0.3),
    "prelu with a slope of the image": lambda x: F.prelu(x, (x @ W)[0].abs()),
    "softshrink": lambda x: F.softshrink(x.abs()),
    "hardshrink": F.hardshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 0.0),
    "RMS by a power": lambda x: x * x.pow(2).mean(1, keepdim=True).pow(exponent=-0.5),
    "RMS by a tensor's power": lambda x: x * x.pow(2).mean(1, keepdim=True).pow(torch.tensor(-0.5)),
    "negative gate": lambda x: F.relu(x @ W) * (-torch.sigmoid(x)),
    "largest gate": lambda x: x * torch.sigmoid(x @ W).amax(1, keepdim=True),
    "gate times gate": lambda x: torch.sigmoid(x) * torch.sigmoid(x @ W) * x,
    "sigmoid times tanh": lambda x: torch.sigmoid(x @ W) * torch.tanh(x),
    "square root": lambda x: x.abs().sqrt(),
    "sum of squares": lambda x: x.square().sum(1, keepdim=True),
    "generalised mean": lambda x: x.abs().pow(3).mean(1, keepdim=True).pow(1 / 3),
    "product in place": in_place_product,
    "addcmul by name": lambda x: torch.addcmul(x, tensor1=x @ W, tensor2=x),
    "addmm by name": lambda x: torch.addmm(x, mat1=x @ W @ x.T, mat2=x),
    "three factors": lambda x: torch.einsum("bi,bi,bi->bi", x, x @ W, x),
    "elu in place": lambda x: F.elu_(x @ W),
    "selu in place": lambda x: torch.selu_(x @ W),
    "bilinear": lambda x: F.bilinear(x, x @ W, draw(3, 8, 8)),
    "a softmax as weight": lambda x: F.linear(x, (x @ W).softmax(1)),
}
PICTURES = {
    "grid of the image": lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1) * 0.3, align_corners=False),
    "interpolated gate": lambda x: F.interpolate(torch.sigmoid(F.avg_pool2d(x, 2)), scale_factor=2) * x,
    "gated bank of filters": lambda x: F.conv2d(
        x[:1], (torch.sigmoid(x[:1].mean((2, 3))) @ draw(4, 36, seed=3)).view(1, 4, 3, 3)
    ).expand(2, -1, -1, -1),
    "scales of the image": lambda x: F.group_norm(x[:1], 2, weight=x[0].mean((1, 2))).expand(2, -1, -1, -1),
    "batch norm by name": lambda x: torch.batch_norm(
        x, weight=C[:4], bias=torch.zeros(4).double(), running_mean=torch.zeros(4).double(),
        running_var=C[4:].abs(), training=False, momentum=0.1, eps=1e-5, cudnn_enabled=False,
    ),
    "instance norm": lambda x: F.instance_norm(x, weight=C[:4]) * draw(4, 6, 6, seed=9),
    "pooled products": lambda x: torch.einsum("bihw,bjhw->bij", x, x),
}  # fmt: skip
ATTENTIONS = {
    "mask of the image": lambda x: F.scaled_dot_product_attention(
        x @ W, x @ V, x, attn_mask=(x.sum(-1) > 0)[:, None] | torch.eye(5).bool()
    ),
    "infinite mask": lambda x: F.scaled_dot_product_attention(
        x @ W, x @ V, x, attn_mask=torch.zeros(2, 5, 5).double().masked_fill(
            ~((x.sum(-1) > 0)[:, None] | torch.eye(5).bool()), -torch.inf
        )
    ),
    "where": lambda x: torch.where(x.sum(-1)[:, None] > 0, (x @ W @ x.mT).softmax(-1), 0.0) @ x,
    "linear": lambda x: F.normalize(x @ W, dim=-1) @ (F.normalize(x, dim=-1).mT @ x),
}  # fmt: skip


@pytest.mark.parametrize("rules", ["libra", "attnlrp", "gamma"])
@pytest.mark.parametrize("name", [*COMPLETE, *PICTURES])
def test_relevance_sums_to_the_value(name, rules):
    function, x = (COMPLETE[name], X) if name in COMPLETE else (PICTURES[name], PICTURE)
    found, value = total(function, x, rules)
    assert torch.isfinite(value).all() and value.abs().max() > 1e-3
    if name in ("gated bank of filters", "scales of the image", "addmm by name"):
        found, value = found.sum(), value.sum()  # these mix the images
    assert torch.allclose(found, value, rtol=1e-9)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_written_otherwise(name):
    for rules in ("libra", "gamma"):
        found, value = total(ATTENTIONS[name], TOKENS, rules)
        assert torch.allclose(found, value, rtol=1e-9)
    found, value = total(ATTENTIONS[name], TOKENS, "attnlrp")
    assert torch.isfinite(found).all() and torch.isfinite(value).all()


def in_view(x):
    y = x @ W
    y[:, :4].sigmoid_()
    return y


REFUSED = {
    "sigmoid in place, through a view": (in_view, "sigmoid_"),
    "sigmoid written out": (lambda x: x @ W + torch.ones_like(x) / (1 + torch.exp(-x)), "exp"),
    "threshold with a number": (lambda x: torch.threshold(x, 0.1, 20.0), "threshold"),
    "number of entries": (lambda x: x + x.norm(p=0, dim=1, keepdim=True), "norm"),
    "attention to constants": (
        lambda x: x + F.scaled_dot_product_attention((x @ W)[:, None], draw(2, 5, 8), draw(2, 5, 8))[:, 0],
        "scaled_dot_product_attention",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_covered_is_named(name):
    function, reason = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=reason):
        total(function, X, "libra")
    assert torch.isfinite(total(function, X, "plain")[0]).all()


def test_gates_are_constant_under_cp_too():
    for name in (
        "negative gate",
        "RMS by a power",
        "RMS by a tensor's power",
        "largest gate",
        "a constant over a norm",
    ):
        found, value = total(COMPLETE[name], X, "cp")
        assert torch.allclose(found, value, rtol=1e-9), name
    found, value = total(PICTURES["interpolated gate"], PICTURE, "cp")
    assert torch.allclose(found, value, rtol=1e-9)


def test_large_gammas_and_layers_of_one_output_in_half_precision():
    half = W[:1].half()
    found = LRP(lambda z: F.linear(z, half)).attribute(200 * X.half(), target=0, rule=gamma(1e4, 1e4))
    wanted = LRP(lambda z: F.linear(z, half.double())).attribute(
        200 * X.half().double(), target=0, rule=gamma(1e4, 1e4)
    )
    assert torch.allclose(found.double(), wanted, rtol=0.02, atol=1e-3 * float(wanted.abs().max()))
    for rules in ("epsilon", "gamma"):
        together = LRP(lambda z: F.linear(z, C)).attribute(X, rule=rules)
        alone = LRP(lambda z: F.linear(z, C)).attribute(X[:1], rule=rules)
        assert torch.allclose(together[:1], alone)
