"""Inputs, outputs and targets: one clear error for each mistake, Captum's conventions for the rest."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.models import HF, images, relative_error, sharpen, tiny
from xattr.attr import AttentionRollout, GradSkip, IntegratedGradients
from xattr.trace import InputError, OutputError, TargetError

ONE_OF_EACH = (GradSkip, AttentionRollout, IntegratedGradients)


@pytest.mark.parametrize("kind", ONE_OF_EACH)
@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.full((1, 3, 32, 32), float("nan")), "3072"),
        (torch.zeros(1, 3, 32, 32).index_fill(3, torch.tensor([0]), float("inf")), "96"),
        (torch.zeros(0, 3, 32, 32), "empty"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "uint8"),
        ("image.png", "str"),
        (np.zeros((1, 3, 32, 32)), "from_numpy"),
        ({"pixel_values": torch.zeros(2, 3)}, "pixel_values"),
        ((torch.zeros(1, 3, 32, 32), torch.zeros(2, 3, 32, 32)), r"\[1, 2\]"),
    ],
)
def test_bad_images(kind, x, says):
    with pytest.raises(InputError, match=says):
        kind(tiny()).attribute(x, target=1)


@pytest.mark.parametrize("x", [torch.zeros(3, 32, 32), (torch.zeros(1, 3, 32, 32),) * 2])
def test_map_methods_want_one_image_tensor(x):
    with pytest.raises(InputError, match="additional_forward_args"):
        GradSkip(tiny()).attribute(x, target=1)


@pytest.mark.parametrize("kind", ONE_OF_EACH)
@pytest.mark.parametrize(
    "target",
    [5, -6, 1.0, True, [0], [0, 1, 2], torch.tensor([[0.0, 1, 0, 0, 0]] * 2), torch.tensor([1.0, 2.0]), (1, 2), "1"],
)
def test_bad_targets_name_the_range(kind, target):
    with pytest.raises(TargetError, match=r"0\.\.4 \(or -5\.\.-1 from the end\)") as caught:
        kind(tiny()).attribute(images(), target=target)
    assert isinstance(caught.value, (ValueError, AssertionError))
    assert "[2, 5]" in str(caught.value)


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_targets_of_every_kind(kind):
    model, x = tiny(), images()
    # Rollout does not depend on the class, so only the others can tell targets apart.
    options = {"signed": True} if kind is GradSkip else {}
    explain = lambda target: kind(model).attribute(x, target=target, **options)
    each = [explain(t) for t in range(5)]
    assert kind is AttentionRollout or relative_error(each[1], each[2]) > 1e-2
    for target in (
        -1,
        [4, -1],
        torch.tensor([4, 4]),
        torch.tensor(4),
        torch.tensor([4], dtype=torch.int16),
        np.int64(4),
        np.array([4, -1]),
    ):
        assert torch.equal(explain(target), each[4])
    mixed = explain(torch.tensor([0, 3], dtype=torch.uint8))
    assert relative_error(mixed[:1], each[0][:1]) < 1e-6
    assert relative_error(mixed[1:], each[3][1:]) < 1e-6
    predicted = model(x).argmax(1)
    assert torch.equal(explain(None), explain(predicted))


def test_models_with_one_output():
    one, x = tiny(num_classes=1), images()
    vector = nn.Sequential(one, nn.Flatten(0))
    for kind in ONE_OF_EACH:
        wanted = kind(one).attribute(x)
        assert torch.equal(wanted, kind(one).attribute(x, target=0))
        assert relative_error(kind(vector).attribute(x), wanted) < 1e-6
        assert torch.equal(kind(vector).attribute(x), kind(vector).attribute(x, target=0))
        with pytest.raises(TargetError, match="negative"):
            kind(one).attribute(x, target=1)


def test_dense_outputs():
    dense, x = nn.Conv2d(3, 4, 1, bias=False), images()
    weight = dense.weight[1, :, 0, 0].detach()
    found = IntegratedGradients(dense).attribute(x, target=(1, 5, 9))
    wanted = torch.zeros_like(x)
    wanted[:, :, 5, 9] = weight * x[:, :, 5, 9]
    assert torch.allclose(found, wanted, atol=1e-5)
    assert torch.allclose(IntegratedGradients(dense).attribute(x, target=[(1, 5, 9), (1, 5, 9)]), found)
    for target in (None, 1):
        with pytest.raises(TargetError, match="one score per class"):
            IntegratedGradients(dense).attribute(x, target=target)
    with pytest.raises(InputError, match="callable"):
        IntegratedGradients("vit").attribute(x)
    with pytest.raises(TargetError, match="labels"):
        IntegratedGradients(tiny()).attribute(x, target=torch.tensor([[1, 0, 1, 0, 0], [0, 0, 0, 1, 0]]))


def test_outputs_that_are_not_scores():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = tiny()

        def forward(self, z):
            return self.net(z), self.net.forward_features(z)

    two, x = Two().eval(), images()
    for kind in ONE_OF_EACH:
        with pytest.raises(OutputError, match=r"0: \[2, 5\], 1: \[2, 17, 32\].*lambda images: model\(images\)\[0\]"):
            kind(two).attribute(x, target=1)
        with pytest.raises(OutputError, match=r"\['features'\]"):
            kind(lambda z: {"features": two(z)[1]}).attribute(x, target=1)
        with pytest.raises(OutputError, match="NoneType"):
            kind(lambda z: None).attribute(x, target=1)
        with pytest.raises(OutputError, match="one row per image"):
            kind(lambda z: two(z)[0].sum()).attribute(x, target=1)
    options = {"signed": True}
    found = GradSkip(lambda z: two(z)[0]).attribute(x, target=1, **options)
    assert relative_error(found, GradSkip(two.net).attribute(x, target=1, **options)) < 1e-6


def test_tuple_in_tuple_out_and_processor_dictionaries():
    import transformers

    model, x = tiny(), images()
    for kind in ONE_OF_EACH:
        (found,) = kind(model).attribute((x,), target=1)
        assert torch.equal(found, kind(model).attribute(x, target=1))
    torch.manual_seed(0)
    vit = sharpen(transformers.ViTForImageClassification(transformers.ViTConfig(**HF, num_labels=3)).eval())
    batch = transformers.BatchFeature({"pixel_values": x, "interpolate_pos_encoding": False})
    for kind in ONE_OF_EACH:
        assert torch.equal(kind(vit).attribute(batch, target=1), kind(vit).attribute(x, target=1))


def test_additional_arguments_reach_the_model():
    model, x = tiny(), images()
    scaled = lambda image, factor, bias: model(image) * factor + bias
    options = {"signed": True, "settings": GradSkip.PAPER}
    found = GradSkip(scaled).attribute(x, 1, (3.0, 1.0), **options)
    assert relative_error(found, 3 * GradSkip(model).attribute(x, 1, **options)) < 1e-4
