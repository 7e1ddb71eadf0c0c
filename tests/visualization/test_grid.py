"""`comparison`: what is in which cell, on which scale, and whether it can be read."""

import numpy as np
import pytest
import torch
from PIL import Image

from xattr.visualization import comparison, overlay
from xattr.visualization._canvas import wrap


def cells(figure, columns):
    found = [np.asarray(ax.images[0].get_array()) for ax in figure.axes]
    return [found[i : i + columns] for i in range(0, len(found), columns)]


@pytest.fixture
def images():
    return torch.rand(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def maps():
    g = torch.Generator().manual_seed(1)
    return {"a": torch.randn(2, 1, 24, 24, generator=g), "b": 10 * torch.randn(2, 6, 6, generator=g)}


def test_own_scale(images, maps):
    figure = comparison(images, maps)
    rows = cells(figure, 3)
    assert len(rows) == 2
    for i in range(2):
        np.testing.assert_array_equal(rows[i][0], images[i].permute(1, 2, 0).numpy())
        for j, name in enumerate(maps):
            np.testing.assert_array_equal(rows[i][j + 1], overlay(maps[name][i], images[i], backdrop="grey"))
    assert [ax.get_title() for ax in figure.axes] == ["image", "a", "b", "", "", ""]
    tops, lefts = [ax.get_position().y0 for ax in figure.axes], [ax.get_position().x0 for ax in figure.axes]
    assert tops[0] == tops[1] == tops[2] > tops[3]
    assert lefts[0] == lefts[3] < lefts[1] == lefts[4] < lefts[2]


def test_shared_scale_is_one_for_each_row(images, maps):
    rows = cells(comparison(images, maps, scale="shared", backdrop="picture", alpha=0.5), 3)
    for i in range(2):
        limit = max(float(m[i].abs().max()) for m in maps.values())
        for j, name in enumerate(maps):
            truth = overlay(maps[name][i], images[i], limit=limit, alpha=0.5)
            np.testing.assert_allclose(rows[i][j + 1], truth, atol=1e-6)
    with pytest.raises(ValueError, match="'global'"):
        comparison(images, maps, scale="global")


def test_shared_scale_gives_a_value_one_colour_in_signed_and_unsigned_maps():
    maps = {"signed": np.array([[-1.0, 0.5]]), "unsigned": np.array([[0.5, 0.0]])}
    for cmap in (None, "viridis", "bwr"):
        ((_, one, two),) = cells(comparison(np.zeros((1, 2)), maps, scale="shared", alpha=1, cmap=cmap), 3)
        np.testing.assert_array_equal(one[0, 1], two[0, 0])


def test_masks_are_outlined_along_pixel_edges(images, maps):
    mask = np.zeros((24, 24), bool)
    mask[0:2, 3:6] = True  # touches the border
    figure = comparison(images, maps, masks=[None, mask])
    assert not figure.axes[0].collections
    outer, inner = figure.axes[3].collections
    segments = {tuple(sorted(map(tuple, s))) for s in inner.get_segments()}
    assert len(segments) == 10
    assert ((2.5, -0.5), (3.5, -0.5)) in segments
    assert ((5.5, 0.5), (5.5, 1.5)) in segments
    assert {tuple(sorted(map(tuple, s))) for s in outer.get_segments()} == segments
    assert all(not ax.collections for ax in figure.axes[1:3] + figure.axes[4:])
    for ax in figure.axes:
        assert ax.get_ylim() == (23.5, -0.5)


@pytest.mark.parametrize("form", ["bool", "channel", "tensor", "coarse", "pil list"])
def test_kinds_of_masks(form, images, maps):
    mask = np.zeros((2, 24, 24), bool)
    mask[:, 8:16, 8:16] = True
    kind = {
        "bool": lambda: mask,
        "channel": lambda: mask[:, None].astype(np.float32) * 0.2,
        "tensor": lambda: torch.tensor(mask),
        "coarse": lambda: mask[:, ::8, ::8],
        "pil list": lambda: [Image.fromarray(m.astype(np.uint8) * 255) for m in mask],
    }[form]()
    figure = comparison(images, maps, masks=kind)
    for row in (0, 3):
        assert len(figure.axes[row].collections[1].get_segments()) == 32


def test_blank_masks_and_maps(images, maps):
    assert not comparison(images, maps, masks=np.zeros((2, 24, 24))).axes[0].collections[0].get_segments()
    with pytest.warns(UserWarning, match="'zero' row 1, 'zero' row 2: drawn") as seen:
        comparison(images, {"zero": torch.zeros(2, 1, 24, 24), "nan": torch.full((2, 6, 6), torch.nan), **maps})
    assert len(seen) == 1
    assert "36 of 36 values in 'nan' row 2" in str(seen[0].message)


def test_errors_name_the_method(images, maps, tmp_path):
    with pytest.raises(ValueError, match=r"'b'.*3 maps for 2"):
        comparison(images, {**maps, "b": torch.rand(3, 1, 6, 6)})
    with pytest.raises(ValueError, match=r"'b'.*complex"):
        comparison(images, {**maps, "b": np.zeros((2, 6, 6), complex)})
    with pytest.raises(ValueError, match="no maps"):
        comparison(images, {})
    with pytest.raises(ValueError, match="1 labels for 2"):
        comparison(images, maps, labels=["a"])
    with pytest.raises(ValueError, match="masks"):
        comparison(images, maps, masks=np.zeros((3, 24, 24)))
    with pytest.raises(ValueError, match="1 masks for 2"):
        comparison(images, maps, masks=[None])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        comparison(images, maps, save=tmp_path / "nowhere" / "x.png")


def test_one_picture_lists_and_sizes():
    figure = comparison(torch.rand(3, 20, 30), {"a": torch.rand(1, 5, 5), "b": torch.rand(3, 20, 30)})
    assert len(figure.axes) == 3
    mixed = [np.zeros((10, 40, 3)), Image.new("RGB", (30, 60)), np.zeros((16, 16))]
    rows = cells(comparison(mixed, {"a": [np.eye(4)] * 3}), 2)
    assert [r[1].shape for r in rows] == [(10, 40, 3), (60, 30, 3), (16, 16, 3)]


def test_large_pictures_are_drawn_smaller():
    x = np.random.default_rng(0).random((1300, 650)).astype(np.float32)
    ((picture, heat),) = cells(comparison(x, {"a": np.eye(4)}), 2)
    assert picture.shape == heat.shape == (433, 216, 3)
    np.testing.assert_allclose(picture[0, 0, 0], x[:3, :3].mean(), atol=1e-6)


NAMES = [
    *("GradSkip", "LayaLayerAttribution", "IntegratedGradients", "GradCam", "AttentionRollout", "LRP (attnlrp)"),
    *("LRP (libra)", "InputXGradient", "Saliency", "Occlusion", "generic_attention_explainability", "LeGrad"),
    *("random control", "W" * 22),
]


def test_a_grid_of_five_by_fourteen_can_be_read(tmp_path):
    g = torch.Generator().manual_seed(0)
    images, masks = torch.rand(5, 1, 24, 24, generator=g), torch.rand(5, 1, 24, 24, generator=g) > 0.8
    maps = {name: torch.randn(5, 1, 24, 24, generator=g) for name in NAMES}
    labels = ["three", "a label that is long enough to need several lines", "5", "6", "7"]
    figure = comparison(images, maps, masks=masks, labels=labels, title="A heading", save=tmp_path / "grid.png")
    assert len(figure.axes) == 75
    texts = [t for ax in figure.axes for t in (ax.title, ax.yaxis.label) if t.get_text()] + figure.texts
    assert len(texts) == 15 + 5 + 1
    figure.draw_without_rendering()  # positions were last computed for the resolution of the file
    heading, names = texts[-1].get_window_extent(), [ax.title.get_window_extent() for ax in figure.axes]
    assert heading.y0 > max(box.y1 for box in names)
    boxes = [t.get_window_extent() for t in texts]
    frames = [ax.get_window_extent() for ax in figure.axes]
    for i, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:i] + frames), texts[i]
    for i, frame in enumerate(frames):
        assert not any(frame.overlaps(other) for other in frames[:i])
    assert min(f.width for f in frames) > 1.2 * figure.dpi
    assert max(figure.get_size_inches()) < 24
    with Image.open(tmp_path / "grid.png") as saved:
        assert saved.format == "PNG"


def test_wrap_breaks_where_a_name_has_joints():
    assert wrap("short", 2) == "short"
    assert wrap("generic_attention_explainability", 1.3) == "generic_attention_\nexplainability"
    assert wrap("LayaLayerAttribution", 1.0) == "LayaLayer\nAttribution"
    assert wrap("two\nlines", 2) == "two\nlines"
    assert wrap("M" * 30, 1.0).replace("\n", "") == "M" * 30
    assert wrap("", 1.0) == ""
    assert "".join(wrap("naïve 日本語 $x$ über", 0.5).split()) == "naïve日本語$x$über"
