"""LRP: literal oracles, sums, Captum where it is right, and what must not matter."""

import captum.attr
import pytest
import torch
import torch.nn.functional as F
from captum.attr._utils import lrp_rules
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.cnns import CNNS, any_model, cnn
from tests.models import images, relative_error, tiny
from tests.oracles import lrp as oracle
from xattr.attr import LRP, IntegratedGradients
from xattr.metrics import cost_in_forwards
from xattr.rules import RULE_SETS, cp, epsilon, gamma
from xattr.trace import Inputs, UnsupportedModelError, gradients, observe

VALUES = [
    ("epsilon", 1e-6),
    ("epsilon", 0.05),
    ("gamma", (0.25, 0.05)),
    ("gamma", (1.0, 0.5)),
    ("gamma", (100.0, 10.0)),
]


@pytest.mark.parametrize(("rule", "value"), VALUES)
@pytest.mark.parametrize("kind", ["cnn", "transformer"])
def test_equals_the_literal_oracle(kind, rule, value):
    model = oracle.SmallCNN() if kind == "cnn" else oracle.SmallTransformer()
    literal = oracle.cnn_relevance if kind == "cnn" else oracle.transformer_relevance
    x = images(2, 12, dtype=torch.float64)
    wanted, _ = literal(model, x, 1, rule, **{"eps" if rule == "epsilon" else "gamma": value})
    rules = epsilon(value) if rule == "epsilon" else gamma(*value)
    assert relative_error(LRP(model).attribute(x, target=1, rule=rules), wanted) < 1e-9
    other = LRP(model).attribute(x, target=1, rule="libra")
    assert relative_error(other, wanted) > (1e-4 if rule == "gamma" or value > 1e-3 else 1e-6)


def test_the_two_gammas_belong_to_convolutions_and_to_linear_layers():
    x, model = images(2, 12, dtype=torch.float64), oracle.SmallCNN()
    first, second = (LRP(model).attribute(x, target=1, rule=gamma(*values)) for values in ((1, 0), (0, 1)))
    for found, values in ((first, (1.0, 0.0)), (second, (0.0, 1.0))):
        assert relative_error(found, oracle.cnn_relevance(model, x, 1, "gamma", gamma=values)[0]) < 1e-9


# --- sums -------------------------------------------------------------------------------------------------------------


def conserved(model, x, rules, target=1):
    """Relevance of the pixels and of everything that counts as a bias, against the logit; one image."""
    biases = {name: p.detach() for name, p in model.named_parameters() if p.ndim == 1 and name.endswith("bias")}
    biases |= {name: p.detach() for name, p in model.named_parameters() if "token" in name or "pos" in name}
    biases |= {name: b.detach() for name, b in model.named_buffers() if name.endswith("running_mean")}

    def forward(image, *values):
        return torch.func.functional_call(model, dict(zip(biases, values, strict=True)), (image,))

    seen = observe(forward, Inputs((x, *biases.values())), rules=rules, record=False)
    found = gradients(seen.scores[:, target], list(seen.roots))
    total = sum((g * v).sum() for g, v in zip(found, (x, *biases.values()), strict=True))
    return float(total.detach()), float(seen.scores[0, target].detach())


TRANSFORMERS = ("timm ViT", "transformers ViT")
SETS = {"libra": "libra", "attnlrp": "attnlrp", "cp": "cp", "cp, gate": cp("gate"), "gamma": "gamma"}
SETS |= {"large gamma": gamma(10, 1), "epsilon": epsilon(1e-10)}
CURVED = ("mobilenetv3_small_050", "convnext_atto")  # activations that are not piecewise linear


def is_promised(model, rules):
    if rules == "cp":
        return model not in (*TRANSFORMERS, *CURVED)
    return model not in TRANSFORMERS or rules not in ("attnlrp", "epsilon")


