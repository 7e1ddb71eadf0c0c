"""Faithfulness and deletion of layers against literal functions, hand loops and numbers that are known beforehand."""

import decimal
import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.heads.test_heads import WIDTHS, features, randomised, weights
from tests.oracles import laya as oracle
from xattr.heads import ConcatHead, LayaHead, MeanHead, ScalarMixHead
from xattr.metrics.layers import (
    LayerProtocol,
    layer_deletion,
    layer_faithfulness,
    layer_table,
    leave_one_layer_out,
)

WIDE = (5, 7, 3, 4)
OPERATORS = ("drop", "renormalise", "zero_rescore", "mean", "mean_rescore", "resample")
LOGIT = LayerProtocol(target="logit")


def laya(widths=WIDE, seed=0, **options):
    return randomised(LayaHead(widths, 4, width=6, temperature=1.5, **options), seed)


def contributions(head, given_, classes=None):
    seen = head.explain(given_)
    classes = seen.logits.argmax(1) if classes is None else classes
    return seen.contributions[torch.arange(len(classes)), :, classes].detach()


def scores(count=4, layers=4, seed=5):
    return torch.randn(count, layers, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(head, given_, operator, gone, target, b, means=None):
    """`f(x) - f(x without the layers in gone)` of sample b, one number at a time."""
    known = weights(head)
    whole = [oracle.explain([f[j].numpy() for f in given_], known) for j in range(len(given_[0]))]
    full, layers = whole[b], range(len(given_))
    c = int(np.argmax(full.logits))
    means = sum(w.z for w in whole) / len(whole) if means is None else means
    z = full.z.copy()
    for i in gone:
        z[i] = means[i] if operator.startswith("mean") else 0
    alpha = full.alpha.copy()
    if operator.endswith("rescore"):
        alpha = oracle._softmax(oracle._scores(z, known), known.temperature)
    if operator == "renormalise":
        alpha = np.array([0 if i in gone else alpha[i] / (1 - sum(alpha[j] for j in gone)) for i in layers])
    without = oracle._mixed_logits(alpha, z, list(layers), known)
    f = {
        "logit": lambda y: y[c],
        "prob": lambda y: oracle._softmax(y)[c],
        "log_prob": lambda y: math.log(oracle._softmax(y)[c]),
    }[target]
    return f(full.logits) - f(without)


def test_the_default_is_the_literal_drop():
    head, given_ = laya(), features(widths=WIDE)
    found, known = leave_one_layer_out(head, given_), weights(head)
    assert found.shape == (4, 4) and found.dtype == torch.float64 and not found.requires_grad
    for b in range(4):
        sample = [f[b].numpy() for f in given_]
        c = int(np.argmax(oracle.explain(sample, known).logits))
        assert np.abs(found[b].numpy() - oracle.leave_one_out_drop(sample, known, c)).max() < 1e-12
    assert float(found.abs().max()) > 0.05


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("target", ["logit", "log_prob", "prob"])
@pytest.mark.parametrize("operator", OPERATORS[:-1])
def test_operators_by_hand(operator, target, causal):
    head, given_ = laya(causal=causal), features(widths=WIDE)
    protocol = LayerProtocol(operator, target)
    found = leave_one_layer_out(head, given_, protocol=protocol)
    wanted = [[by_hand(head, given_, operator, [i], target, b) for i in range(4)] for b in range(4)]
    assert np.abs(found.numpy() - np.array(wanted)).max() < 1e-12
    absolute = leave_one_layer_out(head, given_, protocol=LayerProtocol(operator, target, sign="abs"))
    assert torch.equal(absolute, found.abs()) and bool((found < 0).any())
    if operator != "drop":
        plain = leave_one_layer_out(head, given_, protocol=LayerProtocol("drop", target))
        assert float((plain - found).abs().max()) > 1e-3


@pytest.mark.parametrize("operator", ["mean", "mean_rescore"])
def test_means_are_of_the_reference_where_there_is_one(operator):
    head, given_, reference = laya(), features(widths=WIDE), features(9, WIDE, seed=7)
    known = weights(head)
    means = sum(oracle.explain([f[j].numpy() for f in reference], known).z for j in range(9)) / 9
    found = leave_one_layer_out(head, given_, protocol=LayerProtocol(operator), reference=reference)
    wanted = [[by_hand(head, given_, operator, [i], "prob", b, means) for i in range(4)] for b in range(4)]
    assert np.abs(found.numpy() - np.array(wanted)).max() < 1e-12


def test_resample_takes_all_layers_of_a_sample_from_one_other():
    head, given_ = laya(), features(8, WIDE)
    protocol, seen = LayerProtocol("resample", "logit"), laya().explain(given_)
    found = leave_one_layer_out(head, given_, protocol=protocol, seed=3)
    w = head.classifier.weight[seen.logits.argmax(1)]
    # [b, j, i]: sample b with z_i of sample j
    possible = torch.einsum("bi,bjid,bd->bji", seen.alpha, seen.z[:, None] - seen.z[None], w)
    same = (possible - found[:, None]).abs().amax(2) < 1e-12
    assert same.sum(1).tolist() == [1] * 8 and same.sum(0).tolist() == [1] * 8
    assert not bool(same.diagonal().any())
    assert torch.equal(found, leave_one_layer_out(head, given_, protocol=protocol, seed=3))
    assert not torch.equal(found, leave_one_layer_out(head, given_, protocol=protocol, seed=4))
    # One sample to draw from is its own mean, and serves a single sample too.
    single, other = [f[:1] for f in given_], [f[3:4] for f in given_]
    drawn, mean = (
        leave_one_layer_out(head, single, protocol=LayerProtocol(o), reference=other) for o in ("resample", "mean")
    )
    assert torch.equal(drawn, mean) and float(drawn.abs().max()) > 1e-3


@settings(max_examples=20, deadline=None)
@given(layers=st.integers(3, 6), seed=st.integers(0, 99))
def test_drop_on_the_logit_is_the_contribution(layers, seed):
    widths = WIDE[:1] * layers
    head, given_ = laya(widths, seed), features(5, widths, seed)
    wanted = contributions(head, given_)
    assert float((leave_one_layer_out(head, given_, protocol=LOGIT) - wanted).abs().max()) < 1e-12
    found = layer_faithfulness(head, given_, wanted, protocol=LOGIT)
    assert found.mean == pytest.approx(1, abs=1e-12) and found.top1 == 1 and found.undefined == 0
    assert layer_faithfulness(head, given_, -wanted, protocol=LOGIT).mean == pytest.approx(-1, abs=1e-12)
    assert layer_deletion(head, given_, wanted, protocol=LOGIT).normalised == pytest.approx(1, abs=1e-12)


def test_classes():
    head, given_, labels = laya(), features(widths=WIDE), torch.tensor([0, 1, 2, 3])
    predicted = head.explain(given_).logits.argmax(1)
    assert predicted.tolist() != labels.tolist()
    of = lambda class_, labels: leave_one_layer_out(
        head, given_, protocol=LayerProtocol(target="logit", class_=class_), labels=labels
    )
    for class_ in ("true", "given"):
        assert torch.allclose(of(class_, labels), contributions(head, given_, labels), atol=1e-12)
        assert torch.equal(of(class_, predicted.to(torch.uint8)), of("predicted", labels))


def test_renormalise_where_one_layer_has_all_the_weight():
    head, given_ = randomised(ScalarMixHead(WIDTHS, 4, width=6)), features()
    z = head.adapters(given_).detach()
    for mix, others in (([1000.0, 0.0, 1.0], [0.5, 0.5]), ([60.0, 0.0, 1.0], [1 / (1 + math.e), 1 / (1 + 1 / math.e)])):
        with torch.no_grad():
            head.mix.copy_(torch.tensor(mix))
        assert float(head.explain(given_).alpha[0, 0].detach()) == 1.0
        found = leave_one_layer_out(head, given_, protocol=LayerProtocol("renormalise", "logit"))
        change = z[:, 0] - others[0] * z[:, 1] - others[1] * z[:, 2]
        classes = head(given_).argmax(1)
        wanted = (change @ head.classifier.weight.T).gather(1, classes[:, None])[:, 0]
        assert torch.allclose(found[:, 0], wanted, atol=1e-12)
        assert float(found[:, 1:].abs().max()) < 1e-12


def test_one_layer_gone_leaves_the_bias():
    head, given_ = randomised(LayaHead([5], 4, width=6)), features(4, [5])
    logits = head(given_).detach()
    for operator in ("drop", "renormalise"):
        found = leave_one_layer_out(head, given_, protocol=LayerProtocol(operator, class_="given"),
                                    labels=torch.zeros(4, dtype=torch.long))  # fmt: skip
        wanted = logits.softmax(1)[:, 0] - head.classifier.bias.detach().softmax(0)[0]
        assert torch.allclose(found[:, 0], wanted, atol=1e-12)
    with pytest.warns(UserWarning, match="1 layers"):
        seen = layer_faithfulness(head, given_, torch.ones(4, 1))
    assert seen.undefined == 4 and all(math.isnan(v) for v in (seen.mean, seen.low, seen.high))


def test_a_sure_head_in_float32_still_tells_its_layers_apart():
    """Probabilities of 1 - 1e-17: every drop of p is 0 in float32, and in float64 if taken as a difference."""
    head = laya(WIDTHS)
    with torch.no_grad():
        head.classifier.bias[0] += 40
    single, given_ = laya(WIDTHS).float(), [f.float() for f in features()]
    single.load_state_dict(head.state_dict())
    head = laya(WIDTHS).double()
    head.load_state_dict({name: value.double() for name, value in single.state_dict().items()})
    seen = head.explain([f.double() for f in given_])
    for logits in (single(given_).detach(), seen.logits.detach()):
        assert float(logits.softmax(1)[:, 0].min()) == 1

    def p(logits):
        powers = [decimal.Decimal(v).exp() for v in logits.tolist()]
        return powers[0] / sum(powers)

    with decimal.localcontext() as context:
        context.prec = 60
        wanted = [
            [float(p(y) - p(y - c)) for c in each] for y, each in zip(seen.logits, seen.contributions, strict=True)
        ]
    wanted = torch.tensor(wanted, dtype=torch.float64)
    found = leave_one_layer_out(single, given_)
    assert float(found.abs().max()) < 1e-15 and bool((found != 0).all())
    assert float((found / wanted - 1).abs().max()) < 1e-9
    of_logarithms = leave_one_layer_out(single, given_, protocol=LayerProtocol(target="log_prob"))
    assert float((of_logarithms / wanted - 1).abs().max()) < 1e-9
    agreed = layer_faithfulness(single, given_, wanted)
    assert agreed.undefined == 0 and agreed.mean == 1 and agreed.top1 == 1


def test_a_hopeless_class_keeps_its_digits_too():
    head = laya(WIDTHS)
    with torch.no_grad():
        head.classifier.bias[0] -= 900  # p underflows altogether
    protocol = LayerProtocol(target="log_prob", class_="true")
    found = leave_one_layer_out(head, features(), protocol=protocol, labels=torch.zeros(4, dtype=torch.long))
    assert bool(found.isfinite().all()) and bool((found != 0).all())


@settings(max_examples=25, deadline=None)
@given(layers=st.integers(3, 7), seed=st.integers(0, 999), ties=st.booleans())
def test_faithfulness_is_the_literal_correlation(layers, seed, ties):
    widths = WIDE[:1] * layers
    head, given_, rated = laya(widths, seed), features(6, widths, seed), scores(6, layers, seed)
    rated = rated.round() if ties else rated
    for protocol in (LayerProtocol(), LayerProtocol("mean_rescore", "log_prob", sign="abs")):
        effects = leave_one_layer_out(head, given_, protocol=protocol)
        found = layer_faithfulness(head, given_, rated.float(), protocol=protocol)
        wanted = [oracle.spearman(a.tolist(), e.tolist()) for a, e in zip(rated, effects, strict=True)]
        assert np.allclose(found.value.numpy(), wanted, atol=1e-12, equal_nan=True)
        assert found.undefined == sum(math.isnan(v) for v in wanted)
        assert found.mean == pytest.approx(np.nanmean(wanted), abs=1e-12)
        assert found.low <= found.mean <= found.high and found.protocol == protocol
        best = effects.argmax(1)
        tops = [[i for i in range(layers) if row[i] == row.max()] for row in rated]
        right = [(int(best[b]) in tops[b]) / len(tops[b]) for b in range(6)]
        assert found.top1 == pytest.approx(sum(right) / 6)


def test_three_layers_have_four_values():
    head, given_ = laya(WIDTHS), features(200)
    found = layer_faithfulness(head, given_, scores(200, 3)).value
    assert sorted(set(found.tolist())) == [-1, -0.5, 0.5, 1]


def test_constant_scores_are_undefined_and_counted():
    head, given_, rated = laya(), features(widths=WIDE), scores()
    rated[1] = 0.25
    found = layer_faithfulness(head, given_, rated)
    assert found.value.isnan().tolist() == [False, True, False, False] and found.undefined == 1
    assert found.mean == pytest.approx(float(found.value[[0, 2, 3]].mean()))
    constant = layer_faithfulness(head, given_, torch.full((4, 4), 0.25))
    assert constant.undefined == 4 and math.isnan(constant.mean) and math.isnan(constant.low)
    assert constant.top1 == 0.25  # any layer, at random
    same = randomised(MeanHead([5, 5, 5], 4, width=6))
    for part in (same.adapters.norms, same.adapters.maps):
        for i in (1, 2):
            part[i].load_state_dict(part[0].state_dict())
    effects = layer_faithfulness(same, features(4, [5])[:1] * 3, scores(4, 3))
    assert effects.undefined == 4 and effects.top1 == 1
    given_ = features(4, [5])[0]
    for noise in (0, 1e-13):  # nor does rounding tell layers apart
        assert math.isnan(
            layer_deletion(same, [given_, given_ + noise * given_.flip(1), given_], scores(4, 3)).normalised
        )


def test_the_interval_is_a_percentile_bootstrap():
    head, given_, rated = laya(), features(300, WIDE), scores(300)
    found = layer_faithfulness(head, given_, rated, seed=3)
    values = found.value.numpy()
    half = 1.96 * values.std() / math.sqrt(300)
    assert found.mean - found.low == pytest.approx(half, rel=0.1) and found.high - found.mean == pytest.approx(
        half, 0.1
    )
    order = np.sort(values)
    rng = np.random.RandomState(3)
    means = [order[rng.randint(0, 300, 300)].mean() for _ in range(2000)]
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(means, [2.5, 97.5])), abs=1e-12)
    assert layer_faithfulness(head, given_, rated, seed=4).low != found.low
    agreed = layer_faithfulness(head, given_, leave_one_layer_out(head, given_))
    assert agreed.low == pytest.approx(1) and agreed.high == pytest.approx(1)


