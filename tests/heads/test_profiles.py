"""Depth profiles as data and as a picture."""

import numpy as np
import pytest
import scipy.stats
import torch

from xattr.heads import profile
from xattr.trace import InputError
from xattr.visualization import depth_profile


def sample(n=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    alpha = torch.rand(n, 4, generator=generator).softmax(1)
    labels = torch.randint(0, 3, (n,), generator=generator)
    predicted = torch.where(torch.rand(n, generator=generator) < 0.7, labels, (labels + 1) % 3)
    return alpha, labels, predicted


@pytest.mark.parametrize("which", ["all", "correct", "wrong"])
@pytest.mark.parametrize("by", ["label", "predicted"])
def test_rows_are_means_of_their_images(by, which):
    alpha, labels, predicted = sample()
    found = profile(alpha, labels, predicted, by=by, which=which, classes=["a", "b", "c", "never"])
    assert found.names == ("all", "a", "b", "c", "never")
    group = labels if by == "label" else predicted
    for row in range(4):
        rows = [i for i in range(200)
                if (which == "all" or (labels[i] == predicted[i]) == (which == "correct"))
                and (row == 0 or group[i] == row - 1)]  # fmt: skip
        values = alpha[rows].double().numpy()
        assert found.counts[row] == len(rows)
        assert np.allclose(found.mean[row], values.mean(0))
        assert np.allclose(found.std[row], values.std(0, ddof=1))
        low, high = scipy.stats.t.interval(0.95, len(rows) - 1, values.mean(0), scipy.stats.sem(values))
        assert np.allclose(found.half_width[row], (high - low) / 2)
    assert int(found.counts[4]) == 0
    assert bool(found.mean[4].isnan().all())
    assert bool(found.half_width[4].isnan().all())


def test_one_image_has_no_interval():
    found = profile(torch.tensor([[0.2, 0.8]]), torch.tensor([0]), torch.tensor([0]))
    assert torch.allclose(found.mean, torch.tensor([[0.2, 0.8]] * 2).double())
    assert bool(found.std.isnan().all())


def test_the_picture_says_counts_means_and_what_is_missing(tmp_path):
    alpha, labels, predicted = sample()
    found = profile(alpha, labels, predicted, classes=["a", "b", "c", "never"])
    figure = depth_profile(found, layers=["one", "two", "three", "four"], few=60)
    axes = figure.axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["one", "two", "three", "four"]
    counts = found.counts.tolist()
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [
        f"{name} ({n})" for name, n in zip(found.names, counts, strict=True)
    ]
    texts = [text.get_text() for text in axes.texts]
    assert texts[0].startswith(f"{float(found.mean[0, 0]):.2f}")
    assert texts[-4:] == ["-"] * 4
    grey = sum(patch.get_facecolor()[:3] == (0.88, 0.88, 0.88) for patch in axes.patches)
    assert grey == sum(n < 60 for n in counts)
    depth_profile(found, save=tmp_path / "profile.png", layers=["a rather long name"] * found.mean.shape[1])
    assert (tmp_path / "profile.png").stat().st_size > 1000


def test_lengths_and_choices_are_checked():
    alpha, labels, predicted = sample()
    with pytest.raises(InputError, match="200 labels and 10 predictions"):
        profile(alpha, labels, predicted[:10])
    with pytest.raises(InputError, match="by='class'"):
        profile(alpha, labels, predicted, by="class")
    with pytest.raises(InputError, match="2 names"):
        profile(alpha, labels, predicted, classes=["a", "b"])
