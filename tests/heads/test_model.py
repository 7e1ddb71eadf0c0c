"""A head on any backbone: the right layers, nothing left behind, stored and found again."""

import copy

import pytest
import timm
import torch
import torchvision
import transformers
from torch import nn

from tests.models import HF, images, sharpen, tiny
from tests.trace.test_safety import same, state
from xattr.attr import LayaLayerAttribution
from xattr.heads import HEADS, LayaModel, find_layers
from xattr.trace import InputError


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.states = nn.LSTM(16, 12, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(24, 4)

    def forward(self, ids):
        return self.out(self.states(self.words(ids))[0][:, -1])


def mlp():
    return nn.Sequential(*(part for a, b in ((20, 16), (16, 12), (12, 8))
                           for part in (nn.Linear(a, b), nn.LayerNorm(b), nn.GELU())))  # fmt: skip


def hf(kind, name, **options):
    torch.manual_seed(0)
    return getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**{**HF, **options})).eval()


WORDS = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 60}
IDS = torch.arange(14).view(2, 7)
# Backbone, inputs, pool, number of blocks, of stages, path of the first.
BACKBONES = {
    "timm ViT": (tiny, images(), "cls", 3, 1, "blocks.0"),
    "timm ViT, one block": (lambda: tiny(depth=1), images(), "cls", 1, 1, "blocks.0"),
    "side by side": (lambda: tiny("vit_small_patch16_18x2_224"), images(), "mean", 3, 1, "blocks.0"),
    "timm ResNet": (lambda: timm.create_model("resnet10t", num_classes=5), images(2, 64), None, 4, 4, "layer1.0"),
    "timm ConvNeXt": (lambda: timm.create_model("convnext_atto"), images(2, 64), "gap", 12, 4, "stages.0.blocks.0"),
    "timm Swin": (
        lambda: timm.create_model("swin_tiny_patch4_window7_224", img_size=64, window_size=4, embed_dim=16,
                                  depths=(1, 2), num_heads=(1, 2)),
        images(2, 64), None, 3, 2, "layers.0.blocks.0",
    ),
    "torchvision MobileNet": (torchvision.models.mobilenet_v2, images(2, 64), None, 17, 5, "features.1"),
    "torchvision Swin": (torchvision.models.swin_t, images(2, 64), None, 12, 4, "features.1.0"),
    "transformers ViT": (lambda: hf("ViT", "ViTModel"), images(), "cls", 2, 1, "layers.0"),
    "transformers DINOv2": (
        lambda: hf("Dinov2", "Dinov2Model", mlp_ratio=2), images(), "mean", 2, 1, "encoder.layer.0"
    ),
    "transformers BERT": (
        lambda: transformers.BertModel(transformers.BertConfig(**WORDS)).eval(),
        {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}, "mean", 3, 1, "encoder.layer.0",
    ),
    "LSTM": (Recurrent, IDS, None, 2, 2, "states"),
    "MLP": (mlp, torch.randn(2, 20, generator=torch.Generator().manual_seed(0)), None, 3, 1, "3"),
}  # fmt: skip