@pytest.mark.parametrize("operator", OPERATORS)
def test_nothing_beats_the_oracle(operator):
    head, given_, protocol = laya(), features(20, WIDE), LayerProtocol(operator)
    effects = leave_one_layer_out(head, given_, protocol=protocol)
    for rated in (scores(20, seed=s) for s in range(10)):
        found = layer_deletion(head, given_, rated, protocol=protocol)
        assert torch.equal(found.value, effects.gather(1, rated.argmax(1)[:, None])[:, 0])
        assert found.mean == pytest.approx(float(found.value.mean())) and found.k == 1 and found.protocol == protocol
        assert float(effects.amin(1).mean()) <= found.mean <= found.oracle
        assert found.normalised < 1
    assert found.oracle == pytest.approx(float(effects.amax(1).mean()))
    assert found.random == pytest.approx(float(effects.mean()))
    assert found.depth_prior == pytest.approx(float(effects[:, -1].mean()))
    assert layer_deletion(head, given_, effects, protocol=protocol).normalised == pytest.approx(1)
    assert layer_deletion(head, given_, torch.zeros(20, 4), protocol=protocol).normalised == pytest.approx(0, abs=1e-12)
    unsigned = LayerProtocol(operator, sign="abs")
    assert torch.equal(layer_deletion(head, given_, rated, protocol=unsigned).value, found.value)


