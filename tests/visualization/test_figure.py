"""`heatmap`: figures of one map or a row, and what they leave alone."""

import io
import sys
import warnings

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from xattr.visualization import colour, heatmap, overlay

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


@pytest.fixture(autouse=True, scope="module")
def agg():
    before = matplotlib.get_backend()
    plt.switch_backend("Agg")
    yield
    plt.switch_backend(before)


def drawn(figure):
    return [np.asarray(ax.images[0].get_array()) for ax in figure.axes]


def test_one_map_alone_and_over_its_picture():
    heat, img = torch.randn(1, 16, 16), torch.rand(3, 32, 48)
    np.testing.assert_array_equal(drawn(heatmap(heat))[0], colour(heat)[..., :3])
    np.testing.assert_array_equal(drawn(heatmap(heat, img))[0], overlay(heat, img))
    options = {"alpha": 0.3, "sign": "negative", "percentile": 95, "cmap": "magma", "backdrop": "grey"}
    np.testing.assert_array_equal(drawn(heatmap(heat, img, **options))[0], overlay(heat, img, **options))
    np.testing.assert_array_equal(drawn(heatmap(heat, img, limit=0.1))[0], overlay(heat, img, limit=0.1))


def test_the_picture_is_the_same_for_every_kind():
    img = torch.rand(3, 32, 32)
    norm = (img - MEAN.view(3, 1, 1)) / STD.view(3, 1, 1)
    u8 = (img * 255).byte().permute(1, 2, 0).numpy()
    heat = torch.rand(1, 32, 32)
    for alpha in (0, "heat"):
        truth = drawn(heatmap(heat, img, alpha=alpha))[0]
        for kind in (u8, Image.fromarray(u8)):
            assert np.abs(drawn(heatmap(heat, kind, alpha=alpha))[0] - truth).max() <= 1 / 255 + 1e-6
        found = drawn(heatmap(heat, norm, alpha=alpha, mean=MEAN, std=STD))[0]
        assert np.abs(found - truth).max() <= 1 / 255
    with pytest.warns(UserWarning, match="range"):
        heatmap(heat, norm)


@pytest.mark.parametrize("sign", ["all", "positive", "negative", "absolute"])
def test_blank_maps_are_drawn_with_one_warning(sign):
    img = torch.rand(3, 32, 32)
    with pytest.warns(UserWarning, match="neutral") as seen:
        found = drawn(heatmap(torch.zeros(1, 32, 32), img, sign=sign))[0]
    assert len(seen) == 1
    assert seen[0].filename == __file__
    np.testing.assert_array_equal(found, img.permute(1, 2, 0).numpy())
    with pytest.warns(UserWarning, match="zero"):
        heatmap(torch.zeros(2, 1, 8, 8), colorbar=True)
    heatmap(torch.rand(1, 32, 32), torch.full((3, 32, 32), 0.5))


def test_a_batch_is_a_row():
    img = torch.rand(3, 3, 20, 30)
    heat = torch.randn(3, 20, 30)
    for form in (heat, heat[:, None], list(heat), (heat[:, None],)):
        figure = heatmap(form, img)
        assert len(figure.axes) == 3
        for i, found in enumerate(drawn(figure)):
            np.testing.assert_array_equal(found, overlay(heat[i], img[i]))
        lefts = [ax.get_position().x0 for ax in figure.axes]
        assert lefts == sorted(lefts)
        assert len({ax.get_position().y0 for ax in figure.axes}) == 1
    pixels = torch.randn(3, 3, 20, 30)
    np.testing.assert_allclose(drawn(heatmap(pixels, img))[1], overlay(pixels[1].double().sum(0), img[1]), atol=1e-6)


