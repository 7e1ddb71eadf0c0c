"""Gini, entropy and effective size against closed forms and slow re-implementations."""

import math

import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xattr.metrics.complexity import effective_size, entropy, gini

METRICS = [gini, entropy, effective_size]
each = pytest.mark.parametrize("metric", METRICS)
maps_of_one_size = st.lists(
    st.lists(st.floats(-1e3, 1e3, width=32).map(lambda x: x if abs(x) > 1e-3 else 0.0), min_size=6, max_size=6),
    min_size=1,
    max_size=4,
).map(lambda rows: torch.tensor(rows).view(-1, 1, 2, 3))


@pytest.mark.parametrize("n", [1, 2, 7, 224 * 224])
@pytest.mark.parametrize("value", [-0.3, 1e-44, 3e38])  # the last sums to infinity in single precision
def test_equal_values(n, value):
    maps = torch.full((1, 1, 1, n), value)
    assert float(gini(maps)) == pytest.approx(0, abs=1e-6)
    assert float(entropy(maps)) == pytest.approx(math.log(n), abs=1e-5)
    assert float(effective_size(maps)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("n", [1, 2, 7, 224 * 224])
@pytest.mark.parametrize("value", [1.0, -5.0, 1e-40, 3e38])
def test_one_pixel(n, value):
    maps = torch.zeros(1, 1, 1, n)
    maps[..., n // 2] = value
    assert float(gini(maps)) == pytest.approx((n - 1) / n)
    assert float(entropy(maps)) == 0
    assert float(effective_size(maps)) == pytest.approx(1 / n)


@pytest.mark.parametrize(("m", "n"), [(1, 9), (3, 9), (8, 9), (9, 9)])
def test_some_equal_values_among_zeros(m, n):
    maps = torch.zeros(1, 1, 3, 3)
    maps.view(-1)[:m] = 4.0
    assert float(gini(maps)) == pytest.approx(1 - m / n, abs=1e-6)
    assert float(entropy(maps)) == pytest.approx(math.log(m), abs=1e-6)
    assert float(effective_size(maps)) == pytest.approx(m / n)


def test_by_hand():
    maps = torch.tensor([1.0, -3.0, 0.0, 4.0]).view(1, 1, 2, 2)
    # Mean absolute difference of the 16 ordered pairs, over twice the mean.
    assert float(gini(maps)) == pytest.approx(2 * (2 + 1 + 3 + 3 + 1 + 4) / 16 / (2 * 2))
    assert float(entropy(maps)) == pytest.approx(-sum(p * math.log(p) for p in (1 / 8, 3 / 8, 4 / 8)))


@settings(max_examples=50, deadline=None)
@given(maps_of_one_size)
def test_against_the_definitions(maps):
    for i, heat in enumerate(maps.flatten(1).abs().double()):
        if not heat.any():
            assert all(metric(maps)[i].isnan() for metric in METRICS)
            continue
        wanted = float((heat[:, None] - heat).abs().mean() / (2 * heat.mean()))
        assert float(gini(maps)[i]) == pytest.approx(wanted, abs=1e-5)
        nats = float(scipy.stats.entropy(heat.numpy()))
        assert float(entropy(maps)[i]) == pytest.approx(nats, abs=1e-5)
        assert float(effective_size(maps)[i]) == pytest.approx(math.exp(nats) / 6, abs=1e-5)


@each
@settings(max_examples=40, deadline=None)
@given(maps_of_one_size, st.floats(1e-3, 1e3), st.randoms())
def test_each_image_alone_in_any_order_at_any_scale(metric, maps, factor, random):
    values = metric(maps)
    assert values.shape == (len(maps),)
    for scaled in (factor * maps, -maps):
        torch.testing.assert_close(metric(scaled), values, equal_nan=True, atol=1e-5, rtol=1e-5)
    order = random.sample(range(len(maps)), len(maps))
    torch.testing.assert_close(metric(maps[order]), values[order], equal_nan=True)
    torch.testing.assert_close(torch.cat([metric(m) for m in maps.split(1)]), values, equal_nan=True)
    torch.testing.assert_close(metric(maps.flip(3)), values, equal_nan=True)


@each
def test_channels_are_summed_first(metric):
    maps = torch.tensor([[3.0, 1.0, 0.0, 0.0], [-3.0, 1.0, 0.0, 0.0]]).view(1, 2, 2, 2)
    torch.testing.assert_close(metric(maps), metric(maps.sum(1, keepdim=True)))
    assert float(entropy(maps)) == 0


@each
def test_zeros_and_what_is_not_finite_have_no_number(metric):
    maps = torch.rand(4, 1, 2, 2)
    maps[0], maps[1, 0, 0, 0], maps[2, 0, 0, 0] = 0, math.nan, math.inf
    assert metric(maps).isnan().tolist() == [True, True, True, False]
    assert metric(maps[:0]).shape == (0,)


@each
def test_half_precision_is_summed_in_single(metric):
    maps = torch.ones(1, 1, 300, 300)
    assert metric(maps.half()).dtype == torch.float32
    torch.testing.assert_close(metric(maps.half()), metric(maps))


@each
def test_other_shapes(metric):
    with pytest.raises(ValueError, match=r"maps are \[2, 2\]; expected \[B, C, H, W\]"):
        metric(torch.rand(2, 2))