def test_ties_count_by_expectation_and_by_tolerance():
    head, given_ = laya(), features(widths=WIDE)
    effects = leave_one_layer_out(head, given_)
    best, worst = effects.argmax(1), effects.argmin(1)
    rows = torch.arange(4)
    for gap, tied in ((0.0, True), (1e-12, True), (1e-7, False)):
        rated = torch.zeros(4, 4, dtype=torch.float64)
        rated[rows, best], rated[rows, worst] = 3.0, 3.0 * (1 - gap)
        found, agreed = layer_deletion(head, given_, rated), layer_faithfulness(head, given_, rated)
        wanted = (effects.amax(1) + effects.amin(1)) / 2 if tied else effects.amax(1)
        assert torch.allclose(found.value, wanted, atol=1e-14)
        assert agreed.top1 == (0.5 if tied else 1)
        negative = layer_deletion(
            head, given_, -3 * (rated == 0).double() - 3.0 * gap * (rated != rated.amax(1)[:, None])
        )
        assert torch.allclose(negative.value, wanted, atol=1e-14)


@pytest.mark.parametrize("operator", OPERATORS[:-1])
def test_several_layers_by_hand(operator):
    head, given_, rated = laya(), features(widths=WIDE), scores()
    found = layer_deletion(head, given_, rated, k=2, protocol=LayerProtocol(operator))
    pairs = list(itertools.combinations(range(4), 2))
    each = np.array([[by_hand(head, given_, operator, pair, "prob", b) for pair in pairs] for b in range(4)])
    tops = [tuple(sorted(row.topk(2).indices.tolist())) for row in rated]
    wanted = [each[b, pairs.index(tops[b])] for b in range(4)]
    assert np.abs(found.value.numpy() - wanted).max() < 1e-12
    assert found.random == pytest.approx(each.mean(), abs=1e-12)
    assert found.oracle == pytest.approx(each.max(1).mean(), abs=1e-12)
    assert found.depth_prior == pytest.approx(each[:, -1].mean(), abs=1e-12)
    assert found.normalised == pytest.approx((found.mean - found.random) / (found.oracle - found.random))
    whole = layer_deletion(head, given_, rated, k=4, protocol=LayerProtocol(operator))
    assert math.isnan(whole.normalised) and whole.mean == pytest.approx(whole.random)


