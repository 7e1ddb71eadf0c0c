"""Maps cut at a threshold: by hand, against scikit-image's Otsu and scikit-learn's Jaccard score."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.filters import threshold_otsu
from sklearn.metrics import accuracy_score, jaccard_score

from xattr.metrics.segmentation import SegmentationScores, _otsu, segmentation_scores

THRESHOLDS = ["mean", "otsu", 0.0, 0.3, 1]


def grid(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype).view(1, 1, 2, 2)


def mask(*values):
    return grid(*values, dtype=torch.bool)


@st.composite
def pictures(draw):
    b, c, size = draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    # Whole numbers: their scale changes nothing but the exponent, so that no value crosses the threshold.
    maps = torch.randint(0, draw(st.integers(1, 9)), (b, c, size, size), generator=generator).float()
    masks, valid = (torch.rand(b, 1, size, size, generator=generator) < share for share in (0.4, 0.8))
    return maps, masks, valid


def test_by_hand():
    scores = segmentation_scores(grid(4.0, 3.0, 1.0, 0.0), mask(1, 0, 0, 0))  # mean 2: two in the foreground
    assert scores.counts.tolist() == [[[2, 1], [0, 1]]]
    assert scores.pixel_accuracy.tolist() == [0.75]
    assert scores.iou_foreground.tolist() == [0.5]
    assert scores.iou_background.tolist() == pytest.approx([2 / 3])
    assert scores.miou.tolist() == pytest.approx([7 / 12])
    assert scores.dataset_miou == pytest.approx(7 / 12)
    assert scores.threshold == "mean"
    assert set(scores.undefined.values()) == {0}


def test_only_above_the_threshold_is_foreground():
    heat = grid(0.0, 1.0, 2.0, 4.0)
    for threshold, wanted in ((0, 3), (0.25, 2), (0.5, 1), (0.99, 1), (1, 0)):
        counts = segmentation_scores(heat, mask(1, 1, 1, 1), threshold).counts
        assert counts.tolist() == [[[0, 0], [4 - wanted, wanted]]]


def test_images_are_added_up_before_the_ratio():
    # Foreground: 1 of 1 and 1 of 4; background: 3 of 3, and 0 of 3, since the map has only one pixel of the mask.
    maps = torch.cat([grid(1.0, 0.0, 0.0, 0.0), grid(1.0, 0.0, 0.0, 0.0)])
    scores = segmentation_scores(maps, torch.cat([mask(1, 0, 0, 0), mask(1, 1, 1, 1)]))
    assert scores.iou_foreground.tolist() == [1, 0.25]
    assert scores.iou_background.tolist() == [1, 0]
    assert scores.miou.tolist() == [1, 0.125]
    assert scores.dataset_miou == pytest.approx((2 / 5 + 3 / 6) / 2)
    assert scores.dataset_miou != pytest.approx(float(scores.miou.mean()))


def test_each_map_has_its_own_scale():
    maps = torch.cat([grid(1.0, 0.0, 0.0, 0.0), grid(1000.0, 0.0, 0.0, 0.0)])
    masks = mask(1, 0, 0, 0).expand(2, 1, 2, 2)
    for threshold in ("mean", "otsu", 0.5):
        assert segmentation_scores(maps, masks, threshold).miou.tolist() == [1, 1]


@pytest.mark.parametrize("threshold", ["mean", "otsu", 0.5])
def test_perfect_and_inverted_maps(threshold):
    masks = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.4
    perfect, inverted = (segmentation_scores(m.float(), masks, threshold) for m in (masks, ~masks))
    for scores, wanted in ((perfect, 1), (inverted, 0)):
        for values in (scores.pixel_accuracy, scores.iou_foreground, scores.iou_background, scores.miou):
            assert values.tolist() == [wanted] * 3
        assert scores.dataset_miou == wanted


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("value", [0.0, 0.1, -3.0])
def test_a_constant_map_has_no_foreground(threshold, value):
    scores = segmentation_scores(torch.full((1, 3, 2, 2), value), mask(1, 0, 0, 0), threshold)
    assert scores.counts.tolist() == [[[3, 0], [1, 0]]]
    assert scores.miou.tolist() == pytest.approx([0.375])


def test_undefined_scores_are_left_out_and_counted():
    maps = torch.cat([torch.zeros(1, 1, 2, 2), grid(1.0, 0.0, 0.0, 0.0), grid(1.0, 0.0, 0.0, 0.0)])
    masks = torch.cat([mask(0, 0, 0, 0), mask(1, 0, 0, 0), mask(1, 0, 0, 0)])
    valid = torch.cat([mask(1, 1, 1, 1), mask(1, 0, 0, 0), mask(0, 0, 0, 0)])
    scores = segmentation_scores(maps, masks, valid=valid)
    assert scores.iou_foreground.isnan().tolist() == [True, False, True]
    assert scores.iou_background.isnan().tolist() == [False, True, True]
    assert scores.miou[:2].tolist() == [1, 1]
    assert scores.undefined == {"pixel_accuracy": 1, "iou_foreground": 2, "iou_background": 2, "miou": 1}
    assert scores.dataset_miou == 1
    nothing = segmentation_scores(maps[2:], masks[2:], valid=valid[2:])
    assert math.isnan(nothing.dataset_miou)
    assert math.isnan(segmentation_scores(maps[:0], masks[:0], "otsu").dataset_miou)


def test_an_empty_mask_is_a_miss_where_the_map_shows_something():
    scores = segmentation_scores(grid(1.0, 0.0, 0.0, 0.0), mask(0, 0, 0, 0))
    assert scores.iou_foreground.tolist() == [0]


def test_unlabelled_pixels_count_nowhere_but_shape_the_threshold():
    heat, truth, valid = grid(9.0, 4.0, 1.0, 0.0), mask(0, 1, 0, 0), mask(0, 1, 1, 1)
    # The mean of all four, 3.5, lets the second pixel through; half of the unlabelled 9 does not.
    assert segmentation_scores(heat, truth, valid=valid).miou.tolist() == [1]
    assert segmentation_scores(heat, truth, 0.5, valid=valid).counts.tolist() == [[[2, 0], [1, 0]]]
    other = torch.where(valid, truth, ~truth)
    assert segmentation_scores(heat, other, valid=valid).counts.equal(
        segmentation_scores(heat, truth, valid=valid).counts
    )


@settings(max_examples=60, deadline=None)
@given(pictures(), st.sampled_from(THRESHOLDS), st.integers(-20, 20), st.randoms())
def test_each_image_alone_in_any_order_at_any_scale(three, threshold, power, random):
    maps, masks, valid = three
    scores = segmentation_scores(maps, masks, threshold, valid)
    assert scores.counts.sum((1, 2)).equal(valid.flatten(1).sum(1))
    assert segmentation_scores(2.0**power * maps, masks, threshold, valid).counts.equal(scores.counts)
    order = random.sample(range(len(maps)), len(maps))
    shuffled = segmentation_scores(maps[order], masks[order], threshold, valid[order])
    assert shuffled.counts.equal(scores.counts[order])
    parts = [
        segmentation_scores(maps[i : i + 1], masks[i : i + 1], threshold, valid[i : i + 1]) for i in range(len(maps))
    ]
    joined = sum(parts[1:], parts[0])
    assert joined.counts.equal(scores.counts)
    assert joined.dataset_miou == pytest.approx(scores.dataset_miou, nan_ok=True)


@settings(max_examples=40, deadline=None)
@given(pictures(), st.sampled_from(THRESHOLDS))
def test_scores_are_those_of_scikit_learn(three, threshold):
    maps, masks, valid = three
    valid[:, 0, 0, 0] = True
    scores = segmentation_scores(maps, masks, threshold, valid)
    for i, heat in enumerate(maps.sum(1)):
        scaled = (heat - heat.min()) / max(float(heat.max() - heat.min()), 1e-9)
        cut = {"mean": scaled.mean(), "otsu": float(threshold_otsu(scaled.numpy()))}.get(threshold, threshold)
        found, truth = (x[valid[i, 0]].numpy() for x in (scaled > cut, masks[i, 0]))
        assert float(scores.pixel_accuracy[i]) == pytest.approx(accuracy_score(truth, found))
        for label, iou in ((1, scores.iou_foreground[i]), (0, scores.iou_background[i])):
            if math.isnan(iou):
                assert not ((truth == label) | (found == label)).any()
            else:
                assert float(iou) == pytest.approx(jaccard_score(truth, found, pos_label=label))


@pytest.mark.parametrize("seed", range(5))
def test_otsu_is_that_of_scikit_image(seed):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(4, 2500, generator=generator)
    noise[1] = noise[1].abs()
    noise[2, 600:] += 5
    noise[3] = noise[3].exp()
    low, high = noise.aminmax(dim=1, keepdim=True)
    scaled = (noise - low) / (high - low)
    assert _otsu(scaled)[:, 0].tolist() == [threshold_otsu(row.numpy()) for row in scaled]


def test_otsu_finds_the_gap():
    spread = torch.rand(100, generator=torch.Generator().manual_seed(0))
    heat = torch.cat([spread[:95] * 0.3, 0.9 + spread[95:] * 0.1]).view(1, 1, 10, 10)
    truth = heat > 0.5
    assert segmentation_scores(heat, truth, "otsu").miou.tolist() == [1]
    assert float(segmentation_scores(heat, truth, "mean").miou) < 1


@pytest.mark.parametrize("threshold", ["median", -0.1, 1.5, math.nan])
def test_unknown_thresholds(threshold):
    with pytest.raises(ValueError, match='expected "mean", "otsu" or a number from 0 to 1'):
        segmentation_scores(grid(1.0, 0.0, 0.0, 0.0), mask(1, 0, 0, 0), threshold)


def test_what_does_not_fit_is_refused():
    heat, truth = grid(1.0, 0.0, 0.0, 0.0), mask(1, 0, 0, 0)
    with pytest.raises(ValueError, match=r"masks \[1, 1, 1, 2\]"):
        segmentation_scores(heat, truth[..., :1, :])
    with pytest.raises(ValueError, match=r"valid \[2, 1, 2, 2\]"):
        segmentation_scores(heat, truth, valid=truth.expand(2, 1, 2, 2))
    with pytest.raises(ValueError, match=r"valid are torch.int64"):
        segmentation_scores(heat, truth, valid=truth.long())
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match=r"maps \[1\] hold NaN or infinity"):
            segmentation_scores(torch.cat([heat, heat + value]), truth.expand(2, 1, 2, 2))


def test_differently_cut_images_are_not_put_together():
    counts = torch.ones(1, 2, 2, dtype=torch.long)
    with pytest.raises(ValueError, match="'mean' and 'otsu'"):
        SegmentationScores(counts, "mean") + SegmentationScores(counts, "otsu")
