"""Layers on the engine of the other metrics: the numbers of the layer metrics, hand loops and closed forms."""

import math

import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.heads.test_heads import features, randomised
from tests.metrics.test_layers import OPERATORS, WIDE, contributions, laya, scores
from tests.models import images, tiny
from xattr.heads import ConcatHead, LayaModel, MeanHead, ScalarMixHead
from xattr.metrics import Bound, deletion, insertion, insertion_deletion, leave_one_out, saco, sensitivity_n, violations
from xattr.metrics.layer_features import LayerPerturber
from xattr.metrics.layers import LayerProtocol, layer_deletion, layer_faithfulness, leave_one_layer_out

ALL, NONE = torch.ones(4, 1, 4, dtype=torch.bool), torch.zeros(4, 1, 4, dtype=torch.bool)
MEASURES = {
    "logit": lambda y: y,
    "prob": lambda y: y.softmax(1),
    "log_prob": lambda y: y.log_softmax(1),
}


def some_sets(batch=4, steps=6, layers=4, seed=0):
    return torch.rand(batch, steps, layers, generator=torch.Generator().manual_seed(seed)) > 0.5


def by_hand(head, given_, operator, keep, other):
    """Logits `[C]` of one sample without some layers; `other`, `[L, width]`, takes their place."""
    seen = head.explain(given_)
    z, alpha = seen.z[0].clone(), seen.alpha[0].clone()
    for i in range(len(z)):
        if not keep[i]:
            z[i] = other[i]
    if operator.endswith("rescore"):
        alpha = head.weigh(head.scores(z[None]))[0]
    if operator == "renormalise":
        alpha = alpha * keep / (alpha * keep).sum() if keep.any() else alpha * 0
    return head.classifier(sum(alpha[i] * z[i] for i in range(len(z))))


@pytest.mark.parametrize("score", MEASURES)
@pytest.mark.parametrize("operator", OPERATORS)
@torch.no_grad()
def test_every_set_of_layers_by_hand(operator, score):
    head, given_, reference, keep = laya(), features(widths=WIDE), features(1, WIDE, seed=9), some_sets()
    classes = head(given_).argmax(1)
    found = LayerPerturber(head, operator, score, reference).bind(given_).score(keep)
    assert found.shape == (4, 6) and found.dtype == torch.float64
    other = head.adapters(reference)[0] * (operator.startswith("mean") or operator == "resample")
    for b in range(4):
        for s in range(6):
            logits = by_hand(head, [f[b : b + 1] for f in given_], operator, keep[b, s], other)
            wanted = MEASURES[score](logits[None])[0, classes[b]]
            assert float(found[b, s]) == pytest.approx(float(wanted), abs=1e-12)


@pytest.mark.parametrize("head", [laya(), *(randomised(kind(WIDE, 4, width=6)) for kind in (ScalarMixHead, MeanHead))])
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("score", MEASURES)
@torch.no_grad()
def test_all_kept_is_the_head_and_one_removed_is_the_effect(head, operator, score):
    given_ = features(widths=WIDE)
    bound, logits = LayerPerturber(head, operator, score).bind(given_), head(given_)
    whole = MEASURES[score](logits).gather(1, logits.argmax(1, keepdim=True))
    assert torch.allclose(bound.score(ALL), whole, atol=1e-13)
    without = bound.score(~torch.eye(4, dtype=torch.bool).expand(4, 4, 4))
    wanted = leave_one_layer_out(head, given_, protocol=LayerProtocol(operator, score))
    assert torch.allclose(whole - without, wanted, atol=1e-13)


