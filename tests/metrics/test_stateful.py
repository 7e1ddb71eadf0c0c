"""Metrics over many batches: the same numbers as the functions, however images are batched."""

import importlib
import pickle
import sys

import pytest
import torch

from tests.models import images, tiny
from xattr import metrics
from xattr.metrics import METRICS, Metric, Perturber

GENERATOR = torch.Generator().manual_seed(0)
MAPS, MASKS = torch.rand(5, 1, 4, 4, generator=GENERATOR), torch.rand(5, 1, 4, 4, generator=GENERATOR) < 0.4
OTHER = torch.rand(5, 1, 4, 4, generator=GENERATOR)
ARGUMENTS = {
    **dict.fromkeys(("pointing", "energy", "top_k_intersection", "average_precision"), (MAPS, MASKS)),
    **dict.fromkeys(("gini", "entropy", "effective_size"), (MAPS,)),
    "class_sensitivity": (MAPS, OTHER, MASKS),
    "grid_pointing": (MAPS, torch.tensor([0, 1, 2, 3, 0])),
}
ON_MODELS = sorted(METRICS.keys() - ARGUMENTS.keys())


@pytest.mark.parametrize("name", ARGUMENTS)
def test_batches_do_not_matter_for_maps(name):
    whole = getattr(metrics, name)(*ARGUMENTS[name])
    metric = Metric(name)
    for part in (slice(0, 1), slice(1, 5)):
        metric.update(*(argument[part] for argument in ARGUMENTS[name]))
    assert torch.equal(metric.values, whole.double())
    assert metric.compute() == pytest.approx(float(whole.double().nanmean()))
    assert metric.interval().n == 5


@pytest.mark.parametrize("name", ON_MODELS)
def test_batches_do_not_matter_for_models(name):
    model, x = tiny(), images(3)
    target = torch.tensor([0, 3, 1])
    settings = {} if name in ("infidelity", "average_drop") else {"baseline": "mean", "unit": "patch"}
    metric = Metric(name, **settings)
    found = METRICS[name].function(model, x, MAPS[:3], target, **settings)
    whole = found if METRICS[name].field is None else getattr(found, METRICS[name].field)
    for part in (slice(0, 2), slice(2, 3)):
        metric.update(model, x[part], MAPS[:3][part], target[part])
    assert torch.allclose(metric.values, whole.double(), atol=1e-5, equal_nan=True)


def test_protocols_do_not_mix():
    metric = Metric("deletion", steps=4)
    metric.update(tiny(), images(2), MAPS[:2])
    assert metric.protocol.operator == "drop_tokens"
    metric.update(tiny(), images(1), MAPS[:1])
    with pytest.raises(ValueError, match=r"mean.*drop_tokens"):
        metric.update(Perturber(tiny(), baseline="mean"), images(1), MAPS[:1])
    assert len(metric.values) == 3
    metric.reset()
    metric.update(Perturber(tiny(), baseline="mean"), images(1), MAPS[:1])
    assert metric.protocol.operator == "mean"


def test_undefined_images_are_counted_and_directions_known():
    metric = Metric("energy")
    metric.update(MAPS[:2], torch.stack([MASKS[0], torch.zeros_like(MASKS[1])]))
    assert metric.interval().undefined == 1
    assert metric.compute() == metric.values[0]
    assert Metric("deletion").higher_is_better is False
    assert Metric("gini").higher_is_better is None
    assert Metric("entropy").unit == "nats"
    assert torch.isnan(Metric("energy").interval().mean * torch.ones(1)).all()


def test_a_metric_can_be_stored_and_has_a_known_name():
    metric = Metric("pointing", tolerance=1)
    metric.update(MAPS, MASKS)
    again = pickle.loads(pickle.dumps(metric))
    assert torch.equal(again.values, metric.values)
    with pytest.raises(ValueError, match="no metric 'points'; there are deletion"):
        Metric("points")


def test_torchmetrics_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    monkeypatch.delitem(sys.modules, "xattr.metrics.stateful")
    with pytest.raises(ModuleNotFoundError, match=r"captum-xattr\[metrics\]"):
        importlib.import_module("xattr.metrics.stateful")