@pytest.mark.parametrize("rules", SETS)
@pytest.mark.parametrize("name", [*CNNS, *TRANSFORMERS])
def test_relevance_and_biases_sum_to_the_logit(name, rules):
    total, logit = conserved(*any_model(name, torch.float64), SETS[rules])
    if is_promised(name, rules):
        assert total == pytest.approx(logit, rel=1e-5)
    else:
        assert abs(total - logit) > 1e-5 * abs(logit)  # the documentation says so


def test_the_delta_is_the_sum_less_the_logit():
    model, x = tiny(), images()
    relevance, delta = LRP(model).attribute(x, target=[1, 2], rule="gamma", return_convergence_delta=True)
    logits = model(x)[torch.arange(2), torch.tensor([1, 2])]
    assert torch.allclose(delta, relevance.sum((1, 2, 3)) - logits, atol=1e-5)
    assert delta.abs().max() > 0.1
    assert LRP(model).has_convergence_delta()
    assert torch.equal(LRP(model).compute_convergence_delta(relevance, logits), relevance.sum((1, 2, 3)) - logits)


class Residual(nn.Module):
    """No bias, and a plain `+`."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.o = nn.Linear(6, 6, bias=False), nn.Linear(6, 3, bias=False)

    def forward(self, z):
        return self.o(torch.relu(z + self.a(z)))


def test_a_skip_connection_counts_once():
    net, z = Residual().eval(), torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    relevance, delta = LRP(net).attribute(z, target=1, rule=epsilon(1e-9), return_convergence_delta=True)
    logit = net(z)[:, 1]
    assert torch.allclose(relevance.sum(1), logit, rtol=1e-4)
    assert torch.allclose(delta, torch.zeros(4), atol=1e-4 * float(logit.detach().abs().max()))
    leaf = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(net(leaf)[:, 1].sum(), leaf)
    assert torch.allclose(relevance, leaf * gradient, atol=1e-5)


class Reused(nn.Module):
    """One ReLU object used twice, or two."""

    def __init__(self, twice):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.o, self.r = nn.Linear(8, 5, bias=False), nn.ReLU()
        self.q = self.r if twice else nn.ReLU()

    def forward(self, z):
        return self.o(self.r(self.b(self.q(self.a(z)))).mean((2, 3)))


def test_a_module_that_is_used_twice():
    m, x = Reused(True).eval(), images()
    relevance = LRP(m).attribute(x, target=1, rule=epsilon(1e-9))
    assert torch.allclose(relevance.sum((1, 2, 3)), m(x)[:, 1], rtol=1e-4)
    assert relative_error(relevance, LRP(Reused(False).eval()).attribute(x, target=1, rule=epsilon(1e-9))) < 1e-6


# --- Captum -----------------------------------------------------------------------------------------------------------


class Chain(nn.Module):
    """What Captum's LRP takes: one module after another, each used once."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        parts = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        parts += [nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2)]
        self.features = nn.Sequential(*parts)
        self.head = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, z):
        return self.head(self.features(z).flatten(1))


def test_equals_captum_where_captum_runs():
    x = images(2, 16, dtype=torch.float64)
    theirs = Chain().eval().double()
    for module in theirs.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.rule = lrp_rules.EpsilonRule(epsilon=1e-9)
    wanted = captum.attr.LRP(theirs).attribute(x, target=1)
    assert relative_error(LRP(Chain().eval().double()).attribute(x, target=1, rule=epsilon(0)), wanted.detach()) < 1e-6


def test_gamma_equals_captum_without_biases_on_positive_input():
    """Captum's gamma rule holds for positive inputs and outputs: one linear layer behind ReLUs."""
    torch.manual_seed(0)
    layer, x = nn.Linear(12, 1, bias=False).double(), torch.rand(4, 12, dtype=torch.float64)
    x = x[(layer(x) > 0).flatten()]
    assert len(x)
    layer.rule = lrp_rules.GammaRule(gamma=0.25)
    wanted = captum.attr.LRP(nn.Sequential(layer)).attribute(x, target=0).detach()
    layer = nn.Sequential(layer)
    assert relative_error(LRP(layer).attribute(x, target=0, rule=gamma(0, 0.25)), wanted) < 1e-6


