"""Methods on attention maps and gradients: literal oracles, other families, and what must not matter."""

import pytest
import torch

from tests.attr.test_families import FAMILIES, FUSED, OTHERS
from tests.models import images, relative_error, tiny
from tests.oracles import attention_methods as oracle
from tests.oracles import lrp
from tests.oracles import test_oracle as scaled
from tests.oracles.vit import ViTConfig, prefix_count
from xattr.attr import (
    LRP,
    AGCam,
    AttentionGradCam,
    FinerCam,
    FullGradPlus,
    GenericAttention,
    GradCam,
    LeGrad,
    ResLRP,
    TokenTM,
    TransformerAttribution,
)
from xattr.metrics import count_flops, peak_bytes
from xattr.rules.sums import _GammaSum
from xattr.trace import OutputError, UnsupportedModelError

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
    assert relative_error(found, literal) < 1e-9
    assert float(literal.std()) > 1e-7
    # What an identity adds is the same everywhere, and would hide the rest.
    assert relative_error(found - literal.mean(), literal - literal.mean()) < 1e-9


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


@pytest.mark.parametrize("kind", KINDS)
def test_transformer_attribution(kind):
    agrees(TransformerAttribution, kind, lambda r, read, p, c: oracle.transformer_attribution(r, read, p, c))
    late = lambda r, read, p, c: oracle.transformer_attribution(r, read, p, c, 2)
    agrees(TransformerAttribution, kind, late, first_layer=2)


@pytest.mark.parametrize("rules", ["plain", "libra"])
@pytest.mark.parametrize("kind", KINDS)
def test_full_grad_plus(kind, rules):
    def wanted(record, read, prefix, config):
        state, both = record.state, zip(scaled.images(), [1, 3], strict=True)
        return [oracle.full_grad_plus(state, image[None], config, target, prefix) for image, target in both]

    agrees(FullGradPlus, kind, wanted, rules, gradients=rules)


@pytest.mark.parametrize("kind", ["token", "avg", "distilled"])
@pytest.mark.parametrize("options", [{}, {"alpha": 0.6}, {"comparisons": 1}, {"comparisons": 9}])
def test_finer_cam(kind, options):
    model, x = scaled.build(kind), scaled.images()
    layer, kept = model.blocks[-1].norm1, []
    with layer.register_forward_hook(lambda module, args, output: kept.append(output)):
        model(x)

    def run(tokens, b):
        with layer.register_forward_hook(lambda module, args, output: tokens):
            return model(x[b : b + 1])

    prefix = kept[0].shape[1] - 36
    rows = oracle.finer_cam(kept[0], run, [1, 3], prefix, options.get("alpha", 1.0), options.get("comparisons", 3))
    found = FinerCam(model).attribute(x, target=[1, 3], relu_attributions=False, upsample=None, **options)
    assert relative_error(found, oracle.patches(rows, prefix, scaled.GRID)[:, None]) < 1e-9
    both = {"target": [1, 3], "relu_attributions": False, "upsample": None}
    assert relative_error(FinerCam(model).attribute(x, alpha=0, **both), GradCam(model).attribute(x, **both)) < 1e-9
    given = FinerCam(model, layer).attribute(x, target=[1, 3], relu_attributions=False, upsample=None, **options)
    assert relative_error(given, found) < 1e-9


def test_finer_cam_needs_classes():
    with pytest.raises(OutputError, match=r"FinerCam compares classes; found scores \[2, 1\]"):
        FinerCam(tiny(num_classes=1)).attribute(images())
    with pytest.raises(ValueError, match="comparisons=0"):
        FinerCam(tiny()).attribute(images(), comparisons=0)


@pytest.mark.parametrize("kind", ["cnn", "transformer"])
def test_res_lrp(kind):
    model = lrp.SmallCNN() if kind == "cnn" else lrp.SmallTransformer()
    literal = lrp.cnn_relevance if kind == "cnn" else lrp.transformer_relevance
    x = images(2, 12, dtype=torch.float64)
    wanted, _ = literal(model, x, 1, "res_lrp", eps=0.0)
    assert relative_error(ResLRP(model).attribute(x, target=1), wanted) < 1e-9
    plain = LRP(model).attribute(x, target=1, rule="attnlrp")
    assert relative_error(ResLRP(model).attribute(x, target=1, gamma=0), plain) < 1e-9
    assert (relative_error(plain, wanted) > 1e-2) == (kind == "transformer")  # the CNN's branches have one sign
    with pytest.raises(ValueError, match="gamma=-1"):
        ResLRP(model).attribute(x, gamma=-1)


def test_a_residual_sum_conserves_relevance_and_bounds_its_shares():
    u, v, g = torch.randn(3, 2, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for gamma in (0.25, 1.0, 4.0):
        a, b = u.clone().requires_grad_(), v.clone().requires_grad_()
        out = _GammaSum.apply(a, b, gamma)
        out.backward(g)
        assert torch.equal(out.detach(), u + v)
        assert relative_error(a.grad * u + b.grad * v, (u + v) * g) < 1e-12
        share = a.grad * u / ((u + v) * g)
        assert -1 / gamma <= float(share.min()) < 0 and 1 < float(share.max()) <= 1 + 1 / gamma


METHODS = [GenericAttention, AttentionGradCam, AGCam, LeGrad, TokenTM, TransformerAttribution, FullGradPlus]


@pytest.mark.parametrize("name", [name for name in FAMILIES if name.startswith("transformers")])
@pytest.mark.parametrize("kind", METHODS)
def test_fused_attention_gives_the_same_map_as_eager(name, kind):
    x = images(2, dtype=torch.float64)
    options = {"relu_attributions": False} if kind is AttentionGradCam else {}
    eager, fused = (
        kind(make().double()).attribute(x, target=1, **options) for make in (FAMILIES[name][0], FUSED[name])
    )
    # Their eager softmax rounds to float32, and relevance is divided by what may be small.
    assert relative_error(fused, eager) < (2e-4 if kind is TransformerAttribution else 1e-5)


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
    if kind is not FullGradPlus:
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
def test_one_layers_maps_are_alive_at_a_time(kind):
    x, most = images(1, 64), []
    one_map = 2 * 257**2 * 4  # larger than anything else here
    for depth in (2, 5):
        model = tiny(img_size=64, patch_size=4, depth=depth)
        most.append(peak_bytes(lambda m=model: kind(m).attribute(x, target=1, upsample=None), one_map))
    assert most[0] == most[1] <= (0 if kind is FullGradPlus else 7) * one_map


@pytest.mark.parametrize("kind", METHODS)
def test_a_head_that_is_still_zero_is_said(kind):
    model = tiny()
    torch.nn.init.zeros_(model.head.weight)
    with pytest.warns(UserWarning, match="0 at every token"):
        found = kind(model).attribute(images(), target=1)
    assert not bool(found.any())