def test_three_axes_mean_what_the_pictures_say():
    pixels = torch.randn(3, 8, 8)
    assert len(heatmap(pixels).axes) == 1
    assert len(heatmap(pixels, torch.rand(3, 8, 8)).axes) == 1
    assert len(heatmap(pixels, torch.rand(1, 3, 8, 8)).axes) == 1
    assert len(heatmap(pixels, torch.rand(3, 3, 8, 8)).axes) == 3
    assert len(heatmap(torch.randn(4, 8, 8)).axes) == 4
    for heat, image in [
        (torch.randn(2, 8, 8), torch.rand(3, 8, 8)),
        (torch.randn(2, 1, 8, 8), torch.rand(3, 3, 8, 8)),
        (torch.randn(8, 8, 3), None),
        ([], None),
    ]:
        with pytest.raises(ValueError, match="found"):
            heatmap(heat, image)


def test_aspect_is_kept_on_disk(tmp_path):
    heat = np.zeros((40, 72))
    heat[8:12, 60:64] = 1
    heatmap(heat, save=tmp_path / "x.png")
    saved = np.asarray(Image.open(tmp_path / "x.png").convert("RGB")).astype(int)
    assert abs(saved.shape[1] / saved.shape[0] - 72 / 40) < 0.05
    rows, columns = np.nonzero(saved[..., 0] - saved[..., 1] > 60)  # red
    assert abs((columns.max() - columns.min()) / (rows.max() - rows.min()) - 1) < 0.05
    assert abs(rows.mean() / saved.shape[0] - 10 / 40) < 0.02
    assert abs(columns.mean() / saved.shape[1] - 62 / 72) < 0.02


@pytest.mark.parametrize("as_path", [True, False])
def test_saving(tmp_path, as_path):
    place = tmp_path / "out.png"
    figure = heatmap(torch.rand(2, 32, 32), torch.rand(2, 3, 32, 32), save=place if as_path else str(place))
    assert isinstance(figure, Figure)
    with Image.open(place) as saved:
        assert saved.format == "PNG"
        assert len(saved.convert("RGB").getcolors(1 << 24)) > 100


def test_other_names_and_a_missing_folder(tmp_path):
    heatmap(np.eye(4), save=tmp_path / "plain")
    assert (tmp_path / "plain").read_bytes()[:4] == b"\x89PNG"
    heatmap(np.eye(4), save=tmp_path / "x.pdf")
    assert (tmp_path / "x.pdf").read_bytes()[:4] == b"%PDF"
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere"):
        heatmap(np.eye(4), save=tmp_path / "nowhere" / "x.png")


def test_nothing_global_is_touched():
    before, params, backend = plt.get_fignums(), dict(matplotlib.rcParams), matplotlib.get_backend()
    for _ in range(50):
        heatmap(torch.rand(2, 8, 8), torch.rand(2, 3, 8, 8))
    assert plt.get_fignums() == before
    assert dict(matplotlib.rcParams) == params
    assert matplotlib.get_backend() == backend


def test_the_users_settings_do_not_change_the_picture():
    heat = np.random.default_rng(0).random((6, 9))

    def pixels(figure):
        ax = figure.axes[0]
        figure.draw_without_rendering()
        image = ax.images[0]
        return image.origin, ax.get_aspect(), image.get_interpolation(), ax.get_window_extent().bounds

    truth = pixels(heatmap(heat))
    odd = {"image.origin": "lower", "image.aspect": "auto", "image.interpolation": "bicubic", "axes.grid": True}
    with plt.rc_context({**odd, "figure.autolayout": True}), warnings.catch_warnings():
        warnings.simplefilter("error")  # a layout engine would complain of axes that it cannot move
        assert pixels(heatmap(heat)) == truth


def test_axes_are_drawn_into(tmp_path):
    figure, (left, right) = plt.subplots(1, 2)
    try:
        heat, img = torch.rand(2, 8, 10), torch.rand(2, 3, 8, 10)
        assert heatmap(heat[0], img[0], ax=left, title="one", colorbar=True, save=tmp_path / "x.png") is figure
        np.testing.assert_array_equal(np.asarray(left.images[0].get_array()), overlay(heat[0], img[0]))
        assert left.get_title() == "one"
        assert left.get_aspect() == 1
        assert len(left.child_axes) == 1
        assert not right.images
        assert (tmp_path / "x.png").exists()
        heatmap(heat, img, ax=right)
        row = np.asarray(right.images[0].get_array())
        assert row.shape == (8, 21, 4)
        np.testing.assert_array_equal(row[:, :10, :3], overlay(heat[0], img[0]))
        np.testing.assert_array_equal(row[:, 11:, :3], overlay(heat[1], img[1]))
        assert (row[:, 10] == 0).all()
        with pytest.raises(ValueError, match="colorbar"):
            heatmap(heat, img, ax=right, colorbar=True)
        assert heatmap(heat[0], ax=figure.add_subfigure(figure.add_gridspec(1, 1)[0]).subplots()) is figure
    finally:
        plt.close(figure)


