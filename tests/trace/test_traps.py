"""Models on which a pass could be wrong without a word: each is explained right, or refused by name."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.models import EinsumAttentionViT, images, relative_error, sharpen, tiny
from xattr.attr import AttentionRollout, GradientXToken, GradSkip, IntegratedGradients
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


SAME = {
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


def scaled_sum(self, i, x):
    return torch.add(x, self.attention(i, self.norm[i](x)), alpha=0.1)


def without_skip(self, i, x):
    return Column.block(self, i, x) if i else self.attention(i, self.norm[i](x))


def half_seen(self, q, k, v):
    weights = (q @ k.mT / math.sqrt(8)).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def hidden_in_one_block(self, i, x):
    if i:
        return Column.block(self, i, x)
    q, k, v = self.qkv[i](self.norm[i](x)).chunk(3, -1)
    return x + self.out[i](torch.einsum("bij,bjd->bid", (q @ k.mT / 4).softmax(-1), v))


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


REFUSED = {
    "attention and MLP added first": ({"block": parallel}, "something else is added"),
    "MLP added to the skip": ({"block": beside}, "residual sum"),
    "a sum with a factor": ({"block": scaled_sum}, "residual sum"),
    "a block without skip": ({"block": without_skip}, "residual sum"),
    "attention by einsum": ({"attend": half_seen}, "no attention"),
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


def test_an_mlp_beside_the_attention_belongs_to_the_last_tokens():
    """`(x + attention(n)) + mlp(n)`: the tokens that the head reads come behind both."""

    def block(self, i, x):
        n = self.norm[i](x)
        return (x + self.attention(i, n)) + torch.relu(self.mlp[i](n))

    model, x = Column(block=block), images()
    record = observe(model, Inputs.of(x)).record
    assert torch.allclose(model.last(record.last.value.mean(1)), model(x), atol=1e-5)
    assert explain(model, x).shape == (2, 1, 4, 4)


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


def test_gradient_checkpointing_is_one_clear_error():
    model = tiny()
    model.set_grad_checkpointing(True)
    for kind in (GradSkip, IntegratedGradients):
        with pytest.raises(UnseenError, match="checkpointing"):
            kind(model).attribute(images(), target=1)


# --- nothing of the user's is written ---------------------------------------------------------------------------------

WRITES = {
    "out=": lambda buffer: torch.add(buffer, 1.0, out=buffer),
    "activation in place": lambda buffer: F.relu(buffer.neg_() * 1, inplace=True) + F.relu(buffer, inplace=True),
    "detached": lambda buffer: buffer.detach().add_(1),
    "data": lambda buffer: buffer.data.add_(1),
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
