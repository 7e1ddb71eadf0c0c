"""Attention rollout: the row of the tokens that the head reads, with rows that sum to one."""

import pytest
import torch

from tests.models import images, relative_error, tiny
from xattr.attr import AttentionRollout
from xattr.attr.rollout import rollout
from xattr.trace import UnsupportedModelError, attention_maps

# One layer each; tokens that the head reads, and number of prefix tokens.
READ_OUTS = {
    "class token": (("vit_tiny_patch16_224", {}), [0], 1),
    "mean pooling beside a class token": (("vit_tiny_patch16_224", {"global_pool": "avg"}), range(1, 17), 1),
    "mean pooling": (("vit_medium_patch16_gap_240", {}), range(16), 0),
    "two prefix tokens": (("deit_tiny_distilled_patch16_224", {}), [0, 1], 2),
}


def literal(maps):
    """`A^_L ... A^_1` as full matrices, rows renormalised."""
    product = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)
    for A in maps:
        step = A.mean(1) + torch.eye(A.shape[-1])
        product = (step / step.sum(-1, keepdim=True)) @ product
    return product


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("kind", READ_OUTS)
def test_reads_where_the_classifier_reads(kind, depth):
    (name, kwargs), rows, prefix = READ_OUTS[kind]
    model, image = tiny(name, depth=depth, **kwargs), images()
    wanted = literal(attention_maps(model, image))[:, list(rows)].mean(1)[:, prefix:]
    found = AttentionRollout(model).attribute(image, target=1, upsample=None)
    assert found.shape == (2, 1, 4, 4)
    assert torch.allclose(found.flatten(1), wanted, atol=1e-6)
    assert float(wanted.std()) > 1e-3


def test_attention_pool_reads_by_its_own_map():
    model, image = tiny("vit_base_patch16_siglip_224", depth=2), images()
    *blocks, pool = attention_maps(model, image)
    assert pool.shape == (2, 2, 1, 16)
    wanted = pool.mean((1, 2))[:, None] @ literal(blocks)
    found = AttentionRollout(model).attribute(image, target=1, upsample=None)
    assert torch.allclose(found.flatten(1), wanted[:, 0], atol=1e-6)


def test_given_readout():
    model, image = tiny(), images()
    row = torch.zeros(17)
    row[3] = 1
    found = AttentionRollout(model).attribute(image, target=1, readout=row, upsample=None)
    assert torch.allclose(found.flatten(1), literal(attention_maps(model, image))[:, 3, 1:], atol=1e-6)
    with pytest.raises(ValueError, match="17"):
        AttentionRollout(model).attribute(image, target=1, readout=torch.ones(16))


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
@pytest.mark.parametrize("discard", [0.0, 0.9])
def test_rows_sum_to_one_and_images_do_not_interact(fusion, discard):
    torch.manual_seed(0)
    A = torch.softmax(torch.randn(3, 2, 4, 9, 9), -1)
    row = torch.eye(9)[0].expand(2, -1)
    folded = rollout(A.flip(0), row, head_fusion=fusion, discard_ratio=discard)
    assert torch.allclose(folded.sum(-1), torch.ones(2), atol=1e-5)
    for i in range(2):
        alone = rollout(A[:, i : i + 1].flip(0), row[:1], head_fusion=fusion, discard_ratio=discard)
        assert torch.allclose(folded[i : i + 1], alone, atol=1e-6)
    assert relative_error(folded, rollout(A, row)) > 1e-3


def test_wrong_options_are_named():
    for wrong in ({"head_fusion": "sum"}, {"discard_ratio": 1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            AttentionRollout(tiny()).attribute(images(), target=1, **wrong)


def test_a_model_without_attention_is_refused():
    with pytest.raises(UnsupportedModelError, match="no attention"):
        AttentionRollout(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 5))).attribute(images())
