"""Correlations with perturbation: exact on linear models, and able to say no."""

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import images, tiny
from xattr.attr import GradientXToken
from xattr.metrics import Perturber, leave_one_out, saco, sensitivity_n, violations

RAW = {"unit": "pixel", "baseline": 0, "score": "logit"}


def linear(seed=0, size=5):
    generator = torch.Generator().manual_seed(seed)
    weights, x = torch.randn(1, size, size, generator=generator), torch.rand(3, 1, size, size, generator=generator)
    return lambda z: (z * weights).sum((1, 2, 3))[:, None], x, x * weights


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 99), factor=st.floats(0.01, 100))
def test_a_linear_model_is_explained_by_its_terms(seed, factor):
    f, x, exact = linear(seed)
    for metric in (leave_one_out, sensitivity_n):
        assert torch.allclose(metric(f, x, factor * exact, **RAW), torch.ones(3, dtype=torch.float64), atol=1e-5)
        assert torch.allclose(metric(f, x, -exact, **RAW), -torch.ones(3, dtype=torch.float64), atol=1e-5)
    assert not bool(violations(f, x, exact, **RAW).any())
    assert bool(violations(f, x, -exact, **RAW).all())
    assert torch.allclose(saco(f, x, exact, groups=5, **RAW), torch.ones(3, dtype=torch.float64))
    assert torch.allclose(saco(f, x, -exact, groups=5, **RAW), -torch.ones(3, dtype=torch.float64))


def test_a_random_map_is_worth_nothing():
    f, x, _ = linear(size=12)
    noise = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(9))
    assert float(leave_one_out(f, x, noise, **RAW).abs().max()) < 0.3
    assert float(saco(f, x, noise, **RAW).abs().max()) < 0.9


@pytest.mark.parametrize("baseline", [None, "mean"])
def test_a_real_model_against_loops(baseline):
    model, x = tiny(), images()
    map_ = GradientXToken(model).attribute(x, upsample=None)
    bound = Perturber(model, "patch", baseline).bind(x)
    values, everything = map_.flatten(1).double(), torch.ones(2, 1, 16, dtype=torch.bool)
    whole = bound.score(everything)[:, 0]
    drops = torch.zeros(2, 16, dtype=torch.float64)
    for f in range(16):
        keep = everything.clone()
        keep[:, :, f] = False
        drops[:, f] = whole - bound.score(keep)[:, 0]
    found, broken = leave_one_out(bound, x, map_), violations(bound, x, map_)
    for i in range(2):
        assert float(found[i]) == pytest.approx(scipy.stats.spearmanr(values[i], drops[i]).statistic, abs=1e-9)
        top = int(values[i].abs().argmax())
        assert bool(broken[i]) == bool(values[i, top] * drops[i, top] < 0)
    order = values.argsort(1, descending=True)
    for i in range(2):
        groups, total, size = [order[i, 4 * g : 4 * g + 4] for g in range(4)], 0.0, 0.0
        cost = []
        for group in groups:
            keep = everything[i : i + 1].clone()
            keep[:, :, group] = False
            cost.append(float(whole[i] - bound.score(keep.repeat(2, 1, 1))[i, 0]))
        for a in range(4):
            for b in range(a + 1, 4):
                gap = float(values[i, groups[a]].sum() - values[i, groups[b]].sum())
                total += gap if cost[a] >= cost[b] else -gap
                size += abs(gap)
        assert float(saco(bound, x, map_, groups=4)[i]) == pytest.approx(total / size, abs=1e-6)


def test_sets_are_the_same_for_every_image_and_repeatable():
    model, x = tiny(), images(3)
    map_ = GradientXToken(model).attribute(x, upsample=None)
    whole = sensitivity_n(model, x, map_, samples=6)
    assert torch.allclose(sensitivity_n(model, x[1:2], map_[1:2], samples=6), whole[1:2], atol=1e-4)
    assert torch.equal(sensitivity_n(model, x, map_, samples=6), whole)
    assert not torch.equal(sensitivity_n(model, x, map_, samples=6, seed=1), whole)


def test_constant_maps_are_undefined():
    f, x, exact = linear()
    flat = torch.ones_like(exact)
    assert bool(leave_one_out(f, x, flat, **RAW).isnan().all())
    assert bool(saco(f, x, flat, groups=5, **RAW).isnan().all())
    assert np.isnan(float(sensitivity_n(f, x, flat, **RAW)[0]))
    with pytest.raises(ValueError, match="samples=2"):
        sensitivity_n(f, x, exact, samples=2, **RAW)
