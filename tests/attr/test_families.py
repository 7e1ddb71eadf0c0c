"""Every columnar family: GradSkip against the oracle fed by hooks, complete relevance, and the right blocks."""

import pytest
import timm
import torch
import torchvision
import transformers

from tests.attr.test_lrp import conserved
from tests.models import HF, images, relative_error, sharpen, tiny
from tests.oracles.gradskip import gradskip as oracle
from tests.oracles.hooked import observe_by_hooks
from xattr.attr import GradCam, GradientXToken, GradSkip
from xattr.attr.rollout import AttentionRollout
from xattr.trace import UnsupportedModelError


def hf(kind, attention="eager", **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**HF, **options}, num_labels=5)
    model = getattr(transformers, f"{kind}ForImageClassification")
    return sharpen(model._from_config(config, attn_implementation=attention).eval())


def hf_vision(kind, attention="eager"):
    torch.manual_seed(0)
    vision = getattr(transformers, f"{kind}VisionConfig")(**HF)
    config = getattr(transformers, f"{kind}Config")(vision_config=vision.to_dict(), num_labels=5)
    config.text_config.bos_token_id = config.text_config.eos_token_id = 1
    model = getattr(transformers, f"{kind}ForImageClassification")
    return sharpen(model._from_config(config, attn_implementation=attention).eval())


def torchvision_vit():
    torch.manual_seed(0)
    return sharpen(torchvision.models.VisionTransformer(32, 8, 3, 2, 32, 64, num_classes=5).eval())