# --- what must not matter ---------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Convolutions, batch norms and ReLUs, written in several ways that compute the same."""

    def __init__(self, way="plain"):
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.c1, self.c2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.n1, self.n2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        for norm in (self.n1, self.n2):
            for tensor in (norm.weight, norm.bias, norm.running_mean):
                nn.init.normal_(tensor.data)
        self.f, self.r = nn.Linear(8, 5), nn.ReLU(inplace=way == "in-place modules")

    def relu(self, z):
        if self.way == "in-place function":
            return F.relu(z, inplace=True)
        return z.relu_() if self.way == "in-place method" else self.r(z)

    def block(self, z):
        y = self.n2(self.c2(z))
        if self.way == "in-place sum":
            y += z
            return self.relu(y)
        return self.relu(y.add_(z) if self.way == "in-place method" else y + z)

    def forward(self, z):
        z = self.relu(self.n1(self.c1(z)))
        z = (
            checkpoint(self.block, z, use_reentrant=self.way == "reentrant")
            if "reentrant" in self.way
            else self.block(z)
        )
        return self.f(z.mean((2, 3)))


WAYS = ["in-place modules", "in-place function", "in-place method", "in-place sum", "reentrant", "not reentrant"]


@pytest.mark.parametrize("rule", RULE_SETS)
@pytest.mark.parametrize("way", WAYS)
def test_the_way_of_writing_does_not_matter(way, rule):
    wanted = LRP(Net().eval()).attribute(images(), target=1, rule=rule)
    net = Net(way).eval()
    assert relative_error(LRP(net).attribute(images(), target=1, rule=rule), wanted) < 1e-6
    assert net.r.inplace is (way == "in-place modules")


@pytest.mark.parametrize("way", WAYS)
def test_the_way_of_writing_does_not_matter_for_integrated_gradients(way):
    explain = lambda net: IntegratedGradients(net.eval()).attribute(images(), target=1, n_steps=8)
    assert relative_error(explain(Net(way)), explain(Net())) < 1e-6


@pytest.mark.parametrize("rule", ["epsilon", "gamma"])
def test_what_is_written_between_a_convolution_and_its_batch_norm_counts(rule):
    net, x = Net().eval().double(), images(dtype=torch.float64)
    apart, in_place = (
        lambda z, change=change: net.f(net.n1(change(net.c1(z))).mean((2, 3)))
        for change in (lambda y: y + y.relu(), lambda y: y.add_(y.relu()))
    )
    wanted = LRP(apart).attribute(x, target=1, rule=rule)
    assert relative_error(LRP(in_place).attribute(x, target=1, rule=rule), wanted) < 1e-9
    folded = LRP(lambda z: net.f(net.n1(net.c1(z)).mean((2, 3)))).attribute(x, target=1, rule=rule)
    assert relative_error(folded, wanted) > 1e-3


@pytest.mark.parametrize("rule", RULE_SETS)
def test_memory_format_and_compilation_do_not_matter(rule):
    net, x = Net().eval().double(), images(dtype=torch.float64)
    wanted = LRP(net).attribute(x, target=1, rule=rule)
    last = Net().eval().double().to(memory_format=torch.channels_last)
    found = LRP(last).attribute(x.to(memory_format=torch.channels_last), target=1, rule=rule)
    assert relative_error(found, wanted) < 1e-9
    compiled = torch.compile(net, backend="eager")
    compiled(x)
    assert relative_error(LRP(compiled).attribute(x, target=1, rule=rule), wanted) < 1e-9


