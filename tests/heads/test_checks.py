"""Checks on attention, and what fewer layers cost: each must be able to say yes and no."""

import copy
import dataclasses
import itertools

import pytest
import torch

from tests.heads.test_heads import features, randomised
from tests.trace.test_safety import same, state
from xattr.datasets import digit_scenes, embedded_model
from xattr.heads import (
    EarlyExitModel,
    HeadExplanation,
    LayaHead,
    LayaModel,
    TruncatedModel,
    accuracy,
    cached_features,
    checks,
    conditioning,
    effective_weights,
    error_detection,
    exits,
    fit,
    profile,
    scorer_randomisation,
    stability,
    truncations,
)
from xattr.metrics import count_flops
from xattr.metrics.ranking import rank_correlation
from xattr.trace import InputError


class Switched(LayaHead):
    """A head that must look at the layer that its first feature names: conditioning is all that it has."""

    def __init__(self):
        super().__init__([3, 3], 2, width=3, pre_norm=False)
        with torch.no_grad():
            for g in self.adapters.maps:
                g.weight.copy_(torch.eye(3))
                g.bias.zero_()
            self.classifier.weight.copy_(torch.tensor([[0.0, 1, 0], [0.0, 0, 1]]))
            self.classifier.bias.zero_()

    def scores(self, z):
        return 50 * torch.stack([z[:, 0, 0], -z[:, 0, 0]], 1)


def switched_data(n=200):
    """The first feature's sign says which of the two layers holds the class; the other holds the wrong one."""
    generator = torch.Generator().manual_seed(0)
    labels, side = torch.randint(0, 2, (n,), generator=generator), torch.randint(0, 2, (n,), generator=generator)
    first, second = torch.zeros(n, 3), torch.zeros(n, 3)
    first[:, 0] = 1 - 2.0 * side
    rows = torch.arange(n)
    first[rows, 1 + torch.where(side == 0, labels, 1 - labels)] = 1
    second[rows, 1 + torch.where(side == 1, labels, 1 - labels)] = 1
    return [first, second], labels


def test_conditioning_that_matters_is_seen_and_idle_conditioning_too():
    given, labels = switched_data()
    found = conditioning(Switched(), given, labels)
    assert found.own == 1
    assert 0.3 < found.permuted < 0.7  # half the examples look at the wrong layer
    assert found.uniform < 0.7
    idle = randomised(LayaHead([3, 3], 2, width=3)).float()
    with torch.no_grad():
        idle.scorer[2].weight.zero_()  # the weights are the same for all
    same_for_all = conditioning(idle, given, labels)
    assert same_for_all.own == same_for_all.permuted == same_for_all.mean


@pytest.mark.parametrize("n", range(2, 9))
def test_no_example_keeps_its_own_weights(n):
    for seed in range(10):
        others = checks._others(n, seed)
        assert sorted(others.tolist()) == list(range(n))
        assert not bool((others == torch.arange(n)).any())


def test_scorer_randomisation():
    head = randomised(LayaHead([5, 7, 3, 4], 4, width=6))
    before = copy.deepcopy(head.state_dict())
    rng = torch.get_rng_state()
    found = scorer_randomisation(head, features(50, [5, 7, 3, 4]), seeds=range(8))
    assert found.shape == (8,)
    assert float(found.abs().mean()) < 0.6
    assert torch.equal(rng, torch.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in head.state_dict().items())
    for seed in range(3):  # a random scorer looks at different layers for different images
        other = randomised(LayaHead([5, 7, 3, 4], 4, width=6), seed)
        assert float(other.explain(features(50, [5, 7, 3, 4])).alpha.detach().std(0).max()) > 1e-2
    constant = randomised(LayaHead([5, 7], 4, width=6))
    constant.psi = torch.nn.Flatten(2)
    torch.nn.init.zeros_(constant.adapters.maps[0].weight)
    torch.nn.init.zeros_(constant.adapters.maps[1].weight)
    assert float(scorer_randomisation(constant, features(5, [5, 7])).abs().min()) == 1  # two layers: same or opposite


def test_stability_and_rank_correlation():
    a = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]])
    assert rank_correlation(a, a).tolist() == [1, 1]
    assert rank_correlation(a, -a).tolist() == [-1, -1]
    assert rank_correlation(a, torch.tensor([[0.2, 0.1, 0.7], [1.0, 1.0, 1.0]]))[0] == pytest.approx(0.5)
    assert bool(rank_correlation(a, torch.ones(2, 3)).isnan().all())
    assert stability([a, a, -a]).tolist() == [1, -1, -1]
    with pytest.raises(ValueError, match="at least two"):
        stability([a])


def test_effective_weights_do_not_change_when_a_feature_is_rescaled():
    seen = randomised(LayaHead([5, 7], 4, width=6)).explain(features(6, [5, 7]))
    k = torch.tensor([0.1, 4.0], dtype=torch.float64)
    other = dataclasses.replace(seen, z=seen.z * k[:, None], alpha=seen.alpha / k)
    assert torch.allclose(effective_weights(seen), effective_weights(other))
    assert torch.allclose(effective_weights(seen).sum(1), torch.ones(6, dtype=torch.float64))


