"""Gradient x token, the controls and the input space."""

import captum.attr
import captum.metrics
import numpy as np
import pytest
import scipy.ndimage
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import images, relative_error, sharpen, tiny
from tests.oracles import test_oracle as scenes
from xattr.attr import (
    METHODS,
    AttentionRollout,
    BlurredMap,
    BrightnessMap,
    CentreMap,
    EdgeMap,
    GradientXToken,
    GradSkip,
    InputSpace,
    IntegratedGradients,
    RandomMap,
)


@pytest.mark.parametrize("kind", ["token", "avg", "distilled"])
def test_gradient_x_token_equals_the_oracle(kind):
    model, image = scenes.build(kind), scenes.images()
    record = scenes.seen(kind, target=1)
    prefix = record.x_last.shape[1] - 36
    for block in (1, 3, -1):
        part = record.blocks[block - 1 if block > 0 else block]
        wanted = (part.x * part.dx).sum(-1)[:, prefix:].view(2, 1, 6, 6)
        found = GradientXToken(model).attribute(image, target=1, block=block, upsample=None)
        assert relative_error(found, wanted) < 1e-9
    start = GradientXToken(model).attribute(image, target=1, block=None, upsample=None)
    assert torch.equal(start.flatten(1), GradSkip(model).explain(image, target=1, settings=GradSkip.PAPER).start)


def test_gradient_x_token_of_a_bias_free_model_sums_to_the_logit():
    model = sharpen(tiny(global_pool="avg", class_token=False)).double()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.zero_()
    x = images(dtype=torch.float64)
    for block in (1, 2, 3):
        found = GradientXToken(model).attribute(x, target=2, block=block, upsample=None)
        assert torch.allclose(found.sum((1, 2, 3)), model(x)[:, 2], rtol=1e-10)


def test_no_such_block():
    for block in (0, 4, -4, 1.5):
        with pytest.raises(ValueError, match=f"block={block}"):
            GradientXToken(tiny()).attribute(images(), target=1, block=block)


def test_controls():
    x = images(3)
    assert torch.allclose(BrightnessMap(None).attribute(x), x.mean(1, keepdim=True))
    centre = CentreMap(None).attribute(torch.zeros(1, 3, 5, 9))
    assert int(centre.argmax()) == 2 * 9 + 4
    assert float(centre[0, 0, 0, 0]) == pytest.approx(0, abs=1e-7)
    noise = RandomMap(None).attribute(x)
    assert torch.equal(noise[1:2], RandomMap(None).attribute(x[1:2]))  # the same image, the same noise
    assert not torch.equal(noise[:1], noise[1:2])
    assert 0.45 < float(noise.mean()) < 0.55


def test_edges_by_hand_and_against_scipy():
    y, x = torch.meshgrid(torch.arange(5.0), torch.arange(6.0), indexing="ij")
    ramp = (3 * y + 4 * x).expand(1, 2, 5, 6)
    inside = EdgeMap(None).attribute(ramp)[..., 1:-1, 1:-1]
    assert torch.allclose(inside, torch.full_like(inside, 5))  # steepness per pixel
    assert not bool(EdgeMap(None).attribute(torch.full((1, 3, 4, 4), 7.0)).any())
    picture = images(2, 9)
    grey = picture.mean(1).numpy()
    wanted = [np.hypot(*(scipy.ndimage.sobel(one, axis, mode="nearest") for axis in (0, 1))) / 8 for one in grey]
    found = EdgeMap(None).attribute(picture)
    assert found.shape == (2, 1, 9, 9)
    assert torch.allclose(found[:, 0], torch.from_numpy(np.stack(wanted)), atol=1e-5)
    assert torch.allclose(EdgeMap(None).attribute(-picture), found)
    half = EdgeMap(None).attribute(picture.half())
    assert torch.equal(half, EdgeMap(None).attribute(picture.half().float()))
    assert METHODS["EdgeMap"] == "controls"
    assert "BlurredMap" not in METHODS  # it is made of another method


class Given:
    """A method whose map is known."""

    forward_func = None

    def __init__(self, heat):
        self.heat = heat

    def attribute(self, inputs, target=None, scale=1):
        return scale * self.heat

    def get_name(self):
        return "Given"


@settings(max_examples=15, deadline=None)
@given(sigma=st.floats(0.01, 0.5), factor=st.floats(-10, 10), height=st.integers(1, 12), width=st.integers(1, 12))
def test_blurring_keeps_sums_and_constants_and_is_linear(sigma, factor, height, width):
    heat = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(height), dtype=torch.float64)
    x = torch.zeros(2, 3, height, width)
    found = BlurredMap(Given(heat), sigma).attribute(x)
    assert found.shape == heat.shape
    assert torch.allclose(found.sum((2, 3)), heat.sum((2, 3)), atol=1e-9)
    assert torch.allclose(BlurredMap(Given(heat), sigma).attribute(x, scale=factor), factor * found, atol=1e-9)
    assert torch.allclose(BlurredMap(Given(torch.ones_like(heat)), sigma).attribute(x), torch.ones_like(heat))
    alone = BlurredMap(Given(heat[1:]), sigma).attribute(x[1:])
    assert torch.allclose(alone, found[1:])