def test_many_subsets_are_drawn():
    """On the logit dropped layers add up, so that k random layers cost k times the mean layer."""
    widths = (3,) * 20
    head, given_ = laya(widths), features(30, widths)
    effects = contributions(head, given_)
    found = layer_deletion(head, given_, effects, k=5, protocol=LOGIT)
    assert torch.allclose(found.value, effects.topk(5).values.sum(1), atol=1e-12)
    spread = float(effects.std(1).mean()) * math.sqrt(5 / (200 * 30))
    assert abs(found.random - 5 * float(effects.mean())) < 4 * spread
    assert math.isnan(found.oracle) and math.isnan(found.normalised)
    again, other = (layer_deletion(head, given_, effects, k=5, protocol=LOGIT, seed=s) for s in (0, 1))
    assert again.random == found.random != other.random
    # Constant scores: k layers of a random order, the same for the same seed.
    flat = [layer_deletion(head, given_, torch.ones(30, 20), k=5, protocol=LOGIT, seed=s).value for s in (0, 0, 1)]
    assert torch.equal(flat[0], flat[1]) and not torch.allclose(flat[0], flat[2])
    # Layers in front of the tie are always among them.
    rated = torch.ones(30, 20)
    rated[:, :3] = 2
    first = layer_deletion(head, given_, rated, k=3, protocol=LOGIT)
    assert torch.allclose(first.value, effects[:, :3].sum(1), atol=1e-12)


