"""What one pass finds on models that it has no line about: attention, residual sums, layout, read-out."""

import pytest
import torch
import transformers as hf
from torch import nn

from tests.models import HF, EinsumAttentionViT, images, relative_error, sharpen, tiny
from xattr._nested import tensors_in
from xattr.attr import AttentionRollout, GradSkip
from xattr.trace import Inputs, UnsupportedModelError, attention_maps, observe
from xattr.trace.observe import Pass

PREFIX = {
    ("vit_tiny_patch16_224", ""): 1,
    ("vit_tiny_patch16_224", "avg"): 1,
    ("deit_tiny_distilled_patch16_224", ""): 2,
    ("vit_small_patch14_reg4_dinov2", ""): 5,
    ("vit_little_patch16_reg4_gap_256", ""): 4,
    ("vit_small_patch16_dinov3", ""): 5,
    ("eva02_tiny_patch14_224", ""): 1,
    ("beit_base_patch16_224", ""): 1,
    ("vit_base_patch16_siglip_224", ""): 0,
}
HF_MODELS = {
    "ViT": lambda: hf.ViTForImageClassification(hf.ViTConfig(**HF, num_labels=3)),
    "DeiT": lambda: hf.DeiTForImageClassification(hf.DeiTConfig(**HF, num_labels=3)),
    "BEiT": lambda: hf.BeitForImageClassification(hf.BeitConfig(**HF, num_labels=3, use_relative_position_bias=True)),
    "DINOv2": lambda: hf.Dinov2ForImageClassification(hf.Dinov2Config(**HF, mlp_ratio=2, num_labels=3)),
    "DINOv2 registers": lambda: hf.Dinov2WithRegistersForImageClassification(
        hf.Dinov2WithRegistersConfig(**HF, mlp_ratio=2, num_labels=3)
    ),
}
METHODS = ((GradSkip, {"signed": True}), (AttentionRollout, {}))


def build_hf(name):
    torch.manual_seed(0)
    return sharpen(HF_MODELS[name]().eval())


@pytest.mark.parametrize(("name", "pool"), PREFIX)
def test_blocks_and_tokens_of_timm_models(name, pool):
    model = tiny(name, **({"global_pool": pool} if pool else {}))
    record = observe(model, Inputs.of(images())).record
    layout = record.require_blocks("test")
    assert [block.path for block in record.blocks] == [f"blocks.{i}.attn" for i in range(3)]
    assert (layout.grid, layout.offset) == ((4, 4), PREFIX[name, pool])
    assert layout.prefix == list(range(PREFIX[name, pool]))
    # A token sequence that is zero except at prefix + 7 lights the cell in row 1, column 3.
    tokens = torch.zeros(1, layout.tokens)
    tokens[0, layout.offset + 7] = 1
    assert torch.nonzero(tokens[:, layout.patches].unflatten(1, layout.grid)[0]).tolist() == [[1, 3]]


