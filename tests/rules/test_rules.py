"""Backward rules: values stay, and the FullGrad sum of every covered model is its logit."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.models import EinsumAttentionViT, images, sharpen, tiny
from tests.oracles import test_oracle as scenes
from xattr.rules import ATTNLRP, CP, GAMMA, LIBRA, PLAIN, RULE_SETS, epsilon, rule_set
from xattr.trace import Inputs, gradients, observe


def explained(forward, *tensors, rules=LIBRA):
    """Value and gradients of a function of several tensors, all of them observed."""
    seen = observe(forward, Inputs(tensors), rules=rules, record=False)
    return seen.scores, gradients(seen.scores.flatten(1).sum(1), list(seen.roots))


def full_grad_sum(model, x, rules="libra", target=1):
    """`<x, df/dx> + sum_b <b, df/db>` over every bias, embedding and token, with one image."""
    biases = {
        name: p.detach()
        for name, p in model.named_parameters()
        if (p.ndim == 1 and name.endswith("bias")) or "token" in name or "pos_embed" in name
    }
    forward = lambda image, *values: torch.func.functional_call(model, dict(zip(biases, values, strict=True)), (image,))
    seen = observe(forward, Inputs((x, *biases.values())), rules=rules, record=False)
    found = gradients(seen.scores[:, target], list(seen.roots))
    total = sum((g * v).sum() for g, v in zip(found, (x, *biases.values()), strict=True))
    return float(total.detach()), float(seen.scores[0, target].detach())


@pytest.mark.parametrize("kind", scenes.MODELS)
def test_full_grad_sum_is_the_logit(kind):
    model, x = scenes.build(kind), scenes.images(1)
    total, logit = full_grad_sum(model, x)
    assert total == pytest.approx(logit, rel=1e-10)
    plain, _ = full_grad_sum(model, x, "plain")
    assert abs(plain - logit) > 1e-3 * abs(logit)


@pytest.mark.parametrize("name", ["eva02_tiny_patch14_224", "beit_base_patch16_224", "vit_base_patch16_siglip_224"])
def test_full_grad_sum_of_gated_mlps_biases_in_attention_and_pools(name):
    model, x = tiny(name).double(), images(1, dtype=torch.float64)
    total, logit = full_grad_sum(model, x)
    assert total == pytest.approx(logit, rel=1e-10)


def test_full_grad_sum_of_a_handwritten_transformer():
    model = sharpen(EinsumAttentionViT()).double()
    total, logit = full_grad_sum(model, images(1, dtype=torch.float64))
    assert total == pytest.approx(logit, rel=1e-10)


X = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
U = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
W, B = torch.linspace(0.5, 2, 8, dtype=torch.float64), torch.linspace(-1, 1, 8, dtype=torch.float64)


def centred(x):
    return x - x.mean(-1, keepdim=True)


# operation, and the same value written with the constant part detached
CASES = {
    "layer_norm": (
        lambda x: F.layer_norm(x, (8,), W, B, 1e-6),
        lambda x: centred(x) * (x.var(-1, keepdim=True, unbiased=False) + 1e-6).rsqrt().detach() * W + B,
    ),
    "layer_norm over two axes, no affine": (
        lambda x: F.layer_norm(x, (3, 8)),
        lambda x: (
            (x - x.mean((1, 2), keepdim=True)) * (x.var((1, 2), keepdim=True, unbiased=False) + 1e-5).rsqrt().detach()
        ),
    ),
    "rms_norm": (
        lambda x: F.rms_norm(x, (8,), W, 1e-6),
        lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt().detach() * W,
    ),
    "rms_norm by hand": (
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * W,
        lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt().detach() * W,
    ),
    "rms_norm by a negative power": (
        lambda x: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).pow(-0.5),
        lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt().detach(),
    ),
    "rms_norm by one over": (
        lambda x: x * (1 / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()),
        lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt().detach(),
    ),
    "gate of the mean": (
        lambda x: x * torch.sigmoid(x.mean(-1, keepdim=True)).expand_as(x),
        lambda x: x * torch.sigmoid(x.mean(-1, keepdim=True)).detach(),
    ),
    "glu": (
        lambda x: F.glu(x.repeat(1, 1, 2)),
        lambda x: x * torch.sigmoid(x).detach(),
    ),
    "layer_norm by hand": (
        lambda x: W * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + B,
        lambda x: W * centred(x) / (x.std(-1, keepdim=True) + 1e-6).detach() + B,
    ),
    "group_norm": (
        lambda x: F.group_norm(x, 3, W[:3], B[:3]),
        lambda x: (
            centred(x) * (x.var(-1, keepdim=True, unbiased=False) + 1e-5).rsqrt().detach() * W[:3, None] + B[:3, None]
        ),
    ),
    "normalize": (lambda x: F.normalize(x, dim=-1), lambda x: x / x.norm(dim=-1, keepdim=True).detach()),
    "gelu": (F.gelu, lambda x: x * (0.5 * (1 + torch.erf(x / math.sqrt(2)))).detach()),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), lambda x: x * (F.gelu(x, approximate="tanh") / x).detach()),
    "gelu by hand": (
        lambda x: 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * torch.pow(x, 3.0)))),
        lambda x: x * (0.5 * (1.0 + torch.tanh(0.8 * (x + 0.04 * torch.pow(x, 3.0))))).detach(),
    ),
    "quick gelu": (lambda x: x * torch.sigmoid(1.702 * x), lambda x: x * torch.sigmoid(1.702 * x).detach()),
    "silu": (F.silu, lambda x: x * torch.sigmoid(x).detach()),
    "silu in place": (lambda x: F.silu(x + 0, inplace=True), lambda x: x * torch.sigmoid(x).detach()),
    "mish": (F.mish, lambda x: x * torch.tanh(F.softplus(x)).detach()),
    "hardswish": (F.hardswish, lambda x: x * (F.relu6(x + 3) / 6).detach()),
    "relu": (F.relu, F.relu),
    "gated MLP": (
        lambda x: F.silu(x * W) * (x * B),
        lambda x: (p := (x * W) * torch.sigmoid(x * W).detach() * (x * B)).detach() + 0.5 * (p - p.detach()),
    ),
    "product in place": (
        lambda x: (x * W).mul_(x * B),
        lambda x: (p := (x * W) * (x * B)).detach() + 0.5 * (p - p.detach()),
    ),
    "product by operator in place": (
        lambda x: multiply_in_place(x * W, x * B),
        lambda x: (p := (x * W) * (x * B)).detach() + 0.5 * (p - p.detach()),
    ),
    "constant factors": (lambda x: 2 * x * W / 3 + B, lambda x: 2 * x * W / 3 + B),
    "batch_norm": (
        lambda x: F.batch_norm(x, B[:3], W[:3], W[1:4], B[1:4], False, 0.1, 1e-5),
        lambda x: (x - B[:3, None]) / (W[:3, None] + 1e-5).sqrt() * W[1:4, None] + B[1:4, None],
    ),
}


def multiply_in_place(a, b):
    a *= b
    return a


@pytest.mark.parametrize("name", CASES)
def test_rule_keeps_the_value_and_has_the_gradient_of_its_formula(name):
    operation, formula = CASES[name]
    leaf = X.clone().requires_grad_()
    value, (gradient,) = explained(lambda x: operation(x) * U, X)
    wanted = formula(leaf)
    assert torch.allclose(value, operation(X.clone()) * U, rtol=1e-12, atol=1e-12)
    assert torch.allclose(value, wanted * U, rtol=1e-9, atol=1e-9)
    assert torch.allclose(gradient, torch.autograd.grad((wanted * U).sum(), leaf)[0], rtol=1e-9, atol=1e-9)


def test_plain_is_the_ordinary_gradient():
    for name, (operation, _) in CASES.items():
        if "in place" in name:
            continue
        leaf = X.clone().requires_grad_()
        _, (gradient,) = explained(lambda x, operation=operation: operation(x) * U, X, rules=PLAIN)
        assert torch.allclose(gradient, torch.autograd.grad((operation(leaf) * U).sum(), leaf)[0], atol=1e-9), name


@pytest.mark.parametrize("rules", [PLAIN, LIBRA, ATTNLRP, CP, epsilon(0), GAMMA], ids=lambda rules: rules.name)
@pytest.mark.parametrize("batch", [1, 2])
def test_batch_norm_behind_tokens(rules, batch):
    norm = nn.BatchNorm2d(16).eval().double()
    nn.init.normal_(norm.weight)
    x, u = torch.randn(batch, 16, 6, 8, dtype=torch.float64), torch.randn(batch, 48, 16, dtype=torch.float64)
    _, (found,) = explained(lambda z: norm(z).flatten(2).transpose(1, 2) * u, x, rules=rules)
    wanted = u.transpose(1, 2).view_as(x) * (norm.weight / (norm.running_var + norm.eps).sqrt())[:, None, None]
    assert torch.allclose(found, wanted, atol=1e-10)


@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "eva02_tiny_patch14_224", "resnet18", "convnext_atto"])
def test_forward_values_are_kept(rules, name):
    import timm

    torch.manual_seed(0)
    model = tiny(name) if "vit" in name or "eva" in name else timm.create_model(name, num_classes=5).eval()
    x = images(2, 32 if "vit" in name or "eva" in name else 64)
    wanted = model(x).detach()
    assert torch.allclose(
        observe(model, Inputs.of(x), rules=rules).scores.detach(), wanted, atol=1e-6 * float(wanted.abs().max())
    )


def test_attention_is_constant_under_libra_alone():
    q, k, v = (
        torch.randn(2, 1, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3)
    )
    fused = lambda q, k, v: F.scaled_dot_product_attention(q, k, v)
    by_hand = lambda q, k, v: (q @ k.mT / 2).softmax(-1) @ v
    for forward in (fused, by_hand):
        _, (on_q, on_k, on_v) = explained(forward, q, k, v)
        assert not bool(on_q.any())
        assert not bool(on_k.any())
        A = (q @ k.mT / 2).softmax(-1)
        assert torch.allclose(on_v, A.mT @ torch.ones_like(v))
        _, (on_q, _, same) = explained(forward, q, k, v, rules=PLAIN)
        assert bool(on_q.any())
        assert torch.allclose(same, on_v)


def test_rule_sets_by_name():
    assert rule_set("libra") is LIBRA
    assert rule_set(PLAIN) is PLAIN
    with pytest.raises(ValueError, match="libra"):
        rule_set("lrp")