@pytest.mark.parametrize("score", ["logit", "log_prob", "prob"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_metrics_agree_with_those_of_layers(operator, score):
    head, given_, rated, protocol = laya(), features(widths=WIDE), scores(), LayerProtocol(operator, score)
    bound = LayerPerturber(head, operator, score).bind(given_)
    wanted = layer_faithfulness(head, given_, rated, protocol=protocol)
    assert torch.allclose(leave_one_out(bound, given_, rated), wanted.value, atol=1e-12)
    assert float(wanted.value.std()) > 0.1
    curve = deletion(bound, given_, rated).curve
    for k in (1, 2, 3, 4):
        lost = layer_deletion(head, given_, rated, k=k, protocol=protocol).value
        assert torch.allclose(curve[:, 0] - curve[:, k], lost, atol=1e-12)
    effects = leave_one_layer_out(head, given_, protocol=protocol)
    first = rated.abs().argmax(1, keepdim=True)
    assert (
        violations(bound, given_, rated).tolist()
        == (rated.gather(1, first) * effects.gather(1, first) < 0)[:, 0].tolist()
    )


@settings(max_examples=15, deadline=None)
@given(layers=st.integers(3, 6), seed=st.integers(0, 99))
def test_dropped_logits_are_sums_of_contributions(layers, seed):
    widths = WIDE[:1] * layers
    head, given_ = laya(widths, seed), features(5, widths, seed)
    bound, parts = LayerPerturber(head, score="logit").bind(given_), contributions(head, given_)
    keep = some_sets(5, 4, layers, seed)
    bias = head.classifier.bias[head(given_).argmax(1)].detach()
    assert torch.allclose(bound.score(keep), bias[:, None] + (keep * parts[:, None]).sum(2), atol=1e-12)
    # What explains a linear score exactly agrees with it in every way.
    for metric in (leave_one_out, sensitivity_n):
        assert torch.allclose(metric(bound, given_, parts), torch.ones(5, dtype=torch.float64), atol=1e-9)
    assert not bool(violations(bound, given_, parts).any()) and bool(violations(bound, given_, -parts).all())
    assert torch.allclose(saco(bound, given_, parts, groups=layers), torch.ones(5, dtype=torch.float64))
    # Trapezoids over sorted contributions, one number at a time.
    pair = insertion_deletion(bound, given_, parts)
    for b in range(5):
        order, shown = sorted(parts[b].tolist(), reverse=True), [float(bias[b])]
        for part in order:
            shown.append(shown[-1] + part)
        hidden = [shown[-1] - (value - shown[0]) for value in shown]
        for found, curve in ((pair.insertion, shown), (pair.deletion, hidden)):
            area = sum((curve[i] + curve[i + 1]) / 2 for i in range(layers)) / layers
            assert float(found.value[b]) == pytest.approx(area, abs=1e-6)


def test_what_a_result_says_about_itself():
    head, given_ = laya(), features(widths=WIDE)
    bound = LayerPerturber(head, "mean", "log_prob").bind(given_, 2)
    assert isinstance(bound, Bound) and bound.features.valid.tolist() == [[True] * 4] * 4
    protocol = deletion(bound, given_, scores()).protocol
    assert (protocol.unit, protocol.operator, protocol.score) == ("layer", "mean", "log_prob")
    assert (protocol.class_, protocol.steps, protocol.empty) == ("given", 4, None)
    assert insertion(LayerPerturber(head).bind(given_), given_, scores()).protocol.class_ == "predicted"


def test_classes():
    head, given_ = laya(), features(widths=WIDE)
    with torch.no_grad():
        logits = head(given_)
    of = lambda target: LayerPerturber(head, score="logit").bind(given_, target).score(ALL)[:, 0]
    assert torch.allclose(of(None), logits.amax(1), atol=1e-13)
    assert torch.allclose(of(2), logits[:, 2], atol=1e-13) and torch.equal(of(-2), of(2))
    for labels in ([3, 0, 1, 2], torch.tensor([3, 0, 1, 2])):
        assert torch.allclose(of(labels), logits[torch.arange(4), [3, 0, 1, 2]], atol=1e-13)
    one = randomised(MeanHead(WIDE, 1, width=6))
    assert torch.allclose(LayerPerturber(one, score="logit").bind(given_).score(ALL), one(given_), atol=1e-13)


@pytest.mark.parametrize("operator", OPERATORS)
def test_examples_do_not_interact(operator):
    head, given_, reference, keep = laya(), features(widths=WIDE), features(1, WIDE, seed=9), some_sets()
    perturber = LayerPerturber(head, operator, reference=reference)
    whole = perturber.bind(given_).score(keep)
    order = torch.tensor([2, 0, 3, 1])
    assert torch.allclose(perturber.bind([f[order] for f in given_]).score(keep[order]), whole[order], atol=1e-13)
    alone = perturber.bind([f[2:3] for f in given_]).score(keep[2:3])
    assert torch.allclose(alone, whole[2:3], atol=1e-13)
    # Without reference features the means, and other samples, are of the batch.
    changes = operator.startswith("mean") or operator == "resample"
    assert torch.allclose(LayerPerturber(head, operator).bind(given_).score(keep), whole, atol=1e-6) != changes


def test_logarithms_keep_apart_what_probabilities_tie():
    """With p = 1 - 1e-17 no layer changes the probability, and every one changes its logarithm."""
    head, given_ = laya(), features(widths=WIDE)
    with torch.no_grad():
        head.classifier.bias[1] += 60
    rated = contributions(head, given_, torch.ones(4, dtype=torch.long))
    assert leave_one_out(LayerPerturber(head).bind(given_), given_, rated).isnan().all()
    found = leave_one_out(LayerPerturber(head, score="log_prob").bind(given_), given_, rated)
    wanted = layer_faithfulness(head, given_, rated, protocol=LayerProtocol(target="log_prob")).value
    assert torch.allclose(found, wanted) and not found.isnan().any()


def test_from_images():
    torch.manual_seed(0)
    model, x = LayaModel(tiny(), 5, pool="cls", width=8, zero_scores=False), images(3)
    with torch.no_grad():
        probabilities, parts = model(x).softmax(1), model.explain(x)
    bound = LayerPerturber(model.head).bind(model.features(x))
    assert torch.allclose(bound.score(ALL[:3, :, :3])[:, 0].float(), probabilities.amax(1), atol=1e-6)
    top = probabilities.argmax(1)
    rated = parts.contributions[torch.arange(3), :, top]
    drops = bound.score(ALL[:3, :, :3]) - bound.score(~torch.eye(3, dtype=torch.bool).expand(3, 3, 3))
    wanted = [scipy.stats.spearmanr(a, b).statistic for a, b in zip(rated, drops, strict=True)]
    assert leave_one_out(bound, x, rated).tolist() == pytest.approx(wanted)


def test_the_head_and_its_features_stay_as_they_are():
    head = randomised(laya(layer_dropout=0.5)).float().train()
    before = {name: value.clone() for name, value in head.state_dict().items()}
    given_ = [f.float().requires_grad_() for f in features(widths=WIDE)]
    copies, state, keep = [f.detach().clone() for f in given_], torch.get_rng_state(), some_sets()
    kept = keep.clone()
    bound = LayerPerturber(head, "zero_rescore").bind(given_)
    found = bound.score(keep, show_progress=True)
    assert torch.equal(found, bound.score(keep)) and not found.requires_grad  # no dropout
    assert head.training and head.classifier.weight.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())
    assert all(value.dtype == torch.float32 for value in head.state_dict().values())
    assert all(torch.equal(a, b) for a, b in zip(given_, copies, strict=True))
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(keep, kept)


@pytest.mark.parametrize(
    ("options", "target", "says"),
    [
        ({"operator": "remove"}, None, "operator='remove'; expected one of .*'renormalise'"),
        ({"score": "loss"}, None, "score='loss'; expected one of .*'log_prob'"),
        ({"score": ["prob"]}, None, "score="),
        ({}, 4, "target=4 does not fit"),
        ({}, [0, 1], "2 targets for 4 images"),
        ({}, 1.5, "target=1.5"),
        ({"reference": features(2, WIDE[:3])}, None, "4 layers; found 3 tensors"),
        ({"head": MeanHead(WIDE, 1)}, None, r"logits \[4, 1\]; expected .*2 classes"),
    ],
)
def test_wrong_arguments_are_named(options, target, says):
    if "reference" in options:
        options = options | {"operator": "mean"}
    with pytest.raises(ValueError, match=says):
        LayerPerturber(**{"head": laya(), **options}).bind(features(widths=WIDE), target)


def test_wrong_features_and_heads_are_named():
    with pytest.raises(ValueError, match="4 layers; found 3 tensors"):
        LayerPerturber(laya()).bind(features(widths=WIDE[:3]))
    with pytest.raises(ValueError, match="finite"):
        LayerPerturber(laya()).bind([f * math.nan for f in features(widths=WIDE)])
    with pytest.raises(ValueError, match="found 1 sample"):
        LayerPerturber(laya(), "resample").bind(features(1, WIDE))
    with pytest.raises(TypeError, match="found a ConcatHead; expected a head that mixes layers"):
        LayerPerturber(ConcatHead(WIDE, 4)).bind(features(widths=WIDE))
    with pytest.raises(ValueError, match=r"attributions \[4, 3\]; expected \[4, 4\]"):
        leave_one_out(LayerPerturber(laya()).bind(features(widths=WIDE)), None, scores(4, 3))
