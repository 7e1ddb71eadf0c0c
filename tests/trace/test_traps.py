"""Models on which a pass could be wrong without a word: each is explained right, or refused by name."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.models import EinsumAttentionViT, images, relative_error, sharpen, tiny
from xattr.attr import LRP, AttentionRollout, GradCam, GradientXToken, GradSkip, IntegratedGradients
from xattr.trace import Inputs, UnseenError, UnsupportedModelError, observe


class Column(nn.Module):
    """A small transformer whose parts a test replaces: order of tokens, attention, block, head."""

    def __init__(self, **parts):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 16, 8, 8)
        self.qkv = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.mlp = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.norm = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.last = nn.Linear(16, 5)
        self.parts = parts
        sharpen(self)

    def embed(self, x):
        return self.stem(x).flatten(2).transpose(1, 2)

    def attend(self, q, k, v):
        return (q @ k.mT / math.sqrt(8)).softmax(-1) @ v

    def attention(self, i, x):
        q, k, v = self.qkv[i](x).view(len(x), -1, 3, 2, 8).permute(2, 0, 3, 1, 4)
        o = self.parts.get("attend", Column.attend)(self, q, k, v)
        return self.out[i](o.transpose(1, 2).flatten(2))

    def block(self, i, x):
        x = x + self.attention(i, self.norm[i](x))
        return x + torch.relu(self.mlp[i](x))

    def head(self, states):
        return self.last(states[-1].mean(1))

    def forward(self, x):
        states = [self.parts.get("embed", Column.embed)(self, x)]
        for i in range(2):
            states.append(self.parts.get("block", Column.block)(self, i, states[-1]))
        return self.parts.get("head", Column.head)(self, states)


def explain(model, x, kind=GradSkip):
    options = {"signed": True} if kind is GradSkip else {}
    return kind(model).attribute(x, target=1, upsample=None, **options)


# --- right: another way of writing the same function ------------------------------------------------------------------


def folded(self, q, k, v):
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    return torch.bmm(torch.bmm(q, k.mT).div(math.sqrt(8)).softmax(-1), v).unflatten(0, (-1, 2))


def fused(self, q, k, v):
    return F.scaled_dot_product_attention(query=q, key=k, value=v)


def by_keywords(self, q, k, v):
    return torch.matmul(torch.softmax(input=torch.div(q @ k.mT, other=math.sqrt(8)), dim=-1), other=v)


def in_place_sum(self, i, x):
    x = x.clone()
    x += self.attention(i, self.norm[i](x))
    y = self.mlp[i](x)  # a linear map of three axes returns a view of a tensor that nobody sees
    F.relu(y, inplace=True)
    x.add_(y)
    return x


def linear_by_keywords(self, i, x):
    x = x + self.attention(i, self.norm[i](x))
    return x + F.relu(F.linear(x, bias=self.mlp[i].bias, weight=self.mlp[i].weight))


def positions_assigned(self, x):
    tokens = Column.embed(self, x)
    tokens[:, 1:] = tokens[:, 1:] + 0.0
    tokens[:, 1:] += 0.0
    return tokens


def shape_of_another(self, i, x):
    a = self.attention(i, self.norm[i](x)).reshape(len(x), -1).view_as(x)
    z = x + a
    return z + torch.relu(self.mlp[i](z)).reshape_as(x).type_as(x)


def masked_mean(self, states):
    mask = torch.ones_like(states[0][..., :1])
    return self.last((states[-1] * mask).sum(1) / mask.sum(1))


def by_einsum(self, q, k, v):
    weights = torch.einsum("bhid,bhjd->bhij", q, k).div(math.sqrt(8)).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def by_einsum_in_another_order(self, q, k, v):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    weights = torch.einsum("bihd, bjhd -> bhij", q, k).div(math.sqrt(8)).softmax(-1)
    return torch.einsum("bjhd, bhij -> bihd", v, weights).transpose(1, 2)


def by_einsum_of_a_list(self, q, k, v):
    return torch.einsum("bhij,bhjd->bhid", [(q @ k.mT / math.sqrt(8)).softmax(-1), v])


SAME = {
    "attention by einsum": {"attend": by_einsum},
    "einsum in another order": {"attend": by_einsum_in_another_order},
    "einsum of a list": {"attend": by_einsum_of_a_list},
    "tokens assigned in place": {"embed": positions_assigned},
    "shape of another tensor": {"block": shape_of_another},
    "mask in the shape of early tokens": {"head": masked_mean},
    "heads folded into the batch": {"attend": folded},
    "fused": {"attend": fused},
    "operands by name": {"attend": by_keywords},
    "sums in place": {"block": in_place_sum},
    "linear by name": {"block": linear_by_keywords},
}


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", SAME)
def test_another_way_of_writing_gives_the_same_map(name, count):
    x, plain, other = images(count), Column(), Column(**SAME[name])
    assert torch.allclose(plain(x), other(x), atol=1e-5)
    for kind in (GradSkip, GradientXToken, AttentionRollout):
        assert relative_error(explain(other, x, kind), explain(plain, x, kind)) < 1e-5


def test_attention_module_of_torch_with_and_without_its_weights():
    def with_module(needs):
        def block(self, i, x):
            n = self.norm[i](x)
            x = x + self.modules_[i](n, n, n, need_weights=needs)[0]
            return x + torch.relu(self.mlp[i](x))

        model = Column(block=block)
        torch.manual_seed(0)
        model.modules_ = nn.ModuleList(nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))
        return sharpen(model)

    for count in (1, 3):
        x = images(count)
        for kind in (GradSkip, AttentionRollout):
            found = explain(with_module(True), x, kind)
            assert relative_error(found, explain(with_module(False), x, kind)) < 1e-5


@pytest.mark.parametrize("function", [F.silu, F.hardswish, F.mish, F.relu])
@pytest.mark.parametrize("rules", ["plain", "libra"])
def test_an_activation_in_place_whose_result_is_not_used(function, rules):
    def in_place(z):
        h = z * 2
        function(h, inplace=True)
        return h.mean((2, 3))

    x = images()
    found = observe(in_place, Inputs.of(x), rules=rules)
    wanted = observe(lambda z: function(z * 2).mean((2, 3)), Inputs.of(x), rules=rules)
    assert torch.equal(found.scores, wanted.scores)
    gradient = [torch.autograd.grad(p.score(1).sum(), p.roots[0].edge)[0] for p in (found, wanted)]
    assert torch.equal(*gradient)


def test_a_mask_made_from_the_image_is_constant_under_libra():
    def masked(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=q.mean(-1, keepdim=True) * k.mean(-1)[..., None, :])

    def by_hand(self, q, k, v):
        mask = q.mean(-1, keepdim=True) * k.mean(-1)[..., None, :]
        return (q @ k.mT / math.sqrt(8) + mask).softmax(-1) @ v

    x = images()
    for kind in (GradSkip, GradientXToken):
        assert relative_error(explain(Column(attend=masked), x, kind), explain(Column(attend=by_hand), x, kind)) < 1e-5


def test_batch_norm_of_torch_itself():
    norm, x = nn.BatchNorm2d(3).eval(), images()
    nn.init.normal_(norm.weight)
    norm.running_var.mul_(3)
    f = lambda z: torch.batch_norm(
        z, norm.weight, norm.bias, norm.running_mean, norm.running_var, False, 0.1, 1e-5, False
    ).mean((2, 3))
    assert torch.allclose(observe(f, Inputs.of(x)).scores, norm(x).mean((2, 3)), atol=1e-6)


# --- refused by name --------------------------------------------------------------------------------------------------


def parallel(self, i, x):
    n = self.norm[i](x)
    return x + (self.attention(i, n) + torch.relu(self.mlp[i](n)))


def beside(self, i, x):
    n = self.norm[i](x)
    return (x + torch.relu(self.mlp[i](n))) + self.attention(i, n)


def after(self, i, x):
    n = self.norm[i](x)
    return (x + self.attention(i, n)) + torch.relu(self.mlp[i](n))


def scaled_sum(self, i, x):
    return torch.add(x, self.attention(i, self.norm[i](x)), alpha=0.1)


def without_skip(self, i, x):
    return Column.block(self, i, x) if i else self.attention(i, self.norm[i](x))


def half_seen(self, q, k, v):
    weights = (q @ k.mT / math.sqrt(8)).softmax(-1)
    return (weights[..., None] * v[:, :, None]).sum(-2)


def hidden_in_one_block(self, i, x):
    if i:
        return Column.block(self, i, x)
    q, k, v = self.qkv[i](self.norm[i](x)).chunk(3, -1)
    return x + self.out[i](((q @ k.mT / 4).softmax(-1)[..., None] * v[:, None]).sum(-2))


def over_queries(self, q, k, v):
    return (q @ k.mT / math.sqrt(8)).softmax(-2) @ v


def shuffled(self, x):
    tokens = Column.embed(self, x)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    return tokens[:, order]


def shuffled_for_each_image(self, x):
    tokens = Column.embed(self, x)
    order = torch.rand(len(x), 16, generator=torch.Generator().manual_seed(0)).argsort(1)
    order[0] = torch.arange(16)  # the first image alone would look right
    return torch.gather(tokens, 1, order[..., None].expand_as(tokens))


def by_columns(self, x):
    return self.stem(x).transpose(2, 3).flatten(2).transpose(1, 2)


def flipped_between(self, i, x):
    return Column.block(self, i, x.flip(1) if i else x)


def two_views(self, x):
    return torch.cat([Column.embed(self, x), Column.embed(self, x.flip(-1))], 1)


def two_scales(self, x):
    coarse = self.stem(F.avg_pool2d(x, 2))
    return torch.cat([Column.embed(self, x), coarse.flatten(2).transpose(1, 2)], 1)


def head_major(self, q, k, v):
    q, k, v = (t.transpose(0, 1).flatten(0, 1) for t in (q, k, v))
    o = torch.bmm(torch.bmm(q, k.mT).div(math.sqrt(8)).softmax(-1), v)
    return o.view(2, -1, 16, 8).transpose(0, 1)


def index_copied(self, x):
    tokens = Column.embed(self, x)
    return torch.zeros_like(tokens).index_copy(1, torch.arange(15, -1, -1), tokens)


def image_flipped(self, x):
    return Column.embed(self, x.flip(-1))


def image_cropped(self, x):
    return Column.embed(self, x[:, :, 8:, 8:])


def refined_after_a_shuffle(self, x):
    tokens = Column.embed(self, x).flip(1).transpose(1, 2).unflatten(2, (4, 4))
    return F.conv2d(tokens, torch.eye(16)[..., None, None]).flatten(2).transpose(1, 2)


def long_skip_between(self, i, x):
    if not i:
        self.first = x
        return Column.block(self, 0, x)
    return Column.block(self, 1, x + 0.5 * self.first)


def long_skip_at_the_end(self, states):
    return self.last((states[2] + torch.relu(self.mlp[0](states[0]))).mean(1))


REFUSED = {
    "heads in front of images": ({"attend": head_major}, "images in order"),
    "tokens copied to other places": ({"embed": index_copied}, "row by row"),
    "image flipped": ({"embed": image_flipped}, "row by row"),
    "image cropped": ({"embed": image_cropped}, "row by row"),
    "a convolution behind a shuffle": ({"embed": refined_after_a_shuffle}, "row by row"),
    "a long skip between blocks": ({"block": long_skip_between}, "goes around"),
    "a long skip at the end": ({"head": long_skip_at_the_end}, "goes around|more than the last"),
    "attention and MLP added first": ({"block": parallel}, "something else is added"),
    "MLP added to the skip": ({"block": beside}, "residual sum"),
    "MLP of the block's input": ({"block": after}, "goes around|more than the last"),
    "a sum with a factor": ({"block": scaled_sum}, "residual sum"),
    "a block without skip": ({"block": without_skip}, "residual sum"),
    "attention as a sum of products": ({"attend": half_seen}, "no attention"),
    "one block's attention not seen": ({"block": hidden_in_one_block}, "softmax"),
    "softmax over queries": ({"attend": over_queries}, "no attention"),
    "tokens shuffled": ({"embed": shuffled}, "row by row"),
    "tokens shuffled for each image": ({"embed": shuffled_for_each_image}, "row by row"),
    "tokens by columns": ({"embed": by_columns}, "row by row"),
    "tokens flipped between blocks": ({"block": flipped_between}, "row by row"),
    "two views in one sequence": ({"embed": two_views}, "row by row"),
    "two scales in one sequence": ({"embed": two_scales}, "row by row"),
    "head on two levels, joined": (
        {"head": lambda self, s: self.last((torch.cat([s[1], 1e-3 * s[2]], 1)).mean(1))},
        "more than the last tokens",
    ),
    "head on two levels, added": ({"head": lambda self, s: self.last((s[1] + s[2]).mean(1))}, "more than the last"),
    "head on the image": (
        {"head": lambda self, s: self.last(s[2].mean(1) + s[0].mean(1))},
        "more than the last tokens",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    parts, reason = REFUSED[name]
    model, x = Column(**parts), images()
    for kind in (GradSkip, AttentionRollout):
        with pytest.raises(UnsupportedModelError, match=reason):
            explain(model, x, kind)
    assert bool(torch.isfinite(IntegratedGradients(model).attribute(x, target=1, n_steps=2)).all())


def test_views_stacked_in_the_forward():
    vit = tiny(global_pool="avg", class_token=False)
    model = lambda z: vit(torch.cat([z, z.flip(-1)])).view(2, len(z), 5).mean(0)
    for kind in (GradSkip, AttentionRollout, GradientXToken):
        with pytest.raises(UnsupportedModelError, match="blocks"):
            explain(model, images(), kind)


def test_attention_in_one_head_of_three_axes():
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q[:, 0], k[:, 0], v[:, 0])[:, None].expand(-1, 2, -1, -1)

    record = observe(Column(attend=attend), Inputs.of(images())).record
    assert [a.map().shape for a in record.attentions] == [(2, 1, 16, 16)] * 2


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("kind", [GradSkip, GradientXToken])
def test_gradient_checkpointing_changes_nothing(kind, reentrant):
    def block(self, i, x):
        return checkpoint(lambda x: Column.block(self, i, x), x, use_reentrant=reentrant)

    before = torch.utils.checkpoint.CheckpointFunction, torch.utils.checkpoint._checkpoint_hook
    found = explain(Column(block=block), images(), kind)
    assert relative_error(found, explain(Column(), images(), kind)) < 1e-6
    assert (torch.utils.checkpoint.CheckpointFunction, torch.utils.checkpoint._checkpoint_hook) == before


@pytest.mark.parametrize("kind", [GradSkip, IntegratedGradients, LRP])
def test_gradient_checkpointing_of_timm_changes_nothing(kind):
    model = tiny()
    wanted = kind(model).attribute(images(), target=1)
    model.set_grad_checkpointing(True)
    assert relative_error(kind(model).attribute(images(), target=1), wanted) < 1e-6


def test_other_checkpointing_is_one_clear_error():
    """What packs saved tensors would run a part of the model again where nobody sees it."""

    def block(self, i, x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            return Column.block(self, i, x)

    with pytest.raises(UnseenError, match="checkpointing"):
        explain(Column(block=block), images())


# --- nothing of the user's is written ---------------------------------------------------------------------------------

WRITES = {
    "out=": lambda buffer: torch.add(buffer, 1.0, out=buffer),
    "activation in place": lambda buffer: F.relu(buffer.neg_() * 1, inplace=True) + F.relu(buffer, inplace=True),
    "several at once": lambda buffer: torch._foreach_add_([buffer], 1.0),
    "slice": lambda buffer: buffer.__setitem__(0, 7.0),
    "operator": lambda buffer: buffer.__iadd__(1),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_do_not_reach_a_buffer(name):
    class Writes(EinsumAttentionViT):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.arange(5.0) - 2)

        def forward(self, x):
            WRITES[name](self.kept)
            return super().forward(x)

    model = Writes().eval()
    version, wanted = model.kept._version, torch.arange(5.0) - 2
    for kind in (GradSkip, IntegratedGradients):
        explain(model, images()) if kind is GradSkip else kind(model).attribute(images(), target=1, n_steps=2)
        assert torch.equal(model.kept, wanted)
        assert model.kept._version == version


THROUGH_ANOTHER_NAME = {
    "detached": lambda buffer: buffer.detach().add_(1),
    "data": lambda buffer: buffer.data.add_(1),
    "view": lambda buffer: buffer[1:].add_(1),
    "read by a view after the write": lambda buffer: (view := buffer.view(-1), buffer.add_(1), view + 1),
    "read by an alias after the write": lambda buffer: (alias := buffer.detach(), buffer.add_(1), alias + 1),
}


@pytest.mark.parametrize("name", THROUGH_ANOTHER_NAME)
def test_writes_through_another_name_are_refused(name):
    buffer = torch.zeros(5)
    model = lambda x: (THROUGH_ANOTHER_NAME[name](buffer), x.mean((2, 3)))[1]
    with pytest.raises(UnseenError, match="older than this pass"):
        IntegratedGradients(model).attribute(images(), target=1)
    assert not bool(buffer.any())


def test_what_returns_the_same_tensor_leaves_no_mark_on_it():
    class Centred(EinsumAttentionViT):
        def __init__(self):
            super().__init__()
            self.register_buffer("centre", torch.zeros(5))

        def forward(self, x):
            scores = super().forward(x)
            self.centre.to(scores.dtype).contiguous().type_as(scores).flatten()
            self.centre.mul_(0.9).add_(scores.detach().mean(0))
            return scores - self.centre

    model = Centred().eval()
    explain(model, images())
    assert not bool(model.centre.any())
    assert model.centre.__dict__ == {}


def test_results_written_into_views_of_a_new_tensor():
    def fill(x):
        scores = torch.zeros(len(x), 3)
        for i in range(3):
            scores[:, i].copy_(x[:, i].mean((1, 2)))
        return scores

    x = images()
    found = IntegratedGradients(fill).attribute(x, target=1)
    assert torch.allclose(found[:, 1], x[:, 1] / 1024, atol=1e-6)
    assert not bool(found[:, 0].any())


def test_a_write_through_a_view_in_the_shape_of_an_activation_is_refused():
    class Writes(EinsumAttentionViT):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.zeros(5))

        def forward(self, x):
            scores = super().forward(x)
            self.kept.view_as(scores[0]).add_(1)
            return scores

    model = Writes().eval()
    with pytest.raises(UnseenError, match="older than this pass"):
        explain(model, images())
    assert not bool(model.kept.any())


# --- families that are written in another way -------------------------------------------------------------------------


class TorchColumn(nn.Module):
    """Torch's own encoder on patches, with images or tokens first, before or after its norms."""

    def __init__(self, batch_first=True, norm_first=True):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=batch_first, norm_first=norm_first, activation="gelu")
        self.stem, self.head, self.batch_first = nn.Conv2d(3, 32, 8, 8), nn.Linear(32, 5), batch_first
        self.cls_token = nn.Parameter(torch.randn(1, 1, 32))
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        sharpen(self)

    def forward(self, x):
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), self.stem(x).flatten(2).transpose(1, 2)], 1)
        x = self.encoder(x) if self.batch_first else self.encoder(x.transpose(0, 1)).transpose(0, 1)
        return self.head(x[:, 0])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("kind", [GradSkip, GradientXToken, AttentionRollout, GradCam])
