"""Deletion and insertion: areas that can be checked by hand, and what they must not depend on."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import images, tiny
from xattr import metrics
from xattr.attr import GradSkip
from xattr.metrics import Perturber, count_flops, deletion, insertion, insertion_deletion
from xattr.metrics.curves import Protocol
from xattr.metrics.features import Features

SUMS = lambda z: torch.stack([z.sum((1, 2, 3)), -z.sum((1, 2, 3))], 1)
RAW = {"unit": "pixel", "baseline": 0, "score": "logit"}


def test_areas_by_hand():
    one = torch.tensor([[4.0, 3.0], [2.0, 1.0]]).view(1, 1, 2, 2)
    found = deletion(SUMS, one, one[:, 0], 0, **RAW)
    assert found.curve.tolist() == [[10, 6, 3, 1, 0]]
    assert found.value.tolist() == [3.75]
    assert found.fractions.tolist() == [[0, 0.25, 0.5, 0.75, 1]]
    assert not found.higher_is_better
    other = insertion(SUMS, one, one[:, 0], 0, **RAW)
    assert other.curve.tolist() == [[0, 4, 7, 9, 10]]
    assert other.value.tolist() == [6.25]
    assert other.higher_is_better
    assert found.protocol == Protocol("deletion", "pixel", "0", "logit", 4, "given", 1)
    pair = insertion_deletion(SUMS, one, one[:, 0], 0, **RAW)
    assert pair.difference.tolist() == [2.5]
    assert pair.aopc.tolist() == [(0 + 4 + 7 + 9 + 10) / 5]
    assert torch.equal(pair.insertion.curve, other.curve)


def test_a_pixel_goes_with_all_its_channels():
    rgb, map_ = torch.ones(1, 3, 2, 2), torch.tensor([[[0.4, 0.3], [0.2, 0.1]]])
    assert deletion(SUMS, rgb, map_, 0, **RAW).curve.tolist() == [[12, 9, 6, 3, 0]]
    three = map_[:, None] * torch.tensor([1.0, 2.0, -1.0]).view(1, 3, 1, 1)
    assert deletion(SUMS, rgb, three, 0, **RAW).curve.tolist() == [[12, 9, 6, 3, 0]]


def test_best_and_worst_order_of_a_linear_model():
    generator = torch.Generator().manual_seed(0)
    weights, x = torch.randn(1, 6, 6, generator=generator), torch.rand(3, 1, 6, 6, generator=generator)
    f = lambda z: (z * weights).sum((1, 2, 3))[:, None]
    exact = x * weights
    best = insertion_deletion(f, x, exact, **RAW).difference
    worst = insertion_deletion(f, x, -exact, **RAW).difference
    for seed in range(5):
        other = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
        middle = insertion_deletion(f, x, other, **RAW).difference
        assert bool((worst < middle).all())
        assert bool((middle < best).all())
    assert torch.allclose(best, -worst, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(steps=st.integers(1, 40), factor=st.floats(0.01, 100), seed=st.integers(0, 50))
def test_neither_scale_nor_the_number_of_steps_of_a_straight_line(steps, factor, seed):
    x = torch.ones(2, 1, 5, 5)
    map_ = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(seed))
    found = deletion(SUMS, x, map_, 0, steps=steps, **RAW)
    assert torch.allclose(found.value, torch.tensor([12.5, 12.5], dtype=torch.float64))  # a straight line from 25 to 0
    assert found.curve.shape[1] == min(steps, 25) + 1
    assert torch.equal(found.curve, deletion(SUMS, x, factor * map_, 0, steps=steps, **RAW).curve)


def test_a_constant_score_has_the_constant_as_area():
    f = lambda z: z.new_full((len(z), 1), 0.3) + 0 * z.sum((1, 2, 3))[:, None]
    for name in (deletion, insertion):
        assert name(f, images(2, 8), images(2, 8), steps=7, **RAW).value.tolist() == pytest.approx([0.3, 0.3], rel=1e-6)


@pytest.mark.parametrize("baseline", [None, "mean", "road"])
def test_one_image_alone_is_the_same_image_in_a_batch(baseline):
    model, x = tiny(), images(4)
    maps = GradSkip(model).attribute(x, upsample=None)
    whole = insertion_deletion(model, x, maps, baseline=baseline, steps=5)
    order = torch.tensor([2, 0, 3, 1])
    shuffled = insertion_deletion(model, x[order], maps[order], baseline=baseline, steps=5)
    assert torch.allclose(shuffled.difference, whole.difference[order], atol=1e-6)
    for i in range(4):
        alone = insertion_deletion(model, x[i : i + 1], maps[i : i + 1], baseline=baseline, steps=5)
        for one in ("deletion", "insertion"):
            assert torch.allclose(getattr(alone, one).curve, getattr(whole, one).curve[i : i + 1], atol=1e-6)


def test_removed_counts_are_exact_also_with_ties():
    class Counting:
        features = Features(torch.ones(1, 10, dtype=torch.bool), "layer", "drop", "prob", "given")

        def score(self, keep, show_progress=False):
            self.kept = keep.sum(-1)
            return keep.sum(-1).double()

    bound = Counting()
    found = deletion(bound, None, torch.zeros(1, 10), steps=4)
    assert bound.kept.tolist() == [[10, 8, 5, 2, 0]]
    assert found.ties.tolist() == [1.0]
    insertion(bound, None, torch.zeros(1, 10), steps=4)
    assert bound.kept.tolist() == [[0, 2, 5, 8, 10]]


def test_images_with_different_numbers_of_regions():
    labels = torch.tensor([[[0, 1], [2, 3]], [[0, 0], [1, 1]]])
    x = torch.tensor([[[[4.0, 3.0], [2.0, 1.0]]], [[[4.0, 3.0], [2.0, 1.0]]]])
    found = deletion(SUMS, x, x, 0, unit=labels, baseline=0, score="logit")
    assert found.curve[0].tolist() == [10, 6, 3, 1, 0]
    assert found.curve[1, [0, -1]].tolist() == [10, 0]
    assert set(found.curve[1].tolist()) == {10.0, 3.0, 0.0}
    alone = deletion(SUMS, x[1:], x[1:], 0, unit=labels[1], baseline=0, score="logit")
    assert alone.value.tolist() == found.value[1:].tolist() == [(6.5 + 1.5) / 2]


def test_nothing_depends_on_how_many_regions_the_other_images_have():
    coarse = torch.arange(16).view(4, 4) // 4
    labels = torch.stack([coarse % 3, torch.arange(16).view(4, 4)])
    model, x = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)), torch.rand(2, 1, 4, 4)
    flat = torch.ones(2, 1, 4, 4)  # all features tie
    rough = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    for maps in (flat, rough):
        both = insertion_deletion(model, x, maps, 1, unit=labels, baseline=0, steps=16)
        alone = insertion_deletion(model, x[:1], maps[:1], 1, unit=labels[0], baseline=0, steps=16)
        for side in ("deletion", "insertion"):
            of_both, of_one = getattr(both, side), getattr(alone, side)
            for number in ("value", "inner", "ties"):
                assert torch.allclose(getattr(of_both, number)[:1], getattr(of_one, number), atol=1e-6)
        for metric in (metrics.leave_one_out, metrics.saco, metrics.violations, metrics.sensitivity_n):
            together = metric(model, x, maps, 1, unit=labels, baseline=0)[:1].double()
            single = metric(model, x[:1], maps[:1], 1, unit=labels[0], baseline=0).double()
            assert torch.allclose(together, single, atol=1e-6, equal_nan=True)


def test_a_pair_on_vit_b_costs_about_29_forwards():
    model, x = tiny(img_size=112, patch_size=8, embed_dim=64, num_heads=2, depth=4), images(1, 112)
    maps = torch.rand(1, 1, 14, 14)
    bound = Perturber(model).bind(x)
    with torch.no_grad():
        forward = count_flops(lambda: model(x))
    assert count_flops(lambda: insertion_deletion(bound, x, maps, steps=28)) <= 31 * forward


def test_silent_and_with_a_bar(capfd):
    model, x = tiny(), images(2)
    maps = torch.rand(2, 1, 4, 4)
    quiet = insertion_deletion(model, x, maps, steps=3)
    assert capfd.readouterr() == ("", "")
    loud = insertion_deletion(model, x, maps, steps=3, show_progress=True)
    assert "%|" in capfd.readouterr().err
    assert torch.equal(quiet.difference, loud.difference)


@pytest.mark.parametrize("bound", [False, True])
def test_a_perturber_holds_the_settings(bound):
    model, x = tiny(), images(2)
    maps = torch.rand(2, 1, 4, 4)
    given = Perturber(model, baseline="blur", score="logit", unit="patch")
    found = deletion(given.bind(x, 2) if bound else given, x, maps, None if bound else 2, steps=4)
    again = deletion(model, x, maps, 2, baseline="blur", score="logit", unit="patch", steps=4)
    assert torch.equal(found.curve, again.curve)
    assert found.protocol == again.protocol == Protocol("deletion", "patch", "blur", "logit", 4, "given", 2)


def test_where_nothing_is_left_of_a_mean_pooled_model():
    model, x = tiny(global_pool="avg", class_token=False), images(2)
    found = insertion_deletion(model, x, torch.rand(2, 1, 4, 4), steps=4)
    for one, kept in ((found.deletion, slice(0, 4)), (found.insertion, slice(1, 5))):
        assert one.protocol.empty == "mean"
        assert torch.allclose(one.inner, torch.trapezoid(one.curve[:, kept], dx=1 / 3, dim=1))
    assert deletion(tiny(), x, torch.rand(2, 1, 4, 4), steps=4).protocol.empty is None


def test_no_more_examples_in_a_forward_than_asked():
    model, x = tiny(), images(2)
    sizes = []
    handle = model.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    whole = deletion(Perturber(model), x, torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))).curve
    for most in (3, 1):
        sizes.clear()
        maps = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        found = deletion(Perturber(model, internal_batch_size=most), x, maps)
        assert max(sizes) <= most
        assert torch.allclose(found.curve, whole, atol=1e-6)
    handle.remove()


@pytest.mark.parametrize("baseline", [None, "mean"])
def test_autocast_barely_moves_a_curve(baseline):
    model, x = tiny(), images(2)
    maps = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    seen = []
    handle = model.blocks[0].attn.qkv.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    fast = deletion(Perturber(model, "patch", baseline, autocast=torch.bfloat16), x, maps).curve
    handle.remove()
    assert torch.bfloat16 in seen
    assert torch.allclose(fast, deletion(Perturber(model, "patch", baseline), x, maps).curve, atol=0.02)
    assert fast.dtype == torch.float64


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"attributions": torch.zeros(1, 1, 4, 4)}, "found 1 attributions for 2 examples"),
        ({"attributions": torch.zeros(2, 4)}, r"\[2, 4\]; expected"),
        ({"attributions": torch.full((2, 1, 4, 4), float("nan"))}, "NaN"),
        ({"steps": 0}, "steps=0"),
        ({"score": "loss"}, "score='loss'"),
        ({"unit": "word"}, "unit='word'"),
        ({"unit": torch.zeros(3, 3).long(), "baseline": 0}, "does not fit"),
        ({"baseline": "grey"}, "baseline='grey'"),
        ({"target": 7}, r"0\.\.4"),
        ({"forward_func": Perturber(tiny()), "unit": "patch"}, "a perturber, and unit beside it"),
        ({"forward_func": Perturber(tiny()).bind(images()), "target": 1, "score": "logit"}, "and score, target beside"),
    ],
)
def test_bad_arguments_are_named(change, says):
    arguments = {"forward_func": tiny(), "inputs": images(), "attributions": torch.zeros(2, 1, 4, 4), **change}
    with pytest.raises(ValueError, match=says):
        deletion(**arguments)