PATCHES, FIRST = slice(None), [0]
# model, its list of blocks, prefix tokens, tokens that the head reads
FAMILIES = {
    "timm ViT": (tiny, "blocks", 1, [0]),
    "timm ViT, mean pool": (lambda: tiny(global_pool="avg"), "blocks", 1, range(1, 17)),
    "timm DeiT distilled": (lambda: tiny("deit_tiny_distilled_patch16_224"), "blocks", 2, [0, 1]),
    "timm DINOv2 with registers": (lambda: tiny("vit_small_patch14_reg4_dinov2"), "blocks", 5, [0]),
    "timm DINOv3": (lambda: tiny("vit_small_patch16_dinov3"), "blocks", 5, range(5, 21)),
    "timm EVA-02": (lambda: tiny("eva02_tiny_patch14_224"), "blocks", 1, range(1, 17)),
    "timm BEiT": (lambda: tiny("beit_base_patch16_224"), "blocks", 1, range(1, 17)),
    "timm SigLIP": (lambda: tiny("vit_base_patch16_siglip_224"), "blocks", 0, range(16)),
    "timm CLIP": (lambda: tiny("vit_base_patch16_clip_224"), "blocks", 1, [0]),
    "transformers ViT": (lambda: hf("ViT"), "vit.layers", 1, [0]),
    "transformers DeiT": (lambda: hf("DeiT"), "deit.layers", 2, [0]),
    "transformers BEiT": (lambda: hf("Beit", use_relative_position_bias=True), "beit.layers", 1, range(1, 17)),
    "transformers DINOv2": (lambda: hf("Dinov2", mlp_ratio=2), "dinov2.encoder.layer", 1, range(17)),
    "transformers DINOv2 with registers": (
        lambda: hf("Dinov2WithRegisters", mlp_ratio=2), "dinov2_with_registers.encoder.layer", 5, [0, *range(5, 21)],
    ),
    "transformers CLIP": (lambda: hf_vision("CLIP"), "vision_model.encoder.layers", 1, range(1, 17)),
    "transformers SigLIP": (lambda: hf_vision("Siglip"), "vision_model.encoder.layers", 0, range(16)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_equals_the_oracle_fed_with_the_models_own_maps(name):
    make, blocks, prefix, read = FAMILIES[name]
    model, x = make().double(), images(2, dtype=torch.float64)
    record = observe_by_hooks(model, blocks, x, 1)
    wanted = oracle(record, (4, 4), prefix, read=list(read), signed=True, start="uniform")["map"]
    found = GradSkip(model).explain(
        x, target=1, settings=GradSkip.PAPER, gradients="plain", start="uniform", signed=True, upsample=None
    )
    assert relative_error(found.map[:, 0], wanted) < 1e-5
    walked = len(record.blocks) - any(token < prefix for token in read)
    assert len(found.layers) == walked
    assert all(path.startswith(f"{blocks}.{i}") for i, path in enumerate(found.layers))


FUSED = {name: make for name, (make, *_) in FAMILIES.items() if name.startswith("timm")} | {
    "transformers ViT": lambda: hf("ViT", "sdpa"),
    "transformers DeiT": lambda: hf("DeiT", "sdpa"),
    "transformers BEiT": lambda: hf("Beit", "sdpa", use_relative_position_bias=True),
    "transformers DINOv2": lambda: hf("Dinov2", "sdpa", mlp_ratio=2),
    "transformers DINOv2 with registers": lambda: hf("Dinov2WithRegisters", "sdpa", mlp_ratio=2),
    "transformers CLIP": lambda: hf_vision("CLIP", "sdpa"),
    "transformers SigLIP": lambda: hf_vision("Siglip", "sdpa"),
}


@pytest.mark.parametrize("name", [name for name in FAMILIES if name.startswith("transformers")])
@pytest.mark.parametrize("kind", [GradSkip, GradientXToken, AttentionRollout])
def test_fused_attention_gives_the_same_map_as_eager(name, kind):
    x = images(2, dtype=torch.float64)
    options = {"signed": True} if kind is GradSkip else {}
    eager, fused = (
        kind(make().double()).attribute(x, target=1, **options) for make in (FAMILIES[name][0], FUSED[name])
    )
    assert relative_error(fused, eager) < 1e-6  # their eager softmax rounds to float32


def parallel(name="vit_small_patch16_18x2_224"):
    return tiny(name)


COMPLETE = FUSED | {
    "torchvision": torchvision_vit,
    "attentions side by side": parallel,
    "attention and MLP side by side": lambda: tiny(block_fn=timm.models.vision_transformer.ParallelScalingBlock),
    "norm behind the sum": lambda: tiny("vit_relpos_medium_patch16_rpn_224"),
    "class attention": lambda: tiny("cait_xxs24_224"),
}


@pytest.mark.parametrize("name", COMPLETE)
def test_relevance_under_libra_is_complete(name):
    model = COMPLETE[name]().double()
    if "CLIP" in name and "transformers" in name:
        model.vision_model.embeddings.class_embedding.data.zero_()  # counts as a bias, under a name of its own
    total, logit = conserved(model, images(1, dtype=torch.float64), "libra")
    assert total == pytest.approx(logit, rel=1e-10)


def test_blocks_of_other_families_are_found():
    x = images(2)
    wanted = tuple(f"encoder.layers.encoder_layer_{i}.self_attention" for i in range(3))
    assert GradSkip(torchvision_vit()).explain(x, target=1).layers == wanted
    assert GradSkip(parallel()).explain(x, target=1).omega.shape == (3, 2, 4)  # three blocks, four heads each
    assert len(GradSkip(tiny("vit_relpos_medium_patch16_rpn_224")).explain(x, target=1).layers) == 3


def swin():
    torch.manual_seed(0)
    options = {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2)}
    return timm.create_model("swin_tiny_patch4_window7_224", num_classes=5, **options).eval()


def segformer():
    torch.manual_seed(0)
    sizes = {"depths": [1] * 4, "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 3, 4]}
    config = transformers.SegformerConfig(**sizes, decoder_hidden_size=16, num_labels=3)
    return transformers.SegformerForImageClassification(config).eval()


OTHERS = {
    "windows": swin,
    "attention between channels": lambda: timm.create_model("xcit_nano_12_p16_224", num_classes=5).eval(),
    "reduced keys": segformer,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_attention_is_refused_by_name_and_explained_by_others(name):
    model, x = OTHERS[name](), images(1, 64)
    for kind in (AttentionRollout, GradSkip, GradientXToken):
        with pytest.raises(UnsupportedModelError, match=r"maps|works on.*GradCam, LRP and IntegratedGradients"):
            kind(model).attribute(x, target=1)
    assert GradCam(model).attribute(x, target=1).shape == (1, 1, 64, 64)
    total, logit = conserved(model.double(), x.double(), "libra")
    assert total == pytest.approx(logit, rel=1e-8)