@pytest.fixture(scope="module")
def trained():
    train, test = digit_scenes("train", 1500), digit_scenes("report", 200)
    torch.manual_seed(0)
    model = LayaModel(embedded_model("class-token"), 10, pool="cls", width=32, causal=True, layer_dropout=0.3)
    given, labels = cached_features(model, (train.images, train.labels))
    fit(model.head, (given, labels), (given, labels), epochs=8, lr=3e-3)
    return model.eval(), given, test


def test_truncation_is_measured(trained):
    model, given, test = trained
    before = state(model)
    rows = truncations(model, given, (test.images, test.labels), test.images[:1])
    assert same(before, state(model))
    assert [row.keep for row in rows] == list(range(1, 9))
    assert all(a.cost < b.cost for a, b in itertools.pairwise(rows))
    assert rows[3].cost == pytest.approx(0.5, abs=0.06)  # half of the blocks
    assert rows[-1].accuracy == accuracy(model, (test.images, test.labels))
    assert rows[0].accuracy < rows[-1].accuracy - 0.2
    with torch.no_grad():
        assert torch.allclose(TruncatedModel(model, 8, given)(test.images), model(test.images), atol=1e-5)


def test_later_blocks_do_not_run(trained):
    model, given, test = trained
    ran = []
    handles = [b.register_forward_hook(lambda m, a, o, i=i: ran.append(i)) for i, b in enumerate(model.backbone.blocks)]
    TruncatedModel(model, 3, given)(test.images[:2])
    assert ran == [0, 1, 2]
    ran.clear()
    EarlyExitModel(model, threshold=0.0)(test.images[:2])
    for handle in handles:
        handle.remove()
    assert ran == [0]


def test_early_exit(trained):
    model, _, test = trained
    with torch.no_grad():
        prefixes = model.head.prefix_logits(model.features(test.images))
    never = EarlyExitModel(model, threshold=1.1).decide(test.images)
    assert torch.allclose(never[0], model(test.images).detach(), atol=1e-5)
    assert never[1].tolist() == [8] * 200
    logits, used = EarlyExitModel(model, threshold=0.9).decide(test.images)
    wanted, decided = exits(prefixes, 0.9)
    assert torch.equal(used, wanted)
    assert 3 < float(used.double().mean()) < 8
    for i in range(20):
        first = [k for k in range(8) if float(prefixes[i, k].softmax(0).max()) >= 0.9]
        assert int(used[i]) == (first[0] + 1 if first else 8)
        assert bool(decided[i]) == bool(first)
        alone, count = EarlyExitModel(model, threshold=0.9).decide(test.images[i : i + 1])
        assert int(count) == int(used[i])
        assert torch.allclose(alone[0], logits[i], atol=1e-4)
    one = test.images[int(used.argmin())][None]
    exit_model = EarlyExitModel(model, threshold=0.9)
    assert count_flops(lambda: exit_model(one)) < count_flops(lambda: EarlyExitModel(model, threshold=1.1)(one))


def test_error_detection_by_hand():
    logits = torch.tensor([[4.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.2, 0.0]])
    alpha = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.1, 0.9]])
    labels = torch.tensor([0, 0, 1, 1])  # the last one is wrong, unsure, and looks elsewhere
    seen = HeadExplanation(logits, alpha, alpha.log(), torch.zeros(4, 2, 2), torch.zeros(2), torch.zeros(4, 2, 3))
    usual = profile(alpha[:3], labels[:3], labels[:3], by="predicted")
    assert error_detection(seen, labels, usual) == {"profile": 1, "max_softmax": 1, "entropy": 1, "margin": 1}
    inverted = profile(alpha.flip(1)[:3], labels[:3], labels[:3], by="predicted")
    assert error_detection(seen, labels, inverted)["profile"] < 0.5
    with pytest.raises(InputError, match='by="predicted"'):
        error_detection(seen, labels, profile(alpha, labels, labels))


def test_what_cannot_be_cut_is_named(trained):
    model, given, _ = trained
    with pytest.raises(InputError, match="keep=9; expected 1 to 8"):
        TruncatedModel(model, 9, given)
    with pytest.raises(InputError, match="ConcatHead needs all layers"):
        TruncatedModel(LayaModel(model.backbone, 10, pool="cls", head="concat"), 2, given)
    with pytest.raises(InputError, match="causal=True"):
        EarlyExitModel(LayaModel(model.backbone, 10, pool="cls"), 0.9)


def test_checks_ask_for_a_head_and_its_features():
    model = LayaModel(embedded_model("class-token"), num_classes=3, pool="cls", width=8)
    for check in (conditioning, scorer_randomisation):
        with pytest.raises(TypeError, match=r"found a LayaModel; expected .* model.head and model.features"):
            check(model, [], torch.zeros(2, dtype=torch.long))