def test_blurred_maps_are_as_wide_as_they_say():
    point = torch.zeros(1, 1, 81, 101)
    point[..., 40, 50] = 1
    found = BlurredMap(Given(point), 0.05).attribute(point)[0, 0]
    for axis, centre in ((0, 40), (1, 50)):
        offsets = torch.arange(found.shape[axis]) - centre
        spread = (found.sum(1 - axis) * offsets.square()).sum().sqrt()
        assert float(spread) == pytest.approx(0.05 * 81, rel=0.01)


def test_a_blurred_method_stands_beside_it():
    model, x = tiny(), images()
    method = GradSkip(model)
    blurred = BlurredMap(method)
    heat = method.attribute(x, target=2)
    found = blurred.attribute(x, target=2)
    assert found.shape == heat.shape
    assert found.dtype == heat.dtype
    wanted = scipy.ndimage.gaussian_filter(heat[1, 0].double().numpy(), 0.05 * 32)
    assert relative_error(found[1, 0], torch.from_numpy(wanted).float()) < 1e-5
    assert blurred.attribute(x, target=2, upsample=None).shape == (2, 1, 4, 4)
    assert blurred.forward_func is model
    assert "GradSkip" in blurred.get_name()
    assert isinstance(blurred.attribute((x,), target=2), tuple)
    assert torch.equal(method.attribute(x, target=2), heat)
    with pytest.raises(ValueError, match="sigma=0;"):
        BlurredMap(method, 0)
    with pytest.raises(ValueError, match=r"blurred Given: the method returned \[2, 5\]; expected maps"):
        BlurredMap(Given(torch.zeros(2, 5))).attribute(x)


@pytest.mark.parametrize("size", [(32, 32), (32, 64)])
def test_input_space_keeps_sums(size):
    model = tiny(img_size=size)
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    for method in (GradSkip(model), AttentionRollout(model), GradientXToken(model), BrightnessMap(model)):
        grid = {} if isinstance(method, BrightnessMap) else {"upsample": None}
        wanted = method.attribute(x, target=1, **grid)
        found = InputSpace(method).attribute(x, target=1)
        assert found.shape == x.shape
        assert torch.allclose(found.sum((1, 2, 3)), wanted.sum((1, 2, 3)), rtol=1e-4, atol=1e-6)
    assert relative_error(found, wanted.expand_as(found) / 3) < 1e-6


def test_input_space_of_a_grid_that_does_not_divide_the_image():
    class Coarse:
        forward_func = None

        def attribute(self, inputs, upsample=None):
            return torch.arange(6.0).view(1, 1, 2, 3)

    found = InputSpace(Coarse()).attribute(torch.zeros(1, 3, 5, 7))
    assert found.shape == (1, 3, 5, 7)
    assert float(found.sum()) == pytest.approx(15, abs=1e-5)
    assert float(found[..., :1].sum()) == pytest.approx(3 / 3, abs=1e-5)  # a third of the first column of cells (7 / 3)


def test_captums_tools_take_our_methods():
    model, x = tiny(), images()
    smooth = captum.attr.NoiseTunnel(GradSkip(model)).attribute(x, nt_samples=3, stdevs=0.05, target=1, gate="layer")
    assert smooth.shape == (2, 1, 32, 32)
    smooth = captum.attr.NoiseTunnel(InputSpace(GradSkip(model))).attribute(x, nt_samples=3, stdevs=0.05, target=1)
    assert smooth.shape == x.shape
    perturb = lambda inputs: (n := 0.05 * torch.randn_like(inputs), inputs - n)
    for method in (InputSpace(GradSkip(model)), IntegratedGradients(model)):
        value = captum.metrics.infidelity(model, perturb, x, method.attribute(x, target=1), target=1)
        assert value.shape == (2,)
    spread = captum.metrics.sensitivity_max(GradSkip(model).attribute, x, target=1, n_perturb_samples=2)
    assert bool((spread > 0).all())


@pytest.mark.parametrize(("kind", "options"), [(GradSkip, {}), (GradientXToken, {}), (GradientXToken, {"block": None})])
def test_a_head_that_is_still_zero_is_said(kind, options):
    model = tiny()
    torch.nn.init.zeros_(model.head.weight)
    with pytest.warns(UserWarning, match="0 at every token"):
        found = kind(model).attribute(images(), target=1, **options)
    assert not bool(found.any())
