"""Checks for users: precision."""

import copy

import pytest
import torch

from tests.models import images, relative_error, tiny
from tests.trace.test_safety import METHODS, same, state
from xattr.attr import GradCam, GradSkip, IntegratedGradients
from xattr.datasets import MODELS, digit_scenes, embedded_model
from xattr.testing import check_precision
from xattr.trace import InputError


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_half_precision_on_trained_models(name, method):
    kind, arguments = METHODS[method]
    model, x = embedded_model(name), digit_scenes("report", n=6).images
    before = state(model)
    for found in check_precision(kind(model), x, **arguments):
        assert float(found.cosine.min()) >= (0.99 if found.dtype == torch.bfloat16 else 0.999)
        assert bool(found.same_class.all())
        assert "0 blank" in str(found)
    assert same(before, state(model))


def test_it_compares_with_float32_and_one_class():
    model, x = tiny(), images()
    method = GradSkip(copy.deepcopy(model).bfloat16())
    (found,) = check_precision(method, x, target=[1, 2], dtypes=[torch.bfloat16], signed=True)
    assert next(method.forward_func.parameters()).dtype == torch.bfloat16
    stored = copy.deepcopy(method.forward_func)
    one, other = (GradSkip(stored.to(d)).attribute(x.to(d), target=[1, 2], signed=True)
                  for d in (torch.float32, torch.bfloat16))  # fmt: skip
    errors = [relative_error(b, a) for a, b in zip(one, other, strict=True)]
    assert found.error.tolist() == pytest.approx(errors, rel=1e-5)
    cosine = torch.nn.functional.cosine_similarity(one.flatten(1), other.flatten(1))
    assert torch.allclose(found.cosine, cosine, atol=1e-6)


def test_a_given_layer_is_found_in_the_copy():
    model = tiny()
    (found,) = check_precision(GradCam(model, model.blocks[1].norm1), images(), dtypes=[torch.float16])
    assert float(found.cosine.min()) > 0.99


def test_heads_over_all_layers_and_tensors_among_the_arguments():
    from captum.attr import IntegratedGradients as Theirs

    from xattr.attr import LayaLayerAttribution, LayaTokenAttribution
    from xattr.heads import LayaModel

    model = LayaModel(tiny(), 5, pool="cls", width=8)
    for kind in (LayaLayerAttribution, LayaTokenAttribution):
        (found,) = check_precision(kind(model), images(), dtypes=[torch.bfloat16])
        assert float(found.cosine.min()) > 0.9
    (found,) = check_precision(
        Theirs(tiny()), images(), target=1, dtypes=[torch.float16], baselines=torch.zeros(1, 3, 32, 32), n_steps=3
    )
    assert float(found.cosine.min()) > 0.99


def test_a_precision_that_does_not_do_is_seen():
    model, x = tiny(), images()
    model.head.weight.data.mul_(1e6)  # beyond what float16 can hold
    (found,) = check_precision(GradSkip(model), x, dtypes=[torch.float16], signed=True)
    assert not bool(found.cosine.isfinite().any())
    assert "of 2 images 2 blank or not finite" in str(found)


def test_inputs_of_a_processor_and_what_cannot_be_cast():
    model, x = tiny(), images()
    (found,) = check_precision(IntegratedGradients(model), (x,), dtypes=[torch.float16], n_steps=2)
    assert found.cosine.shape == (2,)
    with pytest.raises(InputError, match="made with a module"):
        check_precision(GradSkip(lambda z: model(z)), x)
