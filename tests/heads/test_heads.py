"""Heads against a literal oracle, their identities, and their sizes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles import laya as oracle
from xattr.heads import (
    HEADS,
    ConcatHead,
    LastLayerHead,
    LastLayerMLPHead,
    LayaHead,
    MeanHead,
    ProbeHead,
    ScalarMixHead,
)
from xattr.heads.reproduce import EXPERIMENTS

WIDTHS = (5, 7, 3)


def randomised(head, seed=0):
    """Every parameter random, so that no part can be left out unseen."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in head.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.5)
    return head.double().eval()


def features(count=4, widths=WIDTHS, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, width, generator=generator, dtype=torch.float64) for width in widths]


def weights(head):
    """The parameters as the oracle takes them."""
    pair = lambda layer: (layer.weight.detach().numpy(), layer.bias.detach().numpy())
    norms = [pair(n) if isinstance(n, torch.nn.LayerNorm) else None for n in head.adapters.norms]
    return oracle.HeadWeights(
        adapters=[pair(g) for g in head.adapters.maps],
        norms=norms,
        psi=[pair(head.psi[0]), pair(head.psi[2])] if isinstance(head.psi, torch.nn.Sequential) else None,
        scorer=(pair(head.scorer[0]), pair(head.scorer[2])),
        classifier=pair(head.classifier),
        temperature=head.temperature,
        causal=head.causal,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("psi", ["identity", "mlp"])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_equals_the_literal_head(pre_norm, psi, causal):
    head = randomised(LayaHead(WIDTHS, 4, width=6, psi=psi, pre_norm=pre_norm, temperature=1.5, causal=causal))
    given_, known = features(), weights(head)
    seen, logits = head.explain(given_), head(given_)
    assert float(seen.alpha.detach().std(0).max()) > 1e-2  # it depends on the image
    for b in range(4):
        wanted = oracle.explain([f[b].numpy() for f in given_], known)
        for name in ("logits", "alpha", "scores", "contributions", "z"):
            assert np.abs(getattr(seen, name)[b].detach().numpy() - getattr(wanted, name)).max() < 1e-12, name
        assert np.abs(logits[b].detach().numpy() - wanted.logits).max() < 1e-12
        if causal:
            prefixes = oracle.prefix_logits([f[b].numpy() for f in given_], known)
            assert np.abs(head.prefix_logits(given_)[b].detach().numpy() - prefixes).max() < 1e-12


@settings(max_examples=25, deadline=None)
@given(
    widths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    width=st.integers(1, 8),
    tau=st.floats(0.1, 5),
    seed=st.integers(0, 99),
)
def test_contributions_and_bias_are_the_logits(widths, width, tau, seed):
    for kind in (LayaHead, ScalarMixHead, MeanHead):
        options = {"temperature": tau} if kind is LayaHead else {}
        head = randomised(kind(widths, 3, width=width, **options), seed)
        given_ = features(3, widths, seed)
        seen = head.explain(given_)
        assert torch.allclose(seen.contributions.sum(1) + seen.bias, seen.logits, atol=1e-12)
        assert torch.allclose(head(given_), seen.logits, atol=1e-12)
        assert torch.allclose(seen.alpha.sum(1), torch.ones(3, dtype=torch.float64), atol=1e-12)
        single = head.float().explain([f.float() for f in given_])
        scale = float(single.logits.detach().abs().max()) + 1
        assert float((single.contributions.sum(1) + single.bias - single.logits).detach().abs().max()) < 1e-6 * scale


def test_one_layer_has_weight_one_and_the_logits_of_its_classifier():
    head, (h,) = randomised(LayaHead([5], 4, width=6)), features(4, [5])
    seen = head.explain([h])
    assert torch.equal(seen.alpha, torch.ones(4, 1, dtype=torch.float64))
    plain = head.classifier(head.adapters.maps[0](head.adapters.norms[0](h)))
    assert torch.allclose(head([h]), plain, atol=1e-12)


def test_the_scale_of_alpha_is_not_identified():
    """Features k times as long with weights k times as small contribute the same."""
    head = randomised(LayaHead(WIDTHS, 4, width=6))
    seen = head.explain(features())
    k = torch.tensor([0.5, 3.0, 10.0], dtype=torch.float64)
    again = head._explained(seen.z * k[:, None], seen.scores, seen.alpha / k)
    assert torch.allclose(again.contributions, seen.contributions, atol=1e-12)
    assert torch.allclose(again.logits, seen.logits, atol=1e-12)
    assert not torch.allclose(again.alpha, seen.alpha, atol=0.1)


def test_a_causal_head_ends_with_its_own_logits_and_does_not_look_ahead():
    head, given_ = randomised(LayaHead(WIDTHS, 4, width=6, causal=True)), features()
    prefixes = head.prefix_logits(given_)
    assert torch.allclose(prefixes[:, -1], head(given_), atol=1e-12)
    changed = [*given_[:2], -given_[2]]
    assert torch.allclose(head.prefix_logits(changed)[:, :2], prefixes[:, :2], atol=1e-12)
    assert not torch.allclose(head.prefix_logits(changed)[:, 2], prefixes[:, 2])
    with pytest.raises(ValueError, match="causal=True"):
        LayaHead(WIDTHS, 4).prefix_logits(given_)


def test_weights_start_equal_unless_asked_otherwise():
    given_ = [f.float() for f in features()]
    assert torch.allclose(LayaHead(WIDTHS, 4).explain(given_).alpha, torch.full((4, 3), 1 / 3))
    for other in (LayaHead(WIDTHS, 4, zero_scores=False), LayaHead.paper(WIDTHS, 4)):
        assert float(other.explain(given_).alpha.detach().std(0).min()) > 1e-3


def test_layer_dropout_leaves_layers_out_in_training_alone():
    head = randomised(LayaHead(WIDTHS, 4, width=6, layer_dropout=0.5))
    given_ = features(200)
    assert bool((head.explain(given_).alpha > 0).all())
    torch.manual_seed(0)
    alpha = head.train().explain(given_).alpha
    left_out = alpha == 0
    assert 0.3 < float(left_out.double().mean()) < 0.6
    assert torch.allclose(alpha.sum(1), torch.ones(200, dtype=torch.float64))


def test_sizes_of_the_paper():
    count = lambda module: sum(p.numel() for p in module.parameters())
    widths, heads = (512, 256, 128), EXPERIMENTS["fashion-mnist"].heads
    assert count(EXPERIMENTS["fashion-mnist"].backbone()) == 567_936
    sizes = {name: count(HEADS[kind](widths, 10, **options)) for name, (kind, options) in heads.items()}
    assert (sizes["laya"], sizes["last"], sizes["scalar-mix"], sizes["concat"]) == (143_341, 1_290, 87_277, 115_018)
    assert sizes["laya-causal"] == sizes["laya"]
    assert abs(sizes["last-mlp"] - 143_341) < 139  # the nearest whole hidden unit


def test_other_heads_by_hand():
    given_ = features()
    probe = randomised(ProbeHead(WIDTHS, 4, layer=1))
    assert torch.allclose(probe(given_), given_[1] @ probe.classifier.weight.T + probe.classifier.bias)
    last = randomised(LastLayerHead(WIDTHS, 4))
    assert torch.allclose(last(given_), last.classifier(given_[2]))
    mean = randomised(MeanHead(WIDTHS, 4, width=6))
    z = torch.stack([g(n(h)) for g, n, h in zip(mean.adapters.maps, mean.adapters.norms, given_, strict=True)])
    assert torch.allclose(mean(given_), mean.classifier(z.mean(0)))
    mix = randomised(ScalarMixHead(WIDTHS, 4, width=6, pre_norm=False))
    z = torch.stack([g(h) for g, h in zip(mix.adapters.maps, given_, strict=True)])
    assert torch.allclose(mix(given_), mix.classifier((mix.mix.softmax(0)[:, None, None] * z).sum(0)))
    concat = randomised(ConcatHead(WIDTHS, 4, width=6, pre_norm=False))
    joined = torch.cat([g(h) for g, h in zip(concat.adapters.maps, given_, strict=True)], 1)
    hidden = torch.nn.functional.gelu(concat.post[0](joined))
    assert torch.allclose(concat(given_), concat.classifier(hidden))
    mlp = randomised(LastLayerMLPHead(WIDTHS, 4, parameters=200))
    assert abs(sum(p.numel() for p in mlp.parameters()) - 200) <= 4


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LayaHead([], 3), "widths=\\[\\].*at least one"),
        (lambda: LayaHead([4, 0], 3), "widths=\\[4, 0\\]"),
        (lambda: LayaHead([4], 0), "num_classes=0"),
        (lambda: LayaHead([4], 3, width=0), "width=0"),
        (lambda: LayaHead([4], 3, hidden=-1), "hidden=-1"),
        (lambda: LayaHead([4], 3, temperature=0), "temperature=0.*above 0"),
        (lambda: LayaHead([4], 3, temperature=float("nan")), "temperature=nan"),
        (lambda: LayaHead([4], 3, psi="cnn"), "psi='cnn'"),
        (lambda: LayaHead([4], 3, layer_dropout=1.0), "layer_dropout=1.0"),
        (lambda: ProbeHead([4], 3, layer=1), "layer=1"),
        (lambda: LastLayerMLPHead([4], 3, parameters=0), "parameters=0"),
        (lambda: LayaHead([4, 4], 3)([torch.zeros(1, 4)]), "2 layers; found 1 tensors"),
        (lambda: LayaHead([4, 4], 3)(torch.zeros(2, 4)), "found one tensor \\[2, 4\\]"),
        (lambda: LayaHead([4], 3)([torch.zeros(1, 5)]), "\\[1, 5\\]; expected \\[1, 4\\]"),
        (lambda: LayaHead([4], 3)([torch.zeros(1, 6, 4)]), "pool tokens"),
    ],
)
def test_wrong_sizes_are_named(make, says):
    with pytest.raises(ValueError, match=says):
        make()