@pytest.mark.parametrize("operator", OPERATORS[:-1])
def test_the_order_of_the_samples_makes_no_difference(operator):
    head, given_, rated, protocol = laya(), features(12, WIDE), scores(12), LayerProtocol(operator)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    moved = [f[order] for f in given_]
    effects = leave_one_layer_out(head, given_, protocol=protocol)
    assert torch.allclose(leave_one_layer_out(head, moved, protocol=protocol), effects[order], atol=1e-13)
    if not operator.startswith("mean"):
        alone = leave_one_layer_out(head, [f[3:4] for f in given_], protocol=protocol)
        assert torch.allclose(alone, effects[3:4], atol=1e-13)
    one, other = (
        layer_faithfulness(head, f, s, protocol=protocol) for f, s in ((given_, rated), (moved, rated[order]))
    )
    assert torch.allclose(other.value, one.value[order])
    assert (other.mean, other.low, other.high, other.top1) == pytest.approx((one.mean, one.low, one.high, one.top1))
    for k in (1, 2):
        one = layer_deletion(head, given_, rated, k=k, protocol=protocol)
        other = layer_deletion(head, moved, rated[order], k=k, protocol=protocol)
        assert torch.allclose(other.value, one.value[order], atol=1e-13)
        assert other.normalised == pytest.approx(one.normalised)


