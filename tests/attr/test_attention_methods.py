"""Methods on attention maps and gradients: literal oracles, other families, and what must not matter."""

import pytest
import torch

from tests.attr.test_families import FAMILIES, FUSED, OTHERS
from tests.models import images, relative_error, tiny
from tests.oracles import attention_methods as oracle
from tests.oracles import test_oracle as scaled
from tests.oracles.vit import ViTConfig, prefix_count
from xattr.attr import AGCam, AttentionGradCam, GenericAttention, LeGrad, TokenTM
from xattr.metrics import count_flops
from xattr.trace import UnsupportedModelError

KINDS = ["token", "avg", "avg_without_prefix", "distilled", "layer_scale", "registers"]


def config_of(kind, rules="plain"):
    return ViTConfig(scaled.HEADS, scaled.pool_of(kind), rules=rules)


def agrees(method, kind, wanted, rules="plain", **options):
    model, x = scaled.build(kind), scaled.images()
    record = scaled.seen(kind, rules, target=[1, 3])
    prefix, read = prefix_count(record.state), scaled.reading(kind, record)
    rows = wanted(record, read, prefix, config_of(kind, rules))
    found = method(model).attribute(x, target=[1, 3], upsample=None, **options)
    literal = oracle.patches(rows, prefix, scaled.GRID)[:, None]
    assert found.dtype == torch.float64
    assert float(literal.std()) > 1e-3 * float(literal.abs().max())
    assert relative_error(found, literal) < 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_generic_attention(kind):
    agrees(GenericAttention, kind, lambda r, read, p, c: oracle.generic_attention(r, read))
    agrees(GenericAttention, kind, lambda r, read, p, c: oracle.generic_attention(r, read, 2), first_layer=2)
    agrees(GenericAttention, kind, lambda r, read, p, c: oracle.generic_attention(r, read), "libra", gradients="libra")


@pytest.mark.parametrize("kind", KINDS)
def test_attention_grad_cam(kind):
    wanted = lambda relu: lambda r, read, p, c: oracle.attention_grad_cam(r, read, p, relu)
    agrees(AttentionGradCam, kind, wanted(False), relu_attributions=False)
    model, x = scaled.build(kind), scaled.images()
    signed = AttentionGradCam(model).attribute(x, target=2, relu_attributions=False, upsample=None)
    assert torch.equal(AttentionGradCam(model).attribute(x, target=2, upsample=None), signed.clamp_min(0))


@pytest.mark.parametrize("kind", KINDS)
def test_ag_cam(kind):
    agrees(AGCam, kind, lambda r, read, p, c: oracle.ag_cam(r, read, c))


@pytest.mark.parametrize("kind", KINDS)
def test_le_grad(kind):
    agrees(LeGrad, kind, lambda r, read, p, c: oracle.le_grad(r, c))
    agrees(LeGrad, kind, lambda r, read, p, c: oracle.le_grad(r, c, 2), layers=2)


@pytest.mark.parametrize("kind", KINDS)
def test_token_tm(kind):
    agrees(TokenTM, kind, lambda r, read, p, c: oracle.token_tm(r, read))
    agrees(TokenTM, kind, lambda r, read, p, c: oracle.token_tm(r, read), "libra", gradients="libra")


METHODS = [GenericAttention, AttentionGradCam, AGCam, LeGrad, TokenTM]


@pytest.mark.parametrize("name", [name for name in FAMILIES if name.startswith("transformers")])
@pytest.mark.parametrize("kind", METHODS)
def test_fused_attention_gives_the_same_map_as_eager(name, kind):
    x = images(2, dtype=torch.float64)
    options = {"relu_attributions": False} if kind is AttentionGradCam else {}
    eager, fused = (
        kind(make().double()).attribute(x, target=1, **options) for make in (FAMILIES[name][0], FUSED[name])
    )
    assert relative_error(fused, eager) < 1e-5  # their eager softmax rounds to float32


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("name", ["timm ViT", "timm EVA-02", "timm SigLIP", "timm DINOv3"])
def test_timm_fused_or_written_out(name, kind):
    x, maps = images(2, dtype=torch.float64), []
    for fused in (True, False):
        model = FAMILIES[name][0]().double()
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = fused
        options = {"relu_attributions": False} if kind is AttentionGradCam else {}
        maps.append(kind(model).attribute(x, target=1, **options))
    assert relative_error(*maps) < 1e-9


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("kind", METHODS)
def test_other_attention_is_refused_by_name(name, kind):
    with pytest.raises(UnsupportedModelError, match=rf"{kind.__name__} explains .*(maps|works on)"):
        kind(OTHERS[name]()).attribute(images(1, 64), target=1)


@pytest.mark.parametrize("kind", METHODS)
def test_images_do_not_interact_and_chunks_do_not_matter(kind):
    model, x = tiny().double(), images(3, dtype=torch.float64)
    whole = kind(model).attribute(x, target=[0, 1, 2])
    assert relative_error(kind(model).attribute(x, target=[0, 1, 2], map_budget=1), whole) < 1e-12
    alone = torch.cat([kind(model).attribute(x[i : i + 1], target=i) for i in range(3)])
    assert relative_error(alone, whole) < 1e-12


def test_many_targets_share_the_forward():
    model, x = tiny(), images()
    method, targets = GenericAttention(model), [[0, 1], [3, 4], [2, 2]]
    found = method.attribute_targets(x, torch.tensor(targets))
    assert found.shape == (3, 2, 1, 32, 32)
    for one, target in zip(found, targets, strict=True):
        assert torch.equal(one, method.attribute(x, target=target))
    assert torch.equal(method.attribute_targets(x, [4, -1])[0], method.attribute_targets(x, [4, -1])[1])
    with torch.no_grad():
        forward = count_flops(lambda: model(x))
    for count in (1, 4):
        spent = count_flops(lambda n=count: method.attribute_targets(x, list(range(n))))
        assert forward < spent <= (1 + 1.05 * count) * forward
    with pytest.raises(ValueError, match="targets is empty"):
        method.attribute_targets(x, [])
    with pytest.raises(ValueError, match="targets=3"):
        method.attribute_targets(x, 3)
    with pytest.raises(NotImplementedError, match="LeGrad does not share"):
        LeGrad(model).attribute_targets(x, [1, 2])


def test_wrong_numbers_of_layers():
    for kind, name in ((GenericAttention, "first_layer"), (LeGrad, "layers")):
        for wrong in (0, 4, 1.5, True):
            with pytest.raises(ValueError, match=f"{name}={wrong}"):
                kind(tiny()).attribute(images(), target=1, **{name: wrong})


@pytest.mark.parametrize("kind", METHODS)
def test_a_head_that_is_still_zero_is_said(kind):
    model = tiny()
    torch.nn.init.zeros_(model.head.weight)
    with pytest.warns(UserWarning, match="0 at every token"):
        found = kind(model).attribute(images(), target=1)
    assert not bool(found.any())
