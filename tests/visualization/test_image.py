"""`to_image`: the picture is the same, whatever it came as."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from xattr.visualization import to_image

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


@pytest.fixture
def img():
    return torch.rand(3, 20, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def truth(img):
    return img.permute(1, 2, 0).numpy()


def same(found, truth, step=1 / 255):
    assert found.shape == truth.shape
    assert found.dtype == np.float32
    assert np.abs(found - truth).max() <= step
    assert found.min() >= 0
    assert found.max() <= 1


KINDS = {
    "tensor": lambda t: t,
    "batch of one": lambda t: t[None],
    "with gradient": lambda t: t.clone().requires_grad_(),
    "half": lambda t: t.half(),
    "bfloat16": lambda t: t.bfloat16(),
    "double": lambda t: t.double(),
    "not contiguous": lambda t: t.permute(1, 2, 0).contiguous().permute(2, 0, 1),
    "array first": lambda t: t.numpy(),
    "array last": lambda t: t.permute(1, 2, 0).numpy(),
    "half array": lambda t: t.numpy().astype(np.float16),
    "bytes last": lambda t: (t * 255).round().byte().permute(1, 2, 0).numpy(),
    "bytes first": lambda t: (t * 255).round().byte(),
    "bytes as int64": lambda t: (t * 255).round().long(),
    "uint16": lambda t: (t.permute(1, 2, 0).double().numpy() * 65535).round().astype(np.uint16),
    "rgba": lambda t: np.concatenate([t.permute(1, 2, 0).numpy(), np.zeros((20, 32, 1), np.float32)], 2),
    "pil": lambda t: Image.fromarray((t * 255).round().byte().permute(1, 2, 0).numpy()),
    "pil rgba": lambda t: Image.fromarray((t * 255).round().byte().permute(1, 2, 0).numpy()).convert("RGBA"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_the_same_picture(kind, img, truth):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(to_image(KINDS[kind](img)), truth)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_from_the_gpu(img, truth):
    same(to_image(img.cuda().requires_grad_()), truth, 1e-7)


@pytest.mark.parametrize("form", ["tensor", "list", "column", "array"])
def test_normalisation_is_undone(form, img, truth):
    norm = (img - MEAN.view(3, 1, 1)) / STD.view(3, 1, 1)
    change = {
        "tensor": lambda t: t,
        "list": lambda t: t.tolist(),
        "column": lambda t: t.view(1, 3, 1, 1),
        "array": lambda t: t.numpy(),
    }[form]
    same(to_image(norm, change(MEAN), change(STD)), truth, 1e-6)
    same(to_image(norm.half(), change(MEAN), change(STD)), truth)


def test_mean_or_std_alone():
    assert to_image(np.full((1, 4, 4), 0.25), mean=0.5)[0, 0, 0] == 0.75
    assert to_image(np.full((1, 4, 4), 2.0), std=0.25)[0, 0, 0] == 0.5


def test_values_outside_without_mean_warn_with_the_range_and_are_scaled():
    x = np.stack([np.linspace(-2.0, 2.0, 20).reshape(4, 5)] * 3)
    with pytest.warns(UserWarning, match=r"-2 to 2") as seen:
        found = to_image(x)
    assert len(seen) == 1
    assert seen[0].filename == __file__  # the warning points at the caller
    np.testing.assert_allclose(found[..., 0], np.linspace(0, 1, 20).reshape(4, 5), atol=1e-6)


def test_wrong_mean_and_std_warn():
    with pytest.warns(UserWarning, match="after mean and std"):
        found = to_image(np.full((3, 8, 8), 2.0), mean=0.5, std=0.5)
    assert (found == 1).all()


def test_floats_of_bytes_hint_at_255():
    with pytest.warns(UserWarning, match="divide it by 255"):
        to_image(np.arange(3 * 64.0).reshape(3, 8, 8))


def test_constant_outside_and_nan():
    with pytest.warns(UserWarning, match="range 7 to 7"):
        assert (to_image(np.full((8, 8), 7.0)) == 0.5).all()
    x = np.zeros((8, 8))
    x[0, 0], x[1, 1] = np.nan, np.inf
    with pytest.warns(UserWarning, match="2 of 64"):
        found = to_image(x)
    assert found[0, 0, 0] == found[1, 1, 2] == 0.5
    assert found.sum() == 3.0
    with pytest.warns(UserWarning, match="64 of 64"):
        assert (to_image(np.full((8, 8), np.nan)) == 0.5).all()


def test_grey_as_one_channel_and_as_none():
    grey = torch.rand(1, 9, 7)
    for kind in (grey, grey[0], grey.permute(1, 2, 0)):
        found = to_image(kind)
        assert found.shape == (9, 7, 3)
        assert (found == grey[0].numpy()[..., None]).all()
    bytes_ = (grey[0] * 255).round().byte().numpy()
    same(to_image(Image.fromarray(bytes_)), np.repeat(grey[0].numpy()[..., None], 3, 2))
    assert to_image(np.eye(6, dtype=bool))[2, 2, 1] == 1
    assert to_image(np.eye(6, dtype=np.int64))[2, 2, 1] == 1


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((3, 3, 3), "layout="),
        ((1, 8, 3), "layout="),
        ((3, 8, 1), "layout="),
        ((4, 8, 8), "neither first nor last"),
        ((2, 3, 8, 8), "batch of 2"),
        ((8,), r"shape \(8,\)"),
        ((0, 8), "shape"),
        ((1, 1, 3, 8, 8), "shape"),
    ],
)
def test_unclear_shapes_are_refused_with_what_was_found(shape, says):
    with pytest.raises(ValueError, match=says) as error:
        to_image(np.zeros(shape))
    if len(shape) > 1:
        assert str(shape[0]) in str(error.value)


def test_a_width_of_four_is_no_transparency():
    assert to_image(np.zeros((3, 8, 4))).shape == (8, 4, 3)
    assert to_image(np.zeros((1, 4, 4))).shape == (4, 4, 3)
    assert to_image(np.zeros((8, 5, 4))).shape == (8, 5, 3)
    assert to_image(np.zeros((3, 5, 4)), layout="HWC").shape == (3, 5, 3)


def test_layout_settles_it():
    x = np.linspace(0, 1, 27).reshape(3, 3, 3)
    np.testing.assert_allclose(to_image(x, layout="HWC"), x, atol=1e-7)
    np.testing.assert_allclose(to_image(x, layout="CHW"), x.transpose(1, 2, 0), atol=1e-7)
    np.testing.assert_allclose(to_image(Image.fromarray((x * 255).astype(np.uint8))), x, atol=1 / 255)
    with pytest.raises(ValueError, match="'CHW'"):
        to_image(np.zeros((8, 8, 3)), layout="CHW")
    with pytest.raises(ValueError, match="'WHC'"):
        to_image(x, layout="WHC")


def test_other_refusals():
    with pytest.raises(ValueError, match="leave out mean and std"):
        to_image(np.zeros((8, 8, 3), np.uint8), MEAN, STD)
    with pytest.raises(ValueError, match="2 values in mean for 3 channels"):
        to_image(np.zeros((3, 8, 8)), mean=[0.5, 0.5])
    with pytest.raises(ValueError, match="std"):
        to_image(np.zeros((3, 8, 8)), std=0.0)
    with pytest.raises(TypeError, match="complex"):
        to_image(np.zeros((3, 8, 8), complex))


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.float64, (2, 4), elements=st.floats(allow_nan=True, allow_infinity=True)))
def test_any_floats_end_finite_and_in_range(values):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", UserWarning)
        found = to_image(values)
    assert np.isfinite(found).all()
    assert found.min() >= 0
    assert found.max() <= 1