def test_titles():
    heat = torch.rand(3, 1, 8, 8)
    figure = heatmap(
        heat, title=["a", r"$\broken{$ b", "a title that is much too long for the width of one of three maps" * 2]
    )
    assert [ax.get_title() for ax in figure.axes[:2]] == ["a", r"$\broken{$ b"]
    assert_no_overlap(figure)
    figure = heatmap(heat, title="one for all")
    assert [t.get_text() for t in figure.texts] == ["one for all"]
    assert_no_overlap(figure)
    with pytest.raises(ValueError, match="2 titles for 3"):
        heatmap(heat, title=["a", "b"])


def assert_no_overlap(figure):
    """No text meets another text or a picture, and all lies within the figure."""
    figure.draw_without_rendering()
    boxes = [t.get_window_extent() for t in figure.texts if t.get_text()]
    for ax in figure.axes:
        boxes += [t.get_window_extent() for t in (ax.title, ax.yaxis.label) if t.get_text()]
    frames = [ax.get_window_extent() for ax in figure.axes]
    for i, box in enumerate(boxes):
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= figure.bbox.x1 + 1
        assert box.y1 <= figure.bbox.y1 + 1
        assert not any(box.overlaps(other) for other in boxes[:i] + frames)


@pytest.mark.parametrize(
    ("heat", "sign", "expected"),
    [
        ([[-2.0, 1.0]], "all", ["-2", "0", "2"]),
        ([[0.0, 1e-9]], "all", ["0", "1e-09"]),
        ([[-3.0, 1.0]], "negative", ["-3", "0"]),
        ([[-3.0, 1.0]], "absolute", ["0", "3"]),
        ([[-1e308, 1e308]], "all", ["-1e+308", "0", "1e+308"]),
    ],
)
def test_colorbar(heat, sign, expected):
    figure = heatmap(np.array(heat), sign=sign, colorbar=True)
    (bar,) = figure.axes[0].child_axes
    figure.draw_without_rendering()
    assert [t.get_text() for t in bar.get_yticklabels()] == expected
    colours = np.asarray(bar.images[0].get_array())[:, 0]
    ends = {"all": [-1.0, 1.0] if len(expected) == 3 else [0.0, 1.0], "negative": [-1.0, 0.0], "absolute": [0.0, 1.0]}
    truth = [colour(np.array([[end, 1.0 if sign != "negative" else -1.0]]), sign=sign)[0, 0, :3] for end in ends[sign]]
    np.testing.assert_allclose(colours[[0, -1]], truth, atol=1e-6)
    box = bar.get_tightbbox()
    assert box.x1 <= figure.bbox.x1 + 1


def test_a_notebook_can_show_it():
    png = heatmap(np.eye(4))._repr_png_()
    assert Image.open(io.BytesIO(png)).size[0] > 100


def test_without_matplotlib_only_the_drawing_fails(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for name in [m for m in sys.modules if m == "xattr.visualization._canvas"]:
        monkeypatch.delitem(sys.modules, name)
    import xattr.visualization

    monkeypatch.delattr(xattr.visualization, "_canvas", raising=False)
    assert overlay(np.eye(4), np.zeros((4, 4))).shape == (4, 4, 3)
    with pytest.raises(ImportError, match="needs matplotlib") as error:
        heatmap(np.eye(4))
    assert "\n" not in str(error.value)


def test_no_warning_of_matplotlib_or_numpy():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = heatmap(torch.randn(2, 3, 9, 9), torch.rand(2, 3, 9, 9), colorbar=True, title="t")
        figure.draw_without_rendering()