def scored(model, seed=3):
    """The head with random weights, so that alpha depends on the input."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.head.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
    return model


@pytest.mark.parametrize("name", BACKBONES)
def test_as_many_weights_as_blocks(name):
    make, x, pool, blocks, stages, first = BACKBONES[name]
    backbone = make().train()
    before = state(backbone)
    model = scored(LayaModel(backbone, 5, pool=pool, width=8, example=x if "torchvision" in name else None))
    assert len(model.layers) == blocks
    assert model.layers[0].path == first
    assert len(find_layers(backbone, x, "stages", pool)) == stages
    given = (x,) if isinstance(x, torch.Tensor) else x
    logits = model(*given) if isinstance(given, tuple) else model(**given)
    assert logits.shape == (2, 5)
    alpha = LayaLayerAttribution(model).attribute(x)
    assert alpha.shape == (2, blocks)
    assert torch.allclose(alpha.sum(1), torch.ones(2), atol=1e-6)
    if blocks > 1:
        assert float((alpha[0] - alpha[1]).abs().max()) > 1e-4
    assert same(before, state(backbone))


@pytest.mark.parametrize("name", ["timm ViT", "timm Swin", "transformers ViT", "LSTM", "MLP"])
def test_entry_k_belongs_to_block_k(name):
    make, x, pool, *_ = BACKBONES[name]
    model = scored(LayaModel(make().eval(), 5, pool=pool, width=8))
    features = model.features(x)
    found = model.head.explain(features)
    for k in range(len(features)):
        z = found.z.clone()
        z[:, k] = 0
        changed = model.head._explained(z, found.scores, found.alpha).contributions != found.contributions
        assert changed.any(0).any(-1).nonzero().flatten().tolist() == [k]


def test_features_are_what_the_blocks_return():
    model, x = tiny(), images()
    ours = LayaModel(model, 5, pool="cls").features(x)
    wanted = model.forward_intermediates(x, intermediates_only=True, return_prefix_tokens=True, output_fmt="NLC")
    assert all(torch.allclose(f, prefix[:, 0], atol=1e-6) for f, (_, prefix) in zip(ours, wanted, strict=True))
    theirs = hf("ViT", "ViTModel")
    states = theirs(x, output_hidden_states=True).hidden_states
    found = LayaModel(theirs, 5, pool="mean", include_embedding=True)
    assert len(found.layers) == 3
    assert all(torch.allclose(f, s.mean(1), atol=1e-6) for f, s in zip(found.features(x), states, strict=True))


def test_padding_does_not_count_in_a_mean():
    bert = transformers.BertModel(transformers.BertConfig(**WORDS)).eval()
    model = LayaModel(bert, 5, pool="mean")
    mask = torch.ones_like(IDS)
    mask[:, 4:] = 0
    short = model.features({"input_ids": IDS[:, :4], "attention_mask": mask[:, :4]})
    padded = model.features({"input_ids": IDS, "attention_mask": mask})
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(short, padded, strict=True))


def test_layers_by_name_by_module_and_a_callable_pool():
    vit, x = tiny(), images()
    by_name = LayaModel(vit, 5, layers=["blocks.2", "blocks.0"], pool="cls")
    assert [layer.path for layer in by_name.layers] == ["blocks.0", "blocks.2"]  # in order of depth
    by_module = LayaModel(vit, 5, layers=[vit.blocks[0], vit.blocks[2].mlp], pool=lambda t: t.amax(1))
    assert [layer.path for layer in by_module.layers] == ["blocks.0", "blocks.2.mlp"]
    kept = {}
    handle = vit.blocks[2].mlp.register_forward_hook(lambda module, args, out: kept.update(out=out))
    vit(x)
    handle.remove()
    assert torch.equal(by_module.features(x)[1], kept["out"].amax(1))


def test_freeze_and_gradients():
    vit, x = tiny().train(), images()
    frozen = scored(LayaModel(vit, 5, pool="cls").train())
    frozen(x).sum().backward()
    assert all(p.grad is None for p in vit.parameters())
    assert all(p.grad is not None for p in frozen.head.parameters())
    loose = scored(LayaModel(tiny(), 5, pool="cls", freeze=False))
    loose(x).sum().backward()
    assert float(loose.backbone.blocks[0].attn.qkv.weight.grad.abs().max()) > 0


def test_a_frozen_backbone_in_train_mode_gives_the_features_of_eval():
    vit, x = tiny(proj_drop_rate=0.5, drop_path_rate=0.3), images()
    model = LayaModel(vit, 5, pool="cls")
    wanted = model.features(x)
    model.train()
    assert vit.training
    assert all(torch.equal(a, b) for a, b in zip(model.features(x), wanted, strict=True))
    assert all(module.training for module in vit.modules())


def test_hooks_are_gone_also_after_an_exception():
    class Breaks(nn.Module):
        def __init__(self):
            super().__init__()
            self.vit, self.broken = tiny(), False

        def forward(self, x):
            scores = self.vit(x)
            if self.broken:
                raise RuntimeError("inside")
            return scores

    backbone = Breaks()
    model = LayaModel(backbone, 5, pool="cls", example=images())
    before = state(backbone)
    backbone.broken = True
    with pytest.raises(RuntimeError, match="inside"):
        model(images())
    assert same(before, state(backbone))


def test_compiled_backbone():
    vit, x = tiny(), images()
    wanted = scored(LayaModel(vit, 5, pool="cls"))(x)
    assert torch.allclose(scored(LayaModel(torch.compile(vit, backend="eager"), 5, pool="cls"))(x), wanted, atol=1e-6)


@pytest.mark.parametrize("head", HEADS)
def test_store_and_load(head, tmp_path):
    vit, x = tiny(), images()
    options = {"layer": 1} if head == "probe" else {}
    model = LayaModel(vit, 5, pool="cls", head=head, **options)
    with torch.no_grad():
        for p in model.head.parameters():
            p.add_(0.1 * torch.randn_like(p))
    again = LayaModel.load(model.save(tmp_path / "model"), copy.deepcopy(vit))
    assert torch.equal(again(x), model(x))
    assert {path.suffix for path in (tmp_path / "model").iterdir()} == {".safetensors", ".json"}
    other = sharpen(tiny(), seed=5)
    with pytest.raises(InputError, match="other weights"):
        LayaModel.load(tmp_path / "model", other)


def test_a_trained_backbone_is_stored_too(tmp_path):
    model, x = LayaModel(tiny(), 5, pool=lambda t: t[:, 1:].mean(1), freeze=False), images()
    with torch.no_grad():
        model.backbone.blocks[0].mlp.fc1.weight.mul_(1.5)
    folder = model.save(tmp_path)
    with pytest.raises(InputError, match="callable"):
        LayaModel.load(folder, tiny())
    again = LayaModel.load(folder, tiny(), pool=lambda t: t[:, 1:].mean(1))
    assert torch.equal(again(x), model(x))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LayaModel(tiny(), 5), 'pool=None does not say.*pool="cls"'),
        (lambda: LayaModel(tiny(), 5, pool="gap"), "pool='gap' does not say"),
        (lambda: LayaModel(timm.create_model("resnet10t"), 5, pool="cls"), "does not fit"),
        (lambda: LayaModel(tiny(), 5, pool="cls", layers="all"), "layers='all'"),
        (lambda: LayaModel(tiny(), 5, pool="cls", layers=["blocks.9"]), "'blocks.9' did not run"),
        (lambda: LayaModel(tiny(), 5, pool="cls", head="laia"), "head='laia'; expected one of"),
        (
            lambda: LayaModel(tiny(), 5, pool="cls", example=images(1, 20)),
            r"does not take the example \[2, 3, 20, 20\]",
        ),
        (lambda: LayaModel(torchvision.models.vgg11(), 5), "no layers were found in VGG"),
        (lambda: LayaModel(lambda x: x, 5), "expected a torch.nn.Module"),
        (lambda: LayaModel(nn.Identity(), 5), "give example="),
        (lambda: LayaModel(tiny(), 5, pool=lambda t: t), "expected \\[B, width\\]"),
        (lambda: LayaModel(tiny(), 5, pool="cls", head="concat").explain(images()), "has no weights of layers"),
        (lambda: LayaLayerAttribution(tiny()), "explains a LayaModel"),
        (lambda: LayaLayerAttribution(LayaModel(tiny(), 5, pool="cls", head="last")), "LastLayerHead does not"),
    ],
)
def test_what_cannot_be_is_one_clear_error(make, says):
    with pytest.raises(InputError, match=says):
        make()


class InPlace(nn.Module):
    """Blocks that overwrite the stream that they took."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 8)

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.f = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))

            def forward(self, x):
                x += self.f(x)
                return x

        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def test_a_feature_is_not_overwritten_by_later_blocks():
    model, x = LayaModel(InPlace(), 3, pool="cls", example=torch.rand(1, 5, 6)), torch.rand(2, 5, 6)
    found, stream = model.features(x), model.backbone.first(x)
    for feature, block in zip(found, model.backbone.blocks, strict=True):
        stream = stream + block.f(stream)
        assert torch.allclose(feature, stream[:, 0], atol=1e-6)
    assert len({float(f.sum()) for f in found}) == 4


