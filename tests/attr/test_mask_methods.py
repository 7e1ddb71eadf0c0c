"""Methods that score masked images or some of the tokens: literal oracles, costs, and what must not matter."""

import copy

import numpy as np
import pytest
import torch

from tests.attr.test_families import FAMILIES, FUSED, OTHERS
from tests.models import images, relative_error, tiny
from tests.oracles import mask_methods as oracle
from tests.oracles import test_oracle as scaled
from tests.oracles.vit import ViTConfig
from tests.trace.test_safety import mixed_model, same, state
from xattr.attr import (
    MUTEX,
    RISE,
    TIS,
    AttentionGradCam,
    GenericAttention,
    ResLRP,
    TokenTM,
    TransformerAttribution,
    ViTCX,
)
from xattr.attr.mutex import statistics
from xattr.attr.tis import k_means
from xattr.trace import TargetError, UnsupportedModelError

KINDS = ["token", "avg", "distilled", "layer_scale", "registers"]


def agrees(method, kind, wanted, **options):
    model, x = scaled.build(kind), scaled.images()
    record = scaled.seen(kind, "plain", target=[1, 3])
    config = ViTConfig(scaled.HEADS, scaled.pool_of(kind), rules="plain")
    literal = torch.from_numpy(np.stack([wanted(record, b, config) for b in range(2)]))
    found = method(model).attribute(x, target=[1, 3], **options)[:, 0].view_as(literal)
    assert float(literal.std()) > 1e-5
    assert relative_error(found - literal.mean(), literal - literal.mean()) < 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_tis(kind):
    for n_masks, keep, iterations, seed in ((5, 0.5, 10, 0), (4, 0.25, 1, 3)):
        wanted = lambda r, b, c, s=(n_masks, keep, iterations, seed): oracle.tis(r, b, c, *s)
        options = {"n_masks": n_masks, "keep": keep, "iterations": iterations, "seed": seed}
        agrees(TIS, kind, wanted, upsample=None, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_mutex(kind):
    agrees(MUTEX, kind, oracle.mutex, upsample=None)
    wanted = lambda r, b, c: oracle.mutex(r, b, c, 0.3, 0.75)
    agrees(MUTEX, kind, wanted, upsample=None, threshold=0.3, quantile=0.75)


@pytest.mark.parametrize("kind", ["token", "avg"])
def test_rise(kind):
    for n_masks, cells, p, seed in ((5, 7, 0.5, 0), (3, 4, 0.3, 2)):
        wanted = lambda r, b, c, s=(n_masks, cells, p, seed): oracle.rise(r, b, c, *s)
        # Weights of its bilinear map are of single precision.
        model, x = scaled.build(kind), scaled.images()
        record = scaled.seen(kind, "plain", target=[1, 3])
        config = ViTConfig(scaled.HEADS, scaled.pool_of(kind), rules="plain")
        literal = torch.from_numpy(np.stack([wanted(record, b, config) for b in range(2)]))
        options = {"n_masks": n_masks, "cells": cells, "probability": p, "seed": seed}
        found = RISE(model).attribute(x, target=[1, 3], **options)[:, 0]
        assert relative_error(found, literal) < 1e-9


@pytest.mark.parametrize("kind", ["token", "avg", "registers"])
def test_vit_cx(kind):
    counts = []

    def wanted(record, b, config):
        heat, count = oracle.vit_cx(record, b, config, scaled.GRID, 0.2, 0.3, 5)
        counts.append(count)
        return heat

    agrees(ViTCX, kind, wanted, distance=0.2, noise=0.3, seed=5)
    assert all(1 < count < 48 for count in counts)


def test_statistics_of_series_that_do_not_vary_or_are_zero():
    series = torch.tensor([[0.3, 0.0, 1.0], [0.3, 0.0, 2.0], [0.3, 0.0, 4.0]], dtype=torch.float64)[None]
    found = statistics(series)[0]
    assert torch.isfinite(found).all()
    assert found[4, 0] == found[5, 0] == found[7, 0] == found[8, 0] == 0
    assert not bool(found[:, 1].any())
    assert torch.allclose(found[:, 2], torch.tensor(oracle.mutex_statistics(np.array([1.0, 2.0, 4.0]))))


def test_k_means_reaches_a_fixed_point_and_finds_what_is_apart():
    centres = torch.eye(4, dtype=torch.float64) * 10
    points = (centres[:, None] + torch.randn(4, 20, 4, generator=torch.Generator().manual_seed(0))).flatten(0, 1)
    found = k_means(points, 4, 50, seed=1)
    apart = torch.cdist(points, found)
    means = torch.stack([points[apart.argmin(1) == k].mean(0) for k in range(4)])
    assert torch.allclose(found, means)
    assert torch.equal(k_means(points, 80, 5, seed=0).sort(0).values, points.sort(0).values)


SIMILAR = (AttentionGradCam, GenericAttention, ResLRP, TokenTM, TransformerAttribution)
METHODS = {RISE: {"n_masks": 5}, TIS: {"n_masks": 5}, MUTEX: {}, ViTCX: {"n_masks": 3}}


@pytest.mark.parametrize("kind", METHODS)
def test_neither_batches_nor_their_size_matter(kind):
    model, x = tiny().double(), images(3, dtype=torch.float64)
    whole = kind(model).attribute(x, target=[0, 1, 2], **METHODS[kind])
    for options in ({"internal_batch_size": 1}, {"budget": 1}, {"budget": 2**30}):
        again = kind(model).attribute(x, target=[0, 1, 2], **METHODS[kind], **options)
        assert relative_error(again, whole) < 1e-12
    alone = torch.cat([kind(model).attribute(x[i : i + 1], target=i, **METHODS[kind]) for i in (2, 1, 0)])
    assert relative_error(alone.flip(0), whole) < 1e-12
    predicted = kind(model).attribute(x, **METHODS[kind])
    assert torch.equal(predicted, kind(model).attribute(x, target=model(x).argmax(1), **METHODS[kind]))


@pytest.mark.parametrize("kind", METHODS)
def test_seeds_autocast_and_progress(kind, capsys):
    model, x = tiny(), images()
    found = kind(model).attribute(x, target=1, **METHODS[kind])
    assert capsys.readouterr().err == ""
    assert torch.equal(kind(model).attribute(x, target=1, show_progress=True, **METHODS[kind]), found)
    assert "100%" in capsys.readouterr().err
    half = kind(model).attribute(x, target=1, autocast=torch.bfloat16, **METHODS[kind])
    assert 0 < relative_error(half, found) < 0.05
    if kind is not MUTEX:
        assert not torch.equal(kind(model).attribute(x, target=1, seed=1, **METHODS[kind]), found)
    state = torch.random.get_rng_state()
    kind(model).attribute(x, target=1, **METHODS[kind])
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("kind", [*METHODS, *SIMILAR])
def test_nothing_of_the_users_changes(kind):
    model, x = mixed_model(), images()
    before, picture, options = state(model), x.clone(), METHODS.get(kind, {})
    found = kind(model).attribute(x, target=1, **options)
    assert same(before, state(model))
    assert torch.equal(x, picture)
    assert relative_error(kind(copy.deepcopy(model).eval()).attribute(x, target=1, **options), found) < 1e-4
    for wrong in (7, [1]):
        with pytest.raises(TargetError):
            kind(model).attribute(x, target=wrong, **options)
    calls = []

    def breaks(z):
        calls.append(1)
        if len(calls) > (kind not in SIMILAR):
            raise RuntimeError("broken")
        return model(z)

    with pytest.raises(RuntimeError, match="broken"):
        kind(breaks).attribute(x, target=1, **options)
    assert same(before, state(model))
    with torch.inference_mode():
        again = kind(model).attribute(x * 1, target=1, **options)  # of an inference tensor
    assert torch.equal(again, found)
    assert isinstance(kind(model).attribute((x,), target=1, **options), tuple)


@pytest.mark.parametrize("name", ["transformers ViT", "transformers DINOv2 with registers", "timm DINOv3"])
@pytest.mark.parametrize("kind", METHODS)
def test_fused_or_written_out(name, kind):
    x = images(2, dtype=torch.float64)
    eager, fused = (make().double() for make in (FAMILIES[name][0], FUSED[name]))
    for module in eager.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    maps = [kind(model).attribute(x, target=1, **METHODS[kind]) for model in (eager, fused)]
    # The eager softmax of transformers rounds to float32, and a patch at a threshold of MUTEX then changes sides.
    jumps = kind is MUTEX and name.startswith("transformers")
    assert relative_error(*maps) < (0.15 if jumps else 1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_other_attention_is_refused_by_name_or_explained(name):
    model, x = OTHERS[name](), images(1, 64)
    for kind in (TIS, MUTEX):
        with pytest.raises(UnsupportedModelError, match=rf"{kind.__name__} explains .*(maps|works on)"):
            kind(model).attribute(x, target=1)
    for kind in (RISE, ViTCX):
        assert kind(model).attribute(x, target=1, **METHODS[kind]).shape == (1, 1, 64, 64)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (RISE, {"n_masks": 0}),
        (RISE, {"probability": 0}),
        (RISE, {"cells": 1.5}),
        (TIS, {"keep": 0}),
        (TIS, {"iterations": 0}),
        (MUTEX, {"quantile": 2}),
        (MUTEX, {"threshold": -1}),
        (ViTCX, {"distance": 0}),
        (ViTCX, {"n_masks": True}),
    ],
)
def test_wrong_settings_are_named(kind, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong)) + "="):
        kind(tiny()).attribute(images(), target=1, **wrong)