@pytest.mark.parametrize("rule", RULE_SETS)
@pytest.mark.parametrize("model", [Net().eval(), tiny()], ids=["CNN", "ViT"])
def test_one_image_does_not_depend_on_the_others(model, rule):
    x = images(3)
    together = LRP(model).attribute(x, target=[0, 1, 2], rule=rule)
    for i in range(3):
        assert relative_error(LRP(model).attribute(x[i : i + 1], target=i, rule=rule), together[i : i + 1]) < 1e-5


def test_half_precision_gives_float32():
    net, x = Net().eval(), images()
    wanted = LRP(net).attribute(x, target=1, rule="gamma")
    for dtype in (torch.bfloat16, torch.float16):
        found = LRP(Net().eval().to(dtype)).attribute(x.to(dtype), target=1, rule="gamma")
        assert found.dtype == torch.float32
        assert F.cosine_similarity(found.flatten(), wanted.flatten(), 0) > 0.99


# --- refusals ---------------------------------------------------------------------------------------------------------


class Uncovered(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)
        self.squash, self.grow = nn.Sigmoid(), nn.Softplus()

    def forward(self, z):
        return torch.exp(self.b(self.grow(self.squash(self.a(z)))))


def test_operations_without_a_rule_are_one_error_that_lists_them():
    net, z = Uncovered().eval(), torch.randn(2, 6)
    for rule in ("libra", "attnlrp", "epsilon", "gamma"):
        with pytest.raises(UnsupportedModelError, match=r"sigmoid in 'squash', softplus in 'grow', exp\b"):
            LRP(net).attribute(z, target=1, rule=rule)
    leaf = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(net(leaf)[:, 1].sum(), leaf)
    assert torch.allclose(LRP(net).attribute(z, target=1, rule="plain"), z * gradient, atol=1e-6)


def test_what_only_scales_needs_no_rule():
    """A sigmoid, a softmax, an exponential that ends in a constant factor."""
    layer = nn.Linear(6, 6).eval()
    for gate in (torch.sigmoid, lambda z: z.softmax(-1), lambda z: 1 - torch.sigmoid(z), lambda z: 1 / z.exp()):
        net = lambda z, gate=gate: layer(z) * gate(layer(z))
        z = torch.randn(2, 6)
        wanted = LRP(lambda z, gate=gate: layer(z) * gate(layer(z)).detach()).attribute(z, target=1, rule="plain")
        for rule in ("libra", "attnlrp", "cp"):
            assert torch.allclose(LRP(net).attribute(z, target=1, rule=rule), wanted, atol=1e-6)


def test_unknown_rules_and_values():
    net, z = Residual().eval(), torch.randn(2, 6)
    with pytest.raises(ValueError, match="attnlrp"):
        LRP(net).attribute(z, target=1, rule="alpha-beta")
    for wrong in (lambda: epsilon(-1), lambda: gamma(-1), lambda: gamma(0, float("nan")), lambda: cp("relu")):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(NotImplementedError):
        LRP(net).attribute_future()


# --- cost -------------------------------------------------------------------------------------------------------------

LIMITS = {"attnlrp": 2.1, "cp": 2.1, "libra": 2.1, "epsilon": 2.1, "gamma": 4.1}


@pytest.mark.parametrize("rule", LIMITS)
@pytest.mark.parametrize("name", ["resnet18", "ViT"])
def test_cost_in_forwards(name, rule):
    """No weight gradient is computed: with them it would be 3 and 6."""
    base = {"img_size": 224, "patch_size": 16, "embed_dim": 768, "num_heads": 12, "depth": 2}  # of ViT-B, two blocks
    model = cnn(name) if name == "resnet18" else tiny(**base)
    x = images(1, 224)
    cost = cost_in_forwards(lambda image: LRP(model).attribute(image, target=1, rule=rule), model, x)
    assert LIMITS[rule] / 2 < cost <= LIMITS[rule]
    assert all(p.grad is None for p in model.parameters())
