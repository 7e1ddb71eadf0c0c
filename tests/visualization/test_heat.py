"""`colour` and `overlay`: known colours, pixel for pixel."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xattr.visualization import colour, overlay
from xattr.visualization._array import nearest, resize
from xattr.visualization.heat import MISSING, NEUTRAL

SIGNS = ["all", "positive", "negative", "absolute"]
ZERO = np.array([*NEUTRAL, 1], np.float32)


def rng():
    return np.random.default_rng(0)


def test_zero_is_neutral_and_limits_are_symmetric():
    found = colour(np.array([[-4.0, -2.0, 0.0, 2.0, 1.0]]))[0]
    assert found.dtype == np.float32
    assert (found[2] == ZERO).all()
    assert found[0, 2] > found[0, 0] + 0.3  # the strongest negative is blue
    assert found[3, 0] > found[3, 2] + 0.3  # half as strong a positive is red,
    np.testing.assert_array_equal(found[3], colour(np.array([[4.0, 2.0]]))[0, 1])  # as with the limit 4
    np.testing.assert_array_equal(found[1], colour(np.array([[-4.0, -2.0]]))[0, 1])
    np.testing.assert_allclose(found[0, :3], (0.06, 0.20, 0.58), atol=1e-7)


def test_zero_is_the_middle_of_a_diverging_map_of_matplotlib():
    import matplotlib

    heat = np.array([[-1.0, 0.0, 0.5, 1.0]])
    found = colour(heat, cmap="coolwarm")[0]
    table = matplotlib.colormaps["coolwarm"].resampled(257)
    np.testing.assert_allclose(found, table([0, 128, 192, 256]), atol=1e-7)
    # also where nothing is negative; a sequential map starts there instead
    np.testing.assert_array_equal(colour(np.array([[0.0, 1.0]]), cmap="coolwarm_r")[0, 0], found[1])
    np.testing.assert_allclose(colour(np.array([[0.0, 1.0]]), cmap="inferno")[0], table_ends("inferno"), atol=1e-7)
    np.testing.assert_allclose(
        colour(np.array([[0.0, -1.0]]), cmap="inferno", sign="negative")[0], table_ends("inferno"), atol=1e-7
    )


def table_ends(name):
    import matplotlib

    return matplotlib.colormaps[name]([0.0, 1.0])


@pytest.mark.parametrize("sign", SIGNS)
def test_the_sign_selects(sign):
    found = colour(np.array([[-1.0, 0.0, 1.0]]), sign=sign)[0]
    shown = [not (pixel == ZERO).all() for pixel in found]
    assert (
        shown
        == {
            "all": [True, False, True],
            "positive": [False, False, True],
            "negative": [True, False, False],
            "absolute": [True, False, True],
        }[sign]
    )
    assert (found[0] == found[2]).all() == (sign == "absolute")


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("cmap", [None, "RdBu_r", "viridis"])
def test_nothing_of_the_sign_is_uniform_with_one_warning(sign, cmap):
    maps = {"zero": np.zeros((6, 7)), "negative": -rng().random((6, 7)) - 0.1, "positive": rng().random((6, 7)) + 0.1}
    for kind, heat in maps.items():
        if kind != "zero" and (sign in ("all", "absolute") or sign == kind):
            continue
        with pytest.warns(UserWarning, match="non-zero" if sign in ("all", "absolute") else sign) as seen:
            found = colour(heat, sign=sign, cmap=cmap)
        assert len(seen) == 1
        assert np.isfinite(found).all()
        assert (found == found[0, 0]).all()
        if cmap is None:
            assert (found == ZERO).all()


@pytest.mark.parametrize("factor", [1e-9, 1e-300, 1e300, 2.0**-60])
@pytest.mark.parametrize("cmap", [None, "inferno", "bwr"])
def test_the_size_of_the_values_does_not_matter(factor, cmap):
    heat = rng().standard_normal((16, 16)) / 4
    np.testing.assert_allclose(colour(heat * factor, cmap=cmap), colour(heat, cmap=cmap), atol=1e-6)


def test_small_float32_maps_are_drawn_like_the_same_map_scaled():
    small = 1e-9 * torch.rand(1, 32, 32, generator=torch.Generator().manual_seed(0))
    img = torch.rand(3, 32, 32)
    bytes_ = [(overlay(h, img) * 255).round() for h in (small, small * 1e9)]
    np.testing.assert_array_equal(*bytes_)
    assert len(np.unique(colour(small))) > 500


def test_missing_entries_have_their_colour_and_leave_the_scale_alone():
    heat = rng().standard_normal((8, 8))
    holes = heat.copy()
    holes[0, 0], holes[3, 4], holes[7, 7] = np.nan, np.inf, -np.inf
    heat[0, 0] = heat[3, 4] = heat[7, 7] = 0
    with pytest.warns(UserWarning, match="3 of 64") as seen:
        found = colour(holes)
    assert len(seen) == 1
    truth = colour(heat)
    for at in ((0, 0), (3, 4), (7, 7)):
        np.testing.assert_allclose(found[at][:3], MISSING, atol=1e-7)
        truth[at] = found[at]
    np.testing.assert_array_equal(found, truth)


def test_all_missing_and_missing_with_nothing_else():
    with pytest.warns(UserWarning, match="16 of 16") as seen:
        found = colour(np.full((4, 4), np.nan))
    assert len(seen) == 1
    assert np.allclose(found[..., :3], MISSING)
    some = np.zeros((4, 4))
    some[0, 0] = np.nan
    with pytest.warns(UserWarning, match=r"neutral.*1 of 16") as seen:
        assert (colour(some)[1:] == ZERO).all()
    assert len(seen) == 1


def test_missing_entries_do_not_spread_when_resized():
    heat = np.ones((4, 4))
    heat[1, 1] = np.nan
    with pytest.warns(UserWarning, match="1 of 16"):
        found = overlay(heat, np.zeros((32, 32)), alpha=1)
    grey = np.isclose(found, MISSING).all(-1)
    assert grey[12, 12]
    assert 40 <= grey.sum() <= 64  # about the 8 x 8 pixels of that entry
    strongest = colour(np.ones((1, 1)))[0, 0, :3]
    np.testing.assert_allclose(found[~grey], np.broadcast_to(strongest, found[~grey].shape), atol=1e-6)


def test_limit_and_percentile():
    heat = np.arange(101.0).reshape(1, 101)
    strongest = colour(heat)[0, 100]
    found = colour(heat, limit=50)[0]
    assert (found[50:] == strongest).all()
    assert not (found[49] == strongest).all()
    np.testing.assert_array_equal(colour(heat, percentile=50), colour(heat, limit=50))
    sparse = np.zeros((1, 101))
    sparse[0, 7] = 3.0  # the percentile is 0: the largest stays
    np.testing.assert_array_equal(colour(sparse, percentile=50), colour(sparse))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sign": "both"}, "'both'"),
        ({"limit": 0.0}, "limit 0"),
        ({"limit": float("nan")}, "limit nan"),
        ({"percentile": 101}, "percentile 101"),
        ({"limit": 1.0, "percentile": 99}, "leave one out"),
    ],
)
def test_wrong_options(options, says):
    with pytest.raises(ValueError, match=says):
        colour(np.eye(3), **options)


def test_wrong_shapes():
    for shape, says in [((5,), r"\(5,\)"), ((2, 1, 8, 8), "2 maps for 1"), ((8, 9, 3), "channels come first")]:
        with pytest.raises(ValueError, match=says):
            colour(np.zeros(shape))
    with pytest.raises(TypeError, match="complex"):
        colour(np.zeros((4, 4), complex))


def test_channels_are_summed():
    pixels = rng().standard_normal((3, 5, 6))
    for options in ({}, {"limit": 2.0}):  # with a limit a mean would be seen
        np.testing.assert_array_equal(colour(pixels, **options), colour(pixels.sum(0), **options))
    np.testing.assert_array_equal(colour(torch.tensor(pixels)[None].requires_grad_()), colour(pixels.sum(0)))


def test_alpha_ends():
    img, heat = torch.rand(3, 12, 20), torch.randn(12, 20)
    np.testing.assert_array_equal(overlay(heat, img, alpha=0), img.permute(1, 2, 0).numpy())
    np.testing.assert_array_equal(overlay(heat, img, alpha=1), colour(heat)[..., :3])
    half = overlay(heat, img, alpha=0.5)
    np.testing.assert_allclose(half, (img.permute(1, 2, 0).numpy() + colour(heat)[..., :3]) / 2, atol=1e-6)


def test_alpha_by_heat_shows_the_picture_where_it_is_quiet():
    img, heat = torch.rand(3, 1, 3), torch.tensor([[0.0, 0.5, -1.0]])
    found, picture, colours = overlay(heat, img, layout="CHW")[0], img[:, 0].T.numpy(), colour(heat)[0, :, :3]
    for at, share in enumerate((0.0, 0.85 * 0.75, 0.85)):
        np.testing.assert_allclose(found[at], picture[at] * (1 - share) + colours[at] * share, atol=1e-6)
    with pytest.warns(UserWarning, match="neutral"):
        np.testing.assert_array_equal(overlay(torch.zeros(1, 3), img, layout="CHW")[0], picture)


def test_zero_map_with_a_fixed_alpha_is_a_uniform_layer():
    img = torch.rand(3, 8, 8)
    with pytest.warns(UserWarning, match="no positive values") as seen:
        found = overlay(-torch.rand(1, 8, 8), img, sign="positive", alpha=0.5)
    assert len(seen) == 1
    np.testing.assert_allclose(found * 2 - img.permute(1, 2, 0).numpy(), np.full((8, 8, 3), NEUTRAL), atol=1e-6)


def test_grey_backdrop():
    picture = np.array([[[1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0]]])
    found = overlay(np.ones((1, 4)), picture, alpha=0, backdrop="grey", layout="HWC")
    expected = 0.2 + 0.6 * np.array([0.299, 0, 1, 0.587])
    np.testing.assert_allclose(found[0], np.repeat(expected[:, None], 3, 1), atol=1e-6)


@pytest.mark.parametrize("bad", [-0.1, 1.1, "auto", None, float("nan")])
def test_wrong_alpha(bad):
    with pytest.raises(ValueError, match="alpha"):
        overlay(np.eye(4), np.zeros((8, 8)), alpha=bad)


def test_wrong_backdrop():
    with pytest.raises(ValueError, match="backdrop 'dark'"):
        overlay(np.eye(4), np.zeros((8, 8)), backdrop="dark")


@pytest.mark.parametrize("size", [(10, 18), (40, 72), (5, 50), (3, 4), (1, 1)])
def test_resize_is_torchs(size):
    x = rng().standard_normal((10, 18))
    truth = F.interpolate(torch.tensor(x)[None, None], size, mode="bilinear", align_corners=False)[0, 0]
    np.testing.assert_allclose(resize(x, size), truth.numpy(), atol=1e-12)
    truth = F.interpolate(torch.tensor(x)[None, None], size, mode="nearest-exact")[0, 0]
    np.testing.assert_array_equal(nearest(x, size), truth.numpy())


def test_a_grid_is_laid_on_the_picture_the_right_way_round():
    heat = np.zeros((10, 18))
    heat[2, 15] = 1
    found = overlay(heat, np.zeros((3, 40, 72)), alpha=1)
    assert found.shape == (40, 72, 3)
    rows, columns = np.nonzero((found != np.float32(NEUTRAL)).any(-1))
    assert 8 <= rows.mean() <= 11
    assert 60 <= columns.mean() <= 63


finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=150, deadline=None)
@given(
    hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=5), elements=finite),
    st.sampled_from(SIGNS),
    st.sampled_from([None, 1.0, 50.0, 99.0]),
    st.sampled_from([None, "coolwarm", "magma"]),
    st.sampled_from(["heat", 0.0, 0.4, 1.0]),
)
def test_any_finite_map_is_drawn_finite(heat, sign, percentile, cmap, alpha):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no division by zero, no overflow
        warnings.simplefilter("ignore", UserWarning)
        for found in (
            colour(heat, sign=sign, percentile=percentile, cmap=cmap),
            overlay(heat, np.zeros((6, 7)), sign=sign, percentile=percentile, cmap=cmap, alpha=alpha),
        ):
            assert np.isfinite(found).all()
            assert found.min() >= 0
            assert found.max() <= 1


@settings(max_examples=80, deadline=None)
@given(hnp.arrays(np.float32, (3, 4, 5), elements=st.floats(width=32, allow_nan=True, allow_infinity=True)))
def test_any_floats_with_channels_are_drawn_finite(heat):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", UserWarning)
        assert np.isfinite(overlay(heat, np.zeros((9, 9)))).all()
