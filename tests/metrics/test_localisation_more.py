"""Tolerance, empty masks, boxes, grids, the largest values and average precision: by hand and against scikit-learn."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from xattr.metrics.localisation import (
    average_precision,
    boxes_as_masks,
    class_sensitivity,
    energy,
    grid_pointing,
    pointing,
    top_k_intersection,
)

METRICS = {
    "energy": energy,
    "pointing": pointing,
    "pointing, tolerance": lambda maps, masks: pointing(maps, masks, tolerance=1),
    "top k": top_k_intersection,
    "top 3": lambda maps, masks: top_k_intersection(maps, masks, k=3),
    "average precision": average_precision,
}
each = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)


def row(*values):
    return torch.tensor(values).view(1, 1, 1, -1)


def inside(*values):
    return torch.tensor(values, dtype=torch.bool).view(1, 1, 1, -1)


@st.composite
def pictures(draw):
    """Maps with many ties (few whole numbers) and masks that are never empty, of B images with C channels."""
    b, c, h, w = (draw(st.integers(low, high)) for low, high in ((1, 4), (1, 2), (1, 4), (3, 4)))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randint(-3, draw(st.integers(-2, 4)), (b, c, h, w), generator=generator).float()
    masks = torch.rand(b, 1, h, w, generator=generator) < draw(st.sampled_from([0.1, 0.5, 0.9]))
    masks[:, 0, 0, 0] |= ~masks.flatten(1).any(1)
    return maps, masks


@each
@settings(max_examples=40, deadline=None)
@given(pictures(), st.integers(-20, 20), st.randoms())
def test_each_image_alone_in_any_order_at_any_scale(metric, pair, power, random):
    maps, masks = pair
    values = metric(maps, masks)
    assert values.shape == (len(maps),)
    assert bool(((values >= 0) & (values <= 1 + 1e-6)).all())
    torch.testing.assert_close(metric(2.0**power * maps, masks), values)
    order = random.sample(range(len(maps)), len(maps))
    torch.testing.assert_close(metric(maps[order], masks[order]), values[order])
    alone = torch.cat([metric(m, k) for m, k in zip(maps.split(1), masks.split(1), strict=True)])
    torch.testing.assert_close(alone, values)
    torch.testing.assert_close(metric(maps.sum(1, keepdim=True), masks), values)


@each
def test_perfect_and_inverted_maps(metric):
    masks = boxes_as_masks(torch.tensor([[0, 0, 3, 2], [5, 5, 8, 8]]), (8, 8))
    torch.testing.assert_close(metric(masks.float(), masks), torch.ones(2))
    inverted = metric((~masks).float(), masks)
    assert bool((inverted < 0.4).all())
    assert bool((inverted <= metric(torch.ones(2, 1, 8, 8), masks)).all())


@each
def test_a_constant_map_scores_like_chance(metric):
    masks = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    masks[..., :2] = True
    grown = metric is METRICS["pointing, tolerance"]  # the mask with a margin of one column
    assert float(metric(torch.full((1, 3, 4, 4), 0.1), masks)) == pytest.approx(0.75 if grown else 0.5)


@each
def test_an_empty_mask_is_undefined_and_a_full_one_is_not(metric):
    maps = torch.rand(2, 1, 4, 4)
    masks = torch.zeros(2, 1, 4, 4, dtype=torch.bool)
    masks[1] = True
    values = metric(maps, masks)
    assert math.isnan(values[0])
    assert float(values[1]) == pytest.approx(1)


@each
def test_no_number_for_a_map_with_nan(metric):
    maps, masks = torch.rand(2, 2, 3, 3), torch.rand(2, 1, 3, 3) > 0.2
    maps[0, 1, 2, 2] = math.nan
    assert metric(maps, masks).isnan().tolist() == [True, False]


@each
def test_no_images(metric):
    assert metric(torch.zeros(0, 1, 3, 3), torch.zeros(0, 1, 3, 3, dtype=torch.bool)).shape == (0,)


@each
def test_half_precision_is_summed_in_single(metric):
    maps, masks = torch.ones(1, 1, 300, 300), torch.zeros(1, 1, 300, 300, dtype=torch.bool)
    masks[..., :150, :] = True
    assert metric(maps.half(), masks).dtype == torch.float32
    assert float(metric(maps.half(), masks)) == pytest.approx(float(metric(maps, masks)), abs=1e-6)


@each
def test_what_does_not_fit_is_refused(metric):
    maps, masks = torch.rand(2, 3, 4, 4), torch.ones(2, 1, 4, 4, dtype=torch.bool)
    for wrong in (masks[:1], masks[..., :2], masks[:, 0], masks.expand(2, 3, 4, 4)):
        with pytest.raises(ValueError, match=r"\[B, 1, H, W\]"):
            metric(maps, wrong)
    with pytest.raises(ValueError, match=r"torch.uint8; expected torch.bool, for example masks > 0"):
        metric(maps, masks.byte() * 255)


def test_maps_without_positive_mass_have_no_energy_even_so_an_empty_mask_is_undefined():
    assert energy(torch.zeros(1, 1, 1, 3), inside(1, 0, 0)).tolist() == [0]
    assert energy(-torch.ones(1, 1, 1, 3), inside(0, 0, 0)).isnan().all()
    assert class_sensitivity(row(1.0, 0.0), row(0.0, 1.0), inside(0, 0)).isnan().all()


@pytest.mark.parametrize(
    ("tolerance", "wanted"), [(0, 0), (4.99, 0), (5, 1), (15, 1), (math.sqrt(24.5), 0), (math.inf, 1)]
)
def test_tolerance_is_euclidean(tolerance, wanted):
    maps, masks = torch.zeros(1, 1, 9, 9), torch.zeros(1, 1, 9, 9, dtype=torch.bool)
    maps[..., 1, 2] = 1
    masks[..., 4, 6] = True  # 3 rows, 4 columns away
    assert float(pointing(maps, masks, tolerance=tolerance)) == wanted


def test_tolerance_shares_ties():
    heat = row(2.0, 2.0, 0.0, 0.0, 2.0)
    assert float(pointing(heat, inside(0, 0, 1, 0, 0), tolerance=1)) == pytest.approx(1 / 3)
    assert float(pointing(heat, inside(0, 0, 1, 0, 0), tolerance=2)) == 1


@settings(max_examples=40, deadline=None)
@given(pictures(), st.floats(0, 4))
def test_tolerance_against_all_distances(pair, tolerance):
    maps, masks = pair
    wanted = []
    for heat, mask in zip(maps.sum(1), masks[:, 0], strict=True):
        tops, places = (heat == heat.max()).nonzero().tolist(), mask.nonzero().tolist()
        wanted.append(sum(any(math.dist(top, place) <= tolerance for place in places) for top in tops) / len(tops))
    assert pointing(maps, masks, tolerance=tolerance).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("tolerance", [-1, math.nan])
def test_tolerance_that_is_no_distance(tolerance):
    with pytest.raises(ValueError, match="0 or more"):
        pointing(row(1.0), inside(1), tolerance=tolerance)


@pytest.mark.parametrize(
    ("values", "mask", "k", "wanted"),
    [
        ((4.0, 3.0, 2.0, 1.0), (1, 0, 0, 1), None, 1 / 2),
        ((4.0, 3.0, 2.0, 1.0), (1, 0, 0, 1), 1, 1.0),
        ((4.0, 3.0, 2.0, 1.0), (1, 0, 0, 1), 4, 1 / 2),
        ((-1.0, -3.0, -2.0, -9.0), (1, 0, 1, 0), None, 1.0),  # the signed order
        ((4.0, 3.0, 3.0, 3.0), (1, 1, 0, 0), None, (1 + 1 / 3) / 2),
        ((4.0, 3.0, 3.0, 3.0), (0, 1, 1, 0), 3, (2 * 2 / 3) / 3),
        ((0.0, 0.0, 0.0, 0.0), (0, 1, 1, 1), 2, 3 / 4),
    ],
)
def test_top_k(values, mask, k, wanted):
    assert float(top_k_intersection(row(*values), inside(*mask), k)) == pytest.approx(wanted)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=5, max_size=5), st.integers(1, 31), st.integers(1, 5))
def test_top_k_is_the_mean_over_all_ways_to_break_ties(values, bits, k):
    mask = [bool(bits >> i & 1) for i in range(5)]
    orders = [
        o for o in itertools.permutations(range(5)) if all(values[a] >= values[b] for a, b in itertools.pairwise(o))
    ]
    wanted = sum(sum(mask[i] for i in order[:k]) / k for order in orders) / len(orders)
    found = top_k_intersection(row(*map(float, values)), inside(*mask), k)
    assert float(found) == pytest.approx(wanted)


@pytest.mark.parametrize("k", [0, -1, 5])
def test_k_that_a_map_does_not_hold(k):
    with pytest.raises(ValueError, match="1 to 4"):
        top_k_intersection(row(1.0, 2.0, 3.0, 4.0), inside(1, 0, 0, 0), k)


@settings(max_examples=60, deadline=None)
@given(pictures())
def test_average_precision_is_that_of_scikit_learn(pair):
    maps, masks = pair
    wanted = [
        average_precision_score(mask.flatten().numpy(), heat.flatten().numpy())
        for mask, heat in zip(masks, maps.sum(1), strict=True)
    ]
    assert average_precision(maps, masks).tolist() == pytest.approx(wanted, abs=1e-6)


def test_average_precision_on_whole_pictures():
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(2, 1, 14, 14, generator=generator)
    maps = torch.cat([coarse.repeat_interleave(16, 2).repeat_interleave(16, 3), torch.randn(1, 1, 224, 224)])
    masks = boxes_as_masks(torch.tensor([[20, 30, 150, 200], [0, 0, 5, 5], [100, 1, 224, 224]]), (224, 224))
    wanted = [average_precision_score(k.flatten(), m.flatten()) for m, k in zip(maps, masks, strict=True)]
    assert average_precision(maps, masks).tolist() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("box", "wanted"),
    [
        ([1, 0, 3, 2], [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]),
        ([-5, 1, 2, 99], [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]]),
        ([4, 0, 9, 3], [[0, 0, 0, 0]] * 3),
        ([0.5, 0.0, 1.5, 3.0], [[1, 0, 0, 0]] * 3),
        ([0.6, 0.0, 1.6, 3.0], [[0, 1, 0, 0]] * 3),
        ([0.0, 0.0, 4.0, 0.4], [[0, 0, 0, 0]] * 3),
    ],
)
def test_boxes(box, wanted):
    found = boxes_as_masks(torch.tensor([box]), (3, 4))
    assert found.dtype == torch.bool
    assert found.int().tolist() == [[wanted]]


def test_boxes_of_several_images():
    a, b = [0, 0, 1, 1], [1, 0, 2, 2]
    assert boxes_as_masks(torch.tensor([a, b]), (2, 2)).int().tolist() == [[[[1, 0], [0, 0]]], [[[0, 1], [0, 1]]]]
    assert boxes_as_masks(torch.tensor([[a, b]]), (2, 2)).int().tolist() == [[[[1, 1], [0, 1]]]]
    some = boxes_as_masks([torch.tensor([a, b]), torch.tensor([]), torch.zeros(0, 4), torch.tensor(a)], (2, 2))
    assert some.sum((1, 2, 3)).tolist() == [3, 0, 0, 1]
    assert boxes_as_masks([], (2, 3)).shape == (0, 1, 2, 3)
    assert boxes_as_masks(torch.zeros(0, 4), (2, 3)).shape == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ([[1, 2, 3]], r"image 0 have the shape \[1, 3\]; expected \[4\]"),
        ([0, 0, 1, 1], "shape"),
        ([[0, 0, 1, 1], [3, 0, 2, 1]], r"image 1 is \[3, 0, 2, 1\]"),
        ([[0, 1, 1, 1]], "y1 < y2"),
        ([[0.0, 0.0, math.nan, 1.0]], "finite"),
        ([[0.0, 0.0, math.inf, 1.0]], "finite"),
    ],
)
def test_malformed_boxes(boxes, message):
    with pytest.raises(ValueError, match=message):
        boxes_as_masks(torch.tensor(boxes), (4, 4))


def test_grid_pointing():
    maps = torch.zeros(4, 2, 4, 6)
    maps[:, 0, 0, 0] = 1.0
    maps[:, 0, 3, 5] = 5.0
    maps[:, 1, 3, 5] = -2.0  # with the other channel 3
    maps[:, 0, 3, 0] = -7.0
    assert grid_pointing(maps, torch.arange(4)).tolist() == [0.25, 0, 0, 0.75]
    assert grid_pointing(maps, torch.tensor([0, 1, 2, 5]), grid=(2, 3)).tolist() == [0.25, 0, 0, 0.75]
    assert grid_pointing(maps[:1], torch.tensor([3]), grid=(4, 1)).tolist() == [0.75]
    assert grid_pointing(-maps.abs(), torch.arange(4)).tolist() == [0, 0, 0, 0]


def test_grid_pointing_is_energy_in_the_cell():
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(6, 3, 6, 8, generator=generator)
    masks = torch.zeros(6, 1, 6, 8, dtype=torch.bool)
    for cell in range(6):
        y, x = divmod(cell, 2)
        masks[cell, :, 2 * y : 2 * y + 2, 4 * x : 4 * x + 4] = True
    found = grid_pointing(maps, torch.arange(6), grid=(3, 2))
    torch.testing.assert_close(found, energy(maps, masks))
    order = [3, 0, 5]
    torch.testing.assert_close(grid_pointing(8 * maps[order], torch.tensor(order), grid=(3, 2)), found[order])


def test_grids_and_cells_that_do_not_fit():
    maps = torch.rand(2, 1, 6, 6)
    for cells in (torch.tensor([0, 4]), torch.tensor([-1, 0]), torch.tensor([0]), torch.tensor([0.5, 1.0])):
        with pytest.raises(ValueError, match=r"0 to 3, one for each map, \[2\]"):
            grid_pointing(maps, cells)
    for grid in ((4, 2), (2, 4), (0, 2)):
        with pytest.raises(ValueError, match="whole pixels"):
            grid_pointing(maps, torch.tensor([0, 0]), grid)
    with pytest.raises(ValueError, match=r"\[B, C, H, W\]"):
        grid_pointing(maps[:, 0], torch.tensor([0, 0]))
