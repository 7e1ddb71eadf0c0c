"""Average drop and increase in confidence, by hand and against a loop."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import images, tiny
from tests.trace.test_safety import mixed_model, same, state
from xattr.attr import GradSkip
from xattr.metrics import Perturber
from xattr.metrics.average_drop import average_drop


def total(z):
    return z.sum((1, 2, 3))


def test_by_hand():
    x = torch.tensor([[1.0, 1.0, 2.0, 0.0], [1.0, 1.0, -1.0, 1.0], [0.0, 0.0, 1.0, 0.0]]).view(3, 1, 2, 2)
    maps = torch.tensor([[-1.0, 1.0, 3.0, 3.0], [5.0, 5.0, 4.0, 5.0], [0.0, 0.0, 2.0, 0.0]]).view(3, 1, 2, 2)
    found = average_drop(total, x, maps)  # scaled: 0, .5, 1, 1; 1, 1, 0, 1; 0, 0, 1, 0
    assert found.before.tolist() == [4, 2, 1]
    assert found.after.tolist() == [2.5, 3, 1]
    assert found.drop.tolist() == [1.5 / 4, 0, 0]
    assert found.increase.tolist() == [0, 1, 0]
    assert found.area.tolist() == [2.5 / 4, 0.75, 0.25]
    assert found.class_ == "predicted"


def test_against_a_loop():
    model, x = tiny(), images(3)
    maps = GradSkip(model).attribute(x, target=1, upsample=None)
    found = average_drop(model, x, maps, 1)
    for i in range(3):
        heat = torch.nn.functional.interpolate(maps[i : i + 1].double(), (32, 32), mode="bilinear")
        heat = (heat - heat.min()) / (heat.max() - heat.min())
        with torch.no_grad():
            p, p_m = (float(model(z).double().softmax(1)[0, 1]) for z in (x[i : i + 1], (x[i : i + 1] * heat).float()))
        assert float(found.before[i]) == pytest.approx(p, rel=1e-4)
        assert float(found.after[i]) == pytest.approx(p_m, rel=1e-4)
        assert float(found.drop[i]) == pytest.approx(max(0, p - p_m) / p, abs=1e-4)
        assert float(found.increase[i]) == float(p_m > p)
        assert float(found.area[i]) == pytest.approx(float(heat.mean()), rel=1e-6)
    assert found.class_ == "given"
    assert 0 < float(found.increase.sum()) + float((found.drop > 0).sum()) == 3


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 99), scale=st.floats(0.01, 100), shift=st.floats(-10, 10))
def test_scale_offset_channels_order_and_batch_make_no_difference(seed, scale, shift):
    generator = torch.Generator().manual_seed(seed)
    x, maps = (torch.rand(3, 2, 4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    whole = average_drop(total, x, maps)
    order = torch.tensor([2, 0, 1])
    sums = maps.sum(1, keepdim=True)
    for other in (
        average_drop(total, x, scale * sums + shift),
        average_drop(total, x, sums[:, 0], internal_batch_size=1),
    ):
        for name in ("drop", "increase", "area", "before", "after"):
            assert torch.allclose(getattr(other, name), getattr(whole, name), atol=1e-9)
    assert torch.equal(average_drop(total, x[order], maps[order]).after, whole.after[order])
    alone = torch.cat([average_drop(total, a, b).drop for a, b in zip(x.split(1), maps.split(1), strict=True)])
    assert torch.allclose(alone, whole.drop, atol=1e-12)


def test_undefined():
    x, maps = torch.rand(3, 1, 2, 2) + 0.1, torch.rand(3, 1, 2, 2)
    maps[0], maps[1] = 0, 4
    x[2] *= -1  # p is below 0
    found = average_drop(total, x, maps)
    for values in (found.increase, found.area, found.after):
        assert values.isnan().tolist() == [True, True, False]
    assert bool(found.drop.isnan().all())
    assert not bool(found.before.isnan().any())


def test_nothing_changes():
    model, x = mixed_model(), images()
    before, image, random = state(model), x.clone(), torch.get_rng_state()
    one = average_drop(model, x, x)
    assert torch.equal(average_drop(model, x, x).after, one.after)
    with pytest.raises(RuntimeError):
        average_drop(model, x[:, :2], x)
    assert same(before, state(model))
    assert torch.equal(x, image)
    assert torch.equal(random, torch.get_rng_state())


def test_what_it_refuses():
    x = torch.rand(2, 1, 3, 3)
    with pytest.raises(ValueError, match="3 attributions for 2 images"):
        average_drop(total, x, torch.rand(3, 1, 3, 3))
    with pytest.raises(ValueError, match="NaN or infinite"):
        average_drop(total, x, x / 0)
    with pytest.raises(ValueError, match="found a Perturber"):
        average_drop(Perturber(total), x, x)
    with pytest.raises(ValueError, match=r"expected \[B, C, h, w\]"):
        average_drop(total, x, torch.rand(2, 9))