class Wrapped(nn.Module):
    """Residual sums around functions, and a block that returns more than the stream."""

    def __init__(self, form):
        super().__init__()

        class Residual(nn.Module):
            def __init__(self):
                super().__init__()
                self.fn = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))
                self.pair = nn.ModuleList([nn.Identity()])

            def forward(self, x):
                y = x + self.fn(x)
                return (y @ y.mT, y) if form == "weights first" else y

        self.layers = nn.ModuleList(Residual() for _ in range(3))
        self.form = form

    def forward(self, x):
        x = x.transpose(0, 1) if self.form == "tokens first" else x
        for _ in range(2 if self.form == "shared" else 1):
            for layer in self.layers:
                x = layer(x)[1] if self.form == "weights first" else layer(x)
        return x


def test_the_sum_and_not_its_branch_is_the_layer():
    for form in ("plain", "weights first"):
        model, x = LayaModel(Wrapped(form), 3, pool="mean", example=torch.rand(1, 5, 6)), torch.rand(2, 5, 6)
        assert [layer.path for layer in model.layers] == ["layers.0", "layers.1", "layers.2"]
        first = model.backbone.layers[0].fn
        assert torch.allclose(model.features(x)[0], (x + first(x)).mean(1), atol=1e-6)
    with pytest.raises(InputError, match="not its first axis"):
        LayaModel(Wrapped("tokens first"), 3, pool="mean", example=torch.rand(1, 5, 6))
    with pytest.raises(InputError, match="runs 2 times"):
        LayaModel(Wrapped("shared"), 3, pool="mean", example=torch.rand(1, 5, 6))


