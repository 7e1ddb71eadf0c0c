"""Energy, pointing and class sensitivity on maps whose numbers are known."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from xattr.metrics import class_sensitivity, cost_in_forwards, count_flops, energy, pointing


def grid(*values):
    return torch.tensor(values).view(1, 1, 2, 2)


LEFT = torch.tensor([True, False, True, False]).view(1, 1, 2, 2)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [((4.0, 3.0, 2.0, 1.0), 0.6), ((-4.0, 3.0, 2.0, -1.0), 0.4), ((0.0, 0.0, 0.0, 0.0), 0.0), ((-1.0,) * 4, 0.0)],
)
def test_energy(values, wanted):
    assert float(energy(grid(*values), LEFT)) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ((4.0, 3.0, 2.0, 1.0), 1.0),
        ((1.0, 3.0, 2.0, 1.0), 0.0),
        ((2.0, 2.0, 2.0, 2.0), 0.5),
        ((2.0, 2.0, 2.0, 0.0), 2 / 3),
    ],
)
def test_pointing_shares_ties(values, wanted):
    assert float(pointing(grid(*values), LEFT)) == pytest.approx(wanted)


def test_channels_are_summed_first():
    pixels = torch.cat([grid(3.0, 0.0, 0.0, 0.0), grid(-2.0, 1.0, 0.0, 0.0)], 1)
    assert float(energy(pixels, LEFT)) == 0.5
    assert float(pointing(pixels, LEFT)) == 0.5


def test_class_sensitivity():
    a, b = grid(1.0, 0.0, 0.0, 0.0), grid(0.0, 1.0, 0.0, 0.0)
    assert float(class_sensitivity(a, b, LEFT)) == 1
    assert float(class_sensitivity(a, a, LEFT)) == 0
    assert float(class_sensitivity(b, a, LEFT)) == -1


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=4, max_size=4), st.floats(0.01, 100))
def test_bounded_and_free_of_scale(values, factor):
    heat = grid(*values)
    for metric in (energy, pointing):
        value = float(metric(heat, LEFT))
        assert 0 <= value <= 1 + 1e-6
    assert float(energy(heat, LEFT)) + float(energy(heat, ~LEFT)) == pytest.approx(
        float(bool((heat > 0).any())), abs=1e-5
    )


def test_shapes_that_do_not_fit():
    for maps, masks in ((torch.zeros(1, 1, 2, 3), LEFT), (torch.zeros(2, 1, 2, 2), LEFT), (torch.zeros(2, 2), LEFT)):
        with pytest.raises(ValueError, match=r"\[B, 1, H, W\]"):
            energy(maps, masks)


def test_cost_counts_forwards():
    model, image = torch.nn.Linear(8, 4), torch.zeros(1, 8)
    assert count_flops(lambda: model(image)) == 2 * 8 * 4
    assert cost_in_forwards(lambda x: [model(x) for _ in range(3)], model, image) == 3
    assert cost_in_forwards(lambda x: x, model, image) == 0
