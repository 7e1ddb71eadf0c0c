"""Inputs and models on which a plausible number would be wrong."""

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection

from tests.models import images, relative_error, tiny
from xattr import metrics
from xattr.metrics import Metric, Perturber, deletion, insertion_deletion, saco
from xattr.trace import UnsupportedModelError

SUM = lambda z: z.sum((1, 2, 3))[:, None]


def some_maps(count=2, seed=0):
    return torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(seed))


# --- models that count their tokens, or do not run on fewer -----------------------------------------------------------


class ByHand(nn.Module):
    """A class-token ViT that does something with its tokens' number; `ids` are the tokens to run on, for the oracle."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.stem, self.head = kind, nn.Conv2d(3, 16, 8, 8), nn.Linear(16, 5)
        self.cls, self.pos = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(2, 17, 16))
        self.qkv = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        self.mask = nn.Parameter(torch.where(torch.rand(17, 17) < 0.4, -5.0, 0.0))
        for layer in self.qkv:
            layer.weight.data.mul_(4)

    def tokens(self, x):
        f = self.stem(x).flatten(2).transpose(1, 2)
        f = torch.cat([self.cls.expand(len(f), -1, -1), f], 1)
        if self.kind == "added in place":
            f = f.clone()
            f.add_(self.pos[:1])
            return f
        p = self.pos + 0.1  # a constant of two entries: no call on images
        return f + p[0]

    def bias(self, n, ids):
        at = torch.arange(n) if ids is None else ids
        table = {"mask": self.mask, "sliced mask": self.mask[:n, :n]}.get(self.kind)
        if ids is not None and table is not None:
            return self.mask[ids][:, ids]
        if self.kind == "counted distance":
            return -0.5 * (at[:, None] - at).abs().float()
        return torch.zeros(()) if table is None else table

    def forward(self, x, ids=None):
        x = self.tokens(x)
        x = x if ids is None else x[:, ids]
        for qkv in self.qkv:
            b, n, w = x.shape
            q, k, v = qkv(x).view(b, n, 3, 2, w // 2).permute(2, 0, 3, 1, 4)
            if self.kind == "heads in the batch":
                q, k, v = (t.flatten(0, 1) for t in (q, k, v))
            a = (q @ k.transpose(-2, -1) * 0.4 + self.bias(n, ids)).softmax(-1)
            out = (a @ v).view(b, 2, n, w // 2)
            x = x + out.transpose(1, 2).flatten(2)
        x = x.view(len(x), 17, 16) if self.kind == "fixed number" else x
        return self.head(x[:, 0])


@pytest.mark.parametrize("kind", ["plain", "mask", "heads in the batch"])
@pytest.mark.parametrize("limit", [1, 2, None])
def test_dropping_is_the_forward_on_the_tokens_that_are_kept(kind, limit):
    model, x = ByHand(kind).eval(), images(3)
    keep = torch.zeros(1, 1, 16, dtype=torch.bool)
    keep[..., [1, 5, 9, 14]] = True
    found = Perturber(model, score="logit", internal_batch_size=limit).bind(x, 1)
    assert found.features.operator == "drop_tokens"
    with torch.no_grad():
        wanted = model(x, torch.tensor([0, 2, 6, 10, 15]))[:, 1:2]
        assert relative_error(found.score(keep.expand(3, 1, 16)), wanted) < 1e-5
        assert relative_error(wanted, model(x)[:, 1:2]) > 1e-2


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("sliced mask", "by counting its tokens"),
        ("counted distance", "by counting its tokens"),
        ("added in place", "do not come from the shortened tokens"),
        ("fixed number", "does not run on fewer tokens"),
    ],
)
def test_models_that_count_their_tokens_are_refused_and_fall_back_by_name(kind, why):
    model, x = ByHand(kind).eval(), images()
    with pytest.raises(UnsupportedModelError, match=why):
        Perturber(model, baseline="drop_tokens").bind(x)
    assert Perturber(model).bind(x).features.operator == "mask_tokens"


@pytest.mark.parametrize("pool", ["avg", "max", "avgmax"])
def test_nothing_left_to_pool_over_beside_a_class_token(pool):
    model, x = tiny(global_pool=pool, class_token=True), images()
    found = insertion_deletion(model, x, some_maps(), 1, steps=4, score="logit")
    assert found.deletion.protocol.empty == "mean"
    with torch.no_grad():
        assert torch.allclose(found.deletion.curve[:, -1].float(), model(torch.zeros_like(x))[:, 1], atol=1e-5)
    assert found.difference.isfinite().all()


def test_a_head_that_reads_one_odd_patch_is_not_masked():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.vit = tiny(num_classes=0, global_pool="")
            self.head = nn.Linear(32, 5)

        def forward(self, x):
            tokens = self.vit.forward_features(x)
            return self.head(tokens[:, 0] + tokens[:, -1])

    with pytest.raises(UnsupportedModelError, match="that no token sees"):
        Perturber(Last().eval(), baseline="mask_tokens").bind(images())


def test_dropout_by_a_function_is_off_and_moves_no_random_state():
    vit, x = tiny(), images()
    before = torch.get_rng_state()
    noisy = deletion(
        lambda z: torch.nn.functional.dropout(vit(z), 0.5), x, some_maps(), 1, unit="patch", baseline="mean"
    )
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(noisy.curve, deletion(vit, x, some_maps(), 1, unit="patch", baseline="mean").curve)


# --- features and maps ------------------------------------------------------------------------------------------------


def test_fewer_features_than_groups():
    x = torch.tensor([[[[4.0, 3.0], [2.0, 1.0]]]])
    assert saco(SUM, x, x, unit="pixel", baseline=0).tolist() == [1.0]
    assert saco(SUM, x, 5 - x, unit="pixel", baseline=0).tolist() == [-1.0]
    with pytest.raises(ValueError, match="groups=1"):
        saco(SUM, x, x, unit="pixel", baseline=0, groups=1)


def test_aopc_does_not_depend_on_how_many_features_the_others_have():
    labels = torch.stack([torch.arange(16).view(4, 4) % 3, torch.arange(16).view(4, 4)])
    x = torch.rand(2, 1, 4, 4)
    both = insertion_deletion(SUM, x, x, unit=labels, baseline=0, steps=16).aopc
    alone = insertion_deletion(SUM, x[:1], x[:1], unit=labels[0], baseline=0, steps=16).aopc
    assert torch.allclose(both[:1], alone)


def test_numbers_that_no_pixel_has_are_no_features():
    x, sizes = torch.rand(1, 1, 4, 4), []
    f = lambda z: sizes.append(len(z)) or SUM(z)
    labels = torch.arange(16).view(4, 4) // 8 * 300
    assert Perturber(f, labels, 0).bind(x).features.count == 2
    sizes.clear()
    metrics.leave_one_out(f, x, x, unit=labels, baseline=0)
    assert sum(sizes) <= 6
    with pytest.raises(ValueError, match="whole numbers from 0"):
        Perturber(f, labels / 7, 0).bind(x)
    with pytest.raises(ValueError, match="unit=ndarray"):
        Perturber(f, labels.numpy(), 0).bind(x)


def test_maps_larger_than_the_picture_are_averaged():
    big = torch.zeros(1, 1, 320, 320)
    big[..., 80:84, 80:84] = 100.0
    values = Perturber(tiny(), baseline="mean").bind(images(1)).features.values(big)
    assert values.argmax() == 5
    assert float(values.sum()) == pytest.approx(100 * 16 / 80**2, rel=0.1)


def test_a_perturber_bound_to_other_pictures_is_refused():
    model, x, other = tiny(), images(2), images(2) + 1
    bound = metrics.Remembered(Perturber(model).bind(x))
    assert torch.equal(deletion(bound, x.clone(), some_maps()).value, deletion(bound, None, some_maps()).value)
    with pytest.raises(ValueError, match="bound to other inputs"):
        deletion(bound, other, some_maps())


def test_one_output_is_no_probability():
    found = deletion(tiny(num_classes=1), images(), some_maps(), steps=4)
    assert found.protocol.score == "logit"
    assert torch.equal(found.curve, deletion(tiny(num_classes=1), images(), some_maps(), steps=4, score="logit").curve)


def test_road_of_one_picture_does_not_depend_on_the_others():
    keep = torch.ones(2, 1, 32, 32, dtype=torch.bool)
    keep[0, :, 3, 3] = False
    keep[1, :, 1:31, 1:31] = False
    pictures = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    both, alone = metrics.road.imputed(pictures, keep), metrics.road.imputed(pictures[:1], keep[:1])
    assert torch.equal(both[:1], alone)


def test_huge_maps_and_effects():
    maps, masks = torch.full((1, 1, 2, 2), 3e38), torch.tensor([[[[True, False], [False, False]]]])
    assert metrics.energy(maps, masks).tolist() == [0.25]
    found = metrics.paired_differences({"a": torch.tensor([1e7] + 12 * [1.0]), "b": torch.zeros(13)}, "b")[0]
    assert found.p == pytest.approx(2 / 2**13)
    with pytest.raises(ValueError, match="attributions are a ndarray"):
        deletion(SUM, images(1), np.zeros((1, 3, 32, 32)))


def test_a_text_is_sent_to_the_perturber_of_texts():
    with pytest.raises(ValueError, match="TokenPerturber"):
        deletion(SUM, {"input_ids": torch.zeros(1, 3, dtype=torch.long)}, torch.zeros(1, 3))


def test_values_of_images_are_ranked_by_their_means():
    table = {"auc": {"a": torch.tensor([0.9, 0.7, torch.nan]), "b": torch.tensor([0.5, 0.6, 0.7])}}
    found = metrics.rank_methods(table, {"auc": True})
    assert found.ranks.tolist() == [[1.0, 2.0]]
    assert "Metric" in dir(metrics)


# --- metrics over many batches ----------------------------------------------------------------------------------------


def test_a_collection_keeps_metrics_apart_that_agree_once():
    both = MetricCollection({"point": Metric("pointing"), "near": Metric("pointing", tolerance=1)})
    heat, mask = torch.tensor([[[[1.0, 0.0, 0.0]]]]), torch.tensor([[[[False, True, False]]]])
    both.update(heat, torch.ones_like(mask))
    both.update(heat, mask)
    assert {name: float(value) for name, value in both.compute().items()} == {"point": 0.5, "near": 1.0}


def test_a_call_checks_the_protocol_and_loses_nothing():
    metric, x = Metric("deletion", steps=3), images(1)
    first = metric(tiny(), x, some_maps(1))
    for other in ({"baseline": "mean", "unit": "patch"}, {"steps": 7}):
        with pytest.raises(ValueError, match="this batch was measured by"):
            metric(tiny(), x, some_maps(1), **other)
        with pytest.raises(ValueError, match="this batch was measured by"):
            metric.update(tiny(), x, some_maps(1), **other)
    with pytest.raises(ValueError, match="attributions"):
        metric(tiny(), x, torch.zeros(2, 2))
    assert metric.values.tolist() == [float(first)]