NESTED = {"regnetx_002": 13, "skresnet18": 8, "levit_128s": 9, "poolformer_s12": 12}


@pytest.mark.parametrize("name", NESTED)
def test_parts_of_a_block_are_no_layers(name):
    size = 224 if "levit" in name else 64
    assert (
        len(find_layers(timm.create_model(name), images(1, size), pool="mean" if "levit" in name else None))
        == NESTED[name]
    )


def test_convolutions_along_time_and_channels_of_a_spectrogram():
    class Block(nn.Module):
        def __init__(self, conv):
            super().__init__()
            self.conv = conv

        def forward(self, x):
            return self.conv(x).relu()

    class Net(nn.Module):
        def __init__(self, *convs):
            super().__init__()
            self.blocks = nn.ModuleList(map(Block, convs))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    time = find_layers(Net(nn.Conv1d(2, 16, 3), nn.Conv1d(16, 16, 3)), torch.rand(1, 2, 100))
    assert [(layer.pool, layer.width) for layer in time] == [("gap_1d", 16)] * 2
    picture = Net(nn.Conv2d(1, 64, 3, (2, 1), 1), nn.Conv2d(64, 64, 3, (2, 1), 1))
    assert [(layer.pool, layer.width) for layer in find_layers(picture, torch.rand(1, 1, 128, 128))] == [
        ("gap", 64)
    ] * 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_head_has_the_precision_of_its_backbone(dtype, tmp_path):
    model, x = LayaModel(tiny().to(dtype), 5, pool="cls"), images(dtype=dtype)
    assert model(x).dtype == dtype
    assert LayaModel.load(model.save(tmp_path), tiny().to(dtype))(x).dtype == dtype


def test_two_threads_leave_modes_and_statistics_alone():
    import threading
    import time

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.norm, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)

        def forward(self, x):
            time.sleep(0.05 * len(x))
            return self.b(self.norm(self.a(x)).relu()).relu()

    backbone = Net()
    model = LayaModel(backbone, 2, example=torch.rand(2, 4)).train()
    before = state(backbone)
    threads = [threading.Thread(target=model, args=(torch.rand(n, 4),)) for n in (2, 5)]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    assert same(before, state(backbone))
    assert backbone.training


def test_reentrant_checkpointing_is_said():
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Sequential(nn.Linear(6, 6))

        def forward(self, x):
            return x + self.f(x)

    class Net(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.blocks, self.reentrant = nn.ModuleList(Block() for _ in range(2)), reentrant

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
            return x

    x = torch.rand(2, 6, requires_grad=True)
    LayaModel(Net(False), 2, freeze=False, example=x.detach())(x).sum().backward()
    with pytest.raises(InputError, match="use_reentrant=False"):
        LayaModel(Net(True), 2, freeze=False, example=x.detach())(x)


def test_masks_by_position_and_without_any_word():
    bert = transformers.BertModel(transformers.BertConfig(**WORDS)).eval()
    model, mask = LayaModel(bert, 5, pool="mean"), torch.ones_like(IDS)
    mask[:, 4:] = 0
    by_name = model.features(input_ids=IDS, attention_mask=mask)
    assert all(torch.equal(a, b) for a, b in zip(model.features(IDS, mask), by_name, strict=True))
    assert all(bool(f.isfinite().all()) for f in model.features(IDS, torch.zeros_like(mask)))


def test_storing_is_all_or_nothing(tmp_path):
    vit = tiny()
    model = LayaModel(vit, 5, pool="cls", width=8)
    model.save(tmp_path)
    other = LayaModel(vit, 5, pool="cls", width=8, causal=object())
    torch.nn.init.ones_(other.head.classifier.weight)
    with pytest.raises(TypeError):
        other.save(tmp_path)
    assert torch.equal(LayaModel.load(tmp_path, vit).head.classifier.weight, model.head.classifier.weight)
    compiled = LayaModel(torch.compile(vit, backend="eager"), 5, pool="cls", width=8)
    assert LayaModel.load(compiled.save(tmp_path / "c"), vit).head is not None
    apart = tiny().to(memory_format=torch.channels_last)
    LayaModel(apart, 5, pool="cls", freeze=False).save(tmp_path / "d")
