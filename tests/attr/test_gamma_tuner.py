"""The gamma tuner: the best of the pairs, whatever their order, and clear errors."""

import pytest
import torch

from tests.cnns import cnn
from tests.models import images
from tests.oracles import lrp as oracle
from xattr.attr import LRP, tune_gamma
from xattr.rules import gamma


def sharpness(relevance):
    """Largest share of one pixel."""
    mass = relevance.abs().sum(1).flatten(1)
    return mass.amax(1) / mass.sum(1)


def test_the_best_pair_is_found_in_any_order():
    model, x = oracle.SmallCNN(), images(3, 12, dtype=torch.float64)
    pairs = [(c, l) for c in (0.0, 0.5, 10.0) for l in (0.0, 1.0)]
    values = {pair: sharpness(LRP(model).attribute(x, target=1, rule=gamma(*pair))).mean() for pair in pairs}
    best = max(pairs, key=lambda pair: values[pair])
    assert best not in (pairs[0], pairs[-1])
    for order in (1, -1):
        found = tune_gamma(model, x, sharpness, 1, convolution=(0.0, 0.5, 10.0)[::order], linear=(0.0, 1.0)[::order])
        assert (found.convolution, found.linear) == best
        assert {(c, l): pytest.approx(float(values[c, l])) for c, l, _, _ in found.rows} == {
            (c, l): mean for c, l, mean, _ in found.rows
        }
        wanted = LRP(model).attribute(x, target=1, rule=gamma(*best))
        assert torch.equal(LRP(model).attribute(x, target=1, rule=found.rule), wanted)
        assert found.table.splitlines()[1].split()[:2] == [f"{best[0]:g}", f"{best[1]:g}"]


def test_one_gamma_for_both():
    found = tune_gamma(cnn("resnet18"), images(2, 64), sharpness, 1, convolution=(0.0, 1.0), linear=None)
    assert [row[:2] for row in found.rows] == [(0.0, 0.0), (1.0, 1.0)]


def test_wrong_metrics_and_grids():
    model, x = oracle.SmallCNN(), images(2, 12, dtype=torch.float64)
    for metric in (lambda r: r.mean(), lambda r: r.mean((1, 2, 3)) * float("nan"), lambda r: r[:1].mean((1, 2, 3))):
        with pytest.raises(ValueError, match="one finite number for each image"):
            tune_gamma(model, x, metric, 1, convolution=[0.1], linear=[0.1])
    with pytest.raises(ValueError, match="no gamma"):
        tune_gamma(model, x, sharpness, 1, convolution=[])
    with pytest.raises(ValueError, match="at least 0"):
        tune_gamma(model, x, sharpness, 1, convolution=[-1.0])