def test_tokens_first(kind, norm_first, count):
    images_first, other = TorchColumn(True, norm_first).eval(), TorchColumn(False, norm_first).eval()
    other.load_state_dict(images_first.state_dict())
    x = images(count)
    wanted, found = (kind(model).attribute(x, target=1, upsample=None) for model in (images_first, other))
    assert wanted.abs().max() > 0
    assert relative_error(found, wanted) < 1e-5


class SideBySide(nn.Module):
    """Blocks of two attentions in one sum; or one attention with the heads of both."""

    def __init__(self, joined):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        draw = lambda *shape: nn.Parameter(torch.randn(shape, generator=generator) * 0.6)
        self.stem, self.joined = draw(16, 3, 8, 8), joined
        self.qkv = nn.ParameterList(draw(2, 3, 16, 16) for _ in range(2))
        self.out = nn.ParameterList(draw(2, 16, 16) for _ in range(2))
        self.head = draw(5, 16)

    def attend(self, x, weights):
        q, k, v = (F.linear(x, w).unflatten(2, (-1, 8)).transpose(1, 2) for w in weights)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def forward(self, x):
        x = F.conv2d(x, self.stem, stride=8).flatten(2).transpose(1, 2)
        for qkv, out in zip(self.qkv, self.out, strict=True):
            y = F.layer_norm(x, (16,))
            if self.joined:
                a = F.linear(self.attend(y, qkv.transpose(0, 1).flatten(1, 2)), out.transpose(0, 1).flatten(1))
            else:
                a = sum(F.linear(self.attend(y, qkv[i]), out[i]) for i in range(2))
            x = x + a
            x = x + F.gelu(x)
        return F.linear(x.mean(1), self.head)


@pytest.mark.parametrize("kind", [GradSkip, GradientXToken, AttentionRollout])
def test_two_attentions_in_one_sum_are_one_with_the_heads_of_both(kind):
    joined, apart = SideBySide(True).double(), SideBySide(False).double()
    x = images(2, dtype=torch.float64)
    assert torch.allclose(joined(x), apart(x))
    assert relative_error(explain(apart, x, kind), explain(joined, x, kind)) < 1e-9
    assert GradSkip(apart).explain(x, target=1).omega.shape == (2, 2, 4)