def test_the_head_and_its_features_stay_as_they_are():
    head = LayaHead(WIDE, 4, width=6, layer_dropout=0.5, zero_scores=False).train()
    before = {name: value.clone() for name, value in head.state_dict().items()}
    given_ = [f.float().requires_grad_() for f in features(widths=WIDE)]
    found = leave_one_layer_out(head, given_, protocol=LayerProtocol("zero_rescore"))
    assert torch.equal(found, leave_one_layer_out(head, given_, protocol=LayerProtocol("zero_rescore")))  # no dropout
    assert head.training and head.classifier.weight.requires_grad and not found.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())
    assert all(value.dtype == torch.float32 for value in head.state_dict().values())


def cells(table):
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()]


def test_the_table_has_the_numbers_of_the_functions():
    head, given_, labels = laya(), features(30, WIDE), torch.arange(30) % 4
    protocols = [LayerProtocol(), LayerProtocol("mean_rescore", "logit", "true", "abs")]
    rated = {"noise": scores(30), "alpha": head.explain(given_).alpha}
    rated["noise"][0] = 1.0
    table = cells(layer_table(head, given_, rated, protocols, labels=labels, seed=2))
    names = ["drop/prob/predicted/signed", "mean_rescore/logit/true/abs"]
    assert table[0] == ["attribution", *(f"{n}: {m}" for n in names for m in ("faithfulness", "deletion@1"))]
    assert table[1] == ["---"] * 5
    assert [row[0] for row in table[2:]] == ["noise", "alpha", "random", "oracle", "depth prior"]
    depth = torch.arange(4.0).expand(30, 4)
    for i, protocol in enumerate(protocols):
        options = {"protocol": protocol, "labels": labels, "seed": 2}
        effects = leave_one_layer_out(head, given_, protocol=protocol, labels=labels)
        for row, by in zip(table[2:], (rated["noise"], rated["alpha"], None, effects, depth), strict=True):
            agreed, dropped = row[1 + 2 * i : 3 + 2 * i]
            if by is None:
                assert agreed == "0.000"
                continue
            wanted = layer_faithfulness(head, given_, by, **options)
            extra = " (1 undefined)" if row[0] == "noise" else ""
            assert agreed == f"{wanted.mean:.3f} [{wanted.low:.3f}, {wanted.high:.3f}]{extra}"
            if row[0] != "oracle":
                assert dropped == f"{layer_deletion(head, given_, by, **options).mean:#.3g}"
        found = layer_deletion(head, given_, depth, **options)
        assert [row[2 + 2 * i] for row in table[4:]] == [
            f"{v:#.3g}" for v in (found.random, found.oracle, found.depth_prior)
        ]
        assert table[5][1 + 2 * i] == "1.000 [1.000, 1.000]"
    assert cells(layer_table(head, given_, {"a|b": depth}, protocols[:1]))[2][0] == r"a\|b"