@pytest.mark.parametrize("name", HF_MODELS)
def test_hugging_face_as_loaded_equals_eager(name):
    model, eager, x = build_hf(name), build_hf(name), images()
    eager.set_attn_implementation("eager")
    assert model.config._attn_implementation == "sdpa"
    before = model(x).logits
    for method, options in METHODS:
        found = method(model).attribute(x, target=1, **options)
        assert relative_error(found, method(eager).attribute(x, target=1, **options)) < 1e-5
        assert relative_error(found, method(lambda z: model(z).logits).attribute(x, target=1, **options)) < 1e-6
        assert torch.equal(found, method(model).attribute({"pixel_values": x}, target=1, **options))
    for one, other in zip(attention_maps(model, x), attention_maps(eager, x), strict=True):
        assert one.shape == (2, 2, *other.shape[2:])
        assert torch.allclose(one, other, atol=1e-5)
        assert torch.allclose(one.sum(-1), torch.ones(()), atol=1e-5)
    own = eager(x, output_attentions=True).attentions
    assert len(own) == 2
    for one, other in zip(attention_maps(model, x), own, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(model(x).logits, before)


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "eva02_tiny_patch14_224", "beit_base_patch16_224", "vit_small_patch16_dinov3"]
)
def test_fused_attention_gives_the_maps_and_explanations_of_eager(name):
    model, eager, x = tiny(name), tiny(name), images()
    own, handles = [], []
    for block in eager.blocks:
        assert block.attn.fused_attn
        block.attn.fused_attn = False
        handles.append(block.attn.attn_drop.register_forward_hook(lambda m, a, out: own.append(out.detach())))
    before = model(x)
    eager(x)
    for handle in handles:
        handle.remove()
    found = attention_maps(model, x)
    assert len(found) == len(own) == 3
    for one, other in zip(found, own, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
        assert float((one - one.mean(-1, keepdim=True)).abs().max()) > 0.05  # maps that differ from uniform
    for method, options in METHODS:
        wanted = method(eager).attribute(x, target=1, **options)
        assert relative_error(method(model).attribute(x, target=1, **options), wanted) < 1e-5
    assert all(block.attn.fused_attn for block in model.blocks)
    assert torch.equal(model(x), before)


def test_registers_behind_the_patches():
    class Behind(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.vit = EinsumAttentionViT()
            self.extra = torch.nn.Parameter(torch.randn(1, 2, 16))
            self.stem, self.vit.stem = self.vit.stem, torch.nn.Identity()
            self.vit.forward = lambda x: EinsumAttentionViT.forward(self.vit, x)

        def forward(self, x):
            tokens = self.stem(x).flatten(2).transpose(1, 2)
            tokens = torch.cat([tokens, self.extra.expand(len(x), -1, -1)], 1)
            # the transformer flattens and transposes what its stem returns
            return self.vit(tokens.transpose(1, 2)[..., None])

    record = observe(Behind().eval(), Inputs.of(images())).record
    layout = record.require_blocks("test")
    assert (layout.offset, layout.tokens, layout.prefix) == (0, 18, [16, 17])


@pytest.mark.parametrize("inplace", [False, True])
def test_residual_sums_written_in_place(inplace):
    class Own(EinsumAttentionViT):
        def forward(self, x):
            x = self.stem(x).flatten(2).transpose(1, 2)
            for norm, qkv, out in zip(self.norms, self.qkv, self.out, strict=True):
                q, k, v = qkv(norm(x)).chunk(3, -1)
                a = out(torch.softmax(q @ k.mT / 4, -1) @ v)
                x = x.add_(a) if inplace else x + a
            return self.head(x.mean(1))

    x = images()
    model = sharpen(Own().eval())
    record = observe(model, Inputs.of(x), rules="libra").record
    assert [tuple(b.attentions[0].out.value.shape[:2]) for b in record.blocks] == [(1, 2), (1, 2)] or record.blocks
    for block in record.blocks:
        assert torch.allclose(block.x.value + block.a, block.z.value, atol=1e-5) or inplace
    first = observe(model, Inputs.of(x), rules="libra").record.blocks[0]
    assert torch.allclose(first.x.value, model.stem(x).flatten(2).transpose(1, 2), atol=1e-6)


def test_windows_and_missing_pieces_are_refused_by_name():
    import timm

    swin = timm.create_model(
        "swin_tiny_patch4_window7_224",
        img_size=64,
        window_size=4,
        embed_dim=16,
        depths=(1, 1),
        num_heads=(1, 2),
        num_classes=5,
    ).eval()
    # Of LeViT two blocks of eleven would be seen, of ConViT two of twelve.
    for name in ("levit_128s", "convit_tiny"):
        with pytest.raises(UnsupportedModelError, match=r"no residual sum|softmax"):
            GradSkip(timm.create_model(name, num_classes=5).eval()).attribute(images(1, 224), target=1)
    for method in (GradSkip, AttentionRollout):
        with pytest.raises(UnsupportedModelError, match="IntegratedGradients"):
            method(swin).attribute(images(1, 64), target=1)
        with pytest.raises(UnsupportedModelError, match="no attention"):
            method(timm.create_model("resnet18", num_classes=5).eval()).attribute(images(), target=1)


class SumInside(EinsumAttentionViT):
    """Sums inside the attention branch that are no residual sums: of the values' own mixture, or of the queries."""

    def __init__(self, inner):
        super().__init__(width=16, depth=2)
        self.inner = inner

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        for norm, qkv, out in zip(self.norms, self.qkv, self.out, strict=True):
            q, k, v = qkv(norm(x)).chunk(3, -1)
            o = torch.softmax(q @ k.mT / 4, -1) @ v
            o = o + (q if self.inner == "queries" else 0.3 * v.roll(1, 1))
            x = x + out(o)
            x = x + 0.5 * torch.tanh(x)
        return self.head(x.mean(1))


@pytest.mark.parametrize("inner", ["queries", "values"])
def test_a_sum_inside_the_branch_is_no_residual_sum(inner):
    model, x = sharpen(SumInside(inner).eval()), images()
    record = observe(model, Inputs.of(x), rules="libra").record
    assert len(record.blocks) == 2
    skip = model.stem(x).flatten(2).transpose(1, 2)
    assert torch.allclose(record.blocks[0].x.value, skip, atol=1e-5)
    assert torch.allclose(record.blocks[0].z.value, skip + record.blocks[0].a, atol=1e-5)
    # the tokens that the head reads come behind the last sum, not out of it
    assert torch.allclose(model.head(record.last.value.mean(1)), model(x), atol=1e-5)


def kept_bytes(run, model):
    """Bytes that one forward keeps for its backward, and in its record, parameters apart."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()  # kept alive, so that no storage is counted twice or reused
    for tensor in tensors_in(result.record if isinstance(result, Pass) else []):
        pack(tensor)
    return sum(sizes.values())


@pytest.mark.parametrize("rules", ["plain", "libra"])
def test_a_trainable_model_keeps_no_more_than_a_frozen_one(rules):
    """With all that is recorded, and all attention fused."""
    x = images(4)
    frozen, trainable = tiny(embed_dim=64).requires_grad_(False), tiny(embed_dim=64)
    plain = kept_bytes(lambda: frozen(x.clone().requires_grad_()), frozen)
    observed = kept_bytes(lambda: observe(trainable, Inputs.of(x), rules=rules), trainable)
    assert observed <= 1.2 * plain
    assert (
        kept_bytes(lambda: trainable(x.clone().requires_grad_()), trainable) > 1.2 * plain
    )  # the count sees the difference


class Joins(nn.Module):
    """Tokens that are joined in several steps, behind a stem whose last convolution is no patch embedding."""

    def __init__(self, front):
        super().__init__()
        self.vit, self.front = EinsumAttentionViT(), front
        self.stem, self.vit.stem = self.vit.stem, nn.Identity()
        self.squeeze = nn.Conv2d(16, 16, 1)
        self.extra = nn.Parameter(torch.randn(1, 3, 16))

    def forward(self, x):
        x = self.stem(x)
        x = x * torch.sigmoid(self.squeeze(x.mean((2, 3), keepdim=True)))
        tokens = x.flatten(2).transpose(1, 2)
        extra = self.extra.expand(len(x), -1, -1)
        tokens = torch.cat([extra[:, :1], tokens], 1)
        if self.front == "twice":
            tokens = torch.cat([extra[:, 1:], tokens], dim=1)
        elif self.front == "between":
            tokens = torch.cat([tokens[:, :1], extra[:, 1:], tokens[:, 1:]], dim=1)
        elif self.front == "around":
            tokens = torch.cat([extra[:, 1:2], tokens, extra[:, 2:]], dim=1)
        return self.vit(tokens.transpose(1, 2)[..., None])


@pytest.mark.parametrize(
    ("front", "offset", "count"), [("once", 1, 17), ("twice", 3, 19), ("between", 3, 19), ("around", 2, 19)]
)
def test_tokens_joined_in_several_steps(front, offset, count):
    layout = observe(Joins(front).eval(), Inputs.of(images())).record.require_blocks("test")
    assert (layout.grid, layout.offset, layout.tokens) == ((4, 4), offset, count)


def test_two_columns_are_refused():
    one, two = tiny(), tiny(depth=2)
    with pytest.raises(UnsupportedModelError, match="do not follow one another"):
        GradSkip(lambda x: one(x) + two(x)).attribute(images(), target=1)


def test_patches_without_a_grid_are_refused():
    vit = EinsumAttentionViT()
    vit.stem = nn.Identity()
    embed = nn.Linear(192, 16)

    def patchify(x):
        tokens = torch.nn.functional.unfold(x, 8, stride=8).transpose(1, 2)
        return vit(embed(tokens).transpose(1, 2)[..., None])

    with pytest.raises(UnsupportedModelError, match="grid of patches"):
        GradSkip(patchify).attribute(images(), target=1)


def as_torchvision(vit):
    """The same transformer as torchvision writes it, with `nn.MultiheadAttention`."""
    import torchvision

    other = torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=3, num_heads=2, hidden_dim=32, mlp_dim=128, num_classes=5
    ).eval()
    names = {
        "conv_proj": "patch_embed.proj",
        "class_token": "cls_token",
        "encoder.pos_embedding": "pos_embed",
        "encoder.ln": "norm",
        "heads.head": "head",
        "ln_": "norm",
        "self_attention.in_proj_": "attn.qkv.",
        "self_attention.out_proj": "attn.proj",
        "mlp.0": "mlp.fc1",
        "mlp.3": "mlp.fc2",
        "encoder.layers.encoder_layer_": "blocks.",
    }
    state = vit.state_dict()

    def translated(name):
        for old, new in names.items():
            name = name.replace(old, new)
        return name

    other.load_state_dict({name: state[translated(name)] for name in other.state_dict()})
    return other


def test_multihead_attention_of_torch():
    vit, x = tiny(), images()
    other = as_torchvision(vit)
    assert torch.allclose(other(x), vit(x), atol=1e-5)
    for method, options in METHODS:
        found = method(other.train()).attribute(x, target=1, **options)
        assert relative_error(found, method(vit).attribute(x, target=1, **options)) < 1e-5
    paths = [f"encoder.layers.encoder_layer_{i}.self_attention" for i in range(3)]
    assert GradSkip(other).explain(x, target=1).layers == tuple(paths)
    for one, two in zip(attention_maps(other, x), attention_maps(vit, x), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_transformer_encoder_of_torch():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
            self.stem, self.encoder = nn.Conv2d(3, 16, 8, 8), nn.TransformerEncoder(layer, 2)
            self.head = nn.Linear(16, 5)

        def forward(self, x):
            return self.head(self.encoder(self.stem(x).flatten(2).transpose(1, 2)).mean(1))

    model, x = sharpen(Classifier().train()), images()
    record = observe(model, Inputs.of(x), rules="libra").record
    assert [block.path for block in record.blocks] == [f"encoder.layers.{i}.self_attn" for i in range(2)]
    with torch.no_grad():
        skip = model.stem(x).flatten(2).transpose(1, 2)
    assert torch.allclose(record.blocks[0].x.value, skip, atol=1e-6)
    first = GradSkip(model).attribute(x, target=1, signed=True)
    assert torch.equal(first, GradSkip(model).attribute(x, target=1, signed=True))
    assert float(first.abs().max()) > 0