def test_two_layers_warn_once():
    head, given_, rated = laya(WIDE[:2]), features(6, WIDE[:2]), scores(6, 2)
    calls = (
        lambda: layer_faithfulness(head, given_, rated),
        lambda: layer_table(head, given_, {"a": rated, "b": -rated}, [LayerProtocol(), LOGIT]),
    )
    for call in calls:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            found = call()
        assert [w.category for w in seen] == [UserWarning] and "can only be 1 or -1" in str(seen[0].message)
        assert seen[0].filename == __file__
        assert isinstance(found, str) or set(found.value.tolist()) == {-1, 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer_faithfulness(laya(WIDTHS), features(), scores(4, 3))
        layer_deletion(head, given_, rated)


def off(**options):
    """One wrong argument among right ones."""
    given_ = {"head": laya(), "features": features(widths=WIDE), "scores": scores()} | options
    return layer_deletion(given_.pop("head"), given_.pop("features"), given_.pop("scores"), **given_)


TRUE = LayerProtocol(class_="true")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LayerProtocol(operator="remove"), "operator='remove'; expected one of .*'renormalise'"),
        (lambda: LayerProtocol(target="loss"), "target='loss'"),
        (lambda: LayerProtocol(class_=3), "class_=3"),
        (lambda: LayerProtocol(sign=None), "sign=None"),
        (lambda: off(scores=scores(4, 3)), r"scores: found \[4, 3\]; expected .*\[4, 4\]"),
        (lambda: off(scores=scores() / 0), r"expected finite"),
        (lambda: off(scores=[1, 2, 3, 4]), "found list"),
        (lambda: off(k=0), "k=0; expected .* 1 to 4"),
        (lambda: off(k=5), "k=5"),
        (lambda: off(k=True), "k=True"),
        (lambda: off(k=1.0), "k=1.0"),
        (lambda: off(protocol=TRUE), r'class_="true", labels NoneType; expected \[4\], whole, 0 to 3'),
        (lambda: off(protocol=TRUE, labels=torch.zeros(3, dtype=torch.long)), r"labels torch.int64 \[3\]"),
        (lambda: off(protocol=TRUE, labels=torch.zeros(4)), "labels torch.float32"),
        (lambda: off(protocol=TRUE, labels=torch.ones(4) > 0), "labels torch.bool"),
        (lambda: off(protocol=TRUE, labels=torch.tensor([0, 1, 2, 4])), "0 to 3"),
        (lambda: off(protocol=TRUE, labels=torch.tensor([0, 1, 2, -1])), "0 to 3"),
        (lambda: off(features=features(widths=WIDE)[:3]), "4 layers; found 3 tensors"),
        (lambda: off(features=torch.zeros(4, 5)), "found one tensor"),
        (lambda: off(features=features(0, WIDE)), r"logits \[0, 4\]"),
        (lambda: off(features=[f / 0 for f in features(widths=WIDE)]), "finite"),
        (lambda: off(reference=features(4, WIDTHS)), "4 layers; found 3 tensors"),
        (lambda: off(head=randomised(LayaHead(WIDE, 1))), r"logits \[4, 1\]; expected .*2 classes"),
        (lambda: off(protocol=LayerProtocol("resample"), features=features(1, WIDE)), "found 1 sample"),
        (lambda: layer_table(laya(), features(widths=WIDE), {"x": scores(3)}, [LOGIT]), r"attributions\['x'\]: found"),
    ],
)
def test_wrong_arguments_are_named(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_another_head_is_named():
    with pytest.raises(TypeError, match="found a ConcatHead; expected a head that mixes layers"):
        leave_one_layer_out(ConcatHead(WIDE, 4), features(widths=WIDE))
