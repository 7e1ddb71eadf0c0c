"""What the backward leaves out is 0, however a model is written: gradients with and without plans are the same."""

from typing import NamedTuple

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from tests.models import images, relative_error
from xattr.trace import Inputs, gradients, observe
from xattr.trace.liveness import Liveness
from xattr.trace.trace import Trace

N, D = 16, 8


class Two(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


class Blocks(nn.Module):
    """Two blocks on 4 x 4 patches with a class token; a test replaces parts."""

    def __init__(self, attend=None, branch=None, mlp=None, head=None, tokens=None):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        draw = lambda *shape: nn.Parameter(torch.randn(shape, generator=generator) * 0.5)
        self.stem, self.cls, self.head_weight = draw(D, 3, 8, 8), draw(1, 1, D), draw(5, D)
        self.qkv, self.bias = nn.ParameterList(draw(3 * D, D) for _ in range(2)), draw(3 * D)
        self.out = nn.ParameterList(draw(D, D) for _ in range(2))
        self.up, self.down = (
            nn.ParameterList(draw(16, D) for _ in range(2)),
            nn.ParameterList(draw(D, 16) for _ in range(2)),
        )
        self.parts = {"attend": attend, "branch": branch, "mlp": mlp, "head": head, "tokens": tokens}

    def part(self, name, default, *args):
        return (self.parts[name] or default)(self, *args)

    def forward(self, x):
        x = F.conv2d(x, self.stem, stride=8).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
        for i in range(2):
            y = F.layer_norm(x, (D,))
            q, k, v = (
                t.transpose(1, 2) for t in F.linear(y, self.qkv[i], self.bias).view(*y.shape[:2], 3, 2, 4).unbind(2)
            )
            o = self.part("attend", lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v), q, k, v)
            a = F.linear(o.transpose(1, 2).flatten(2), self.out[i], self.bias[:D])
            x = x + self.part("branch", lambda m, a: a, a)
            y = F.linear(F.layer_norm(x, (D,)), self.up[i], self.bias[:16])
            y = self.part("mlp", lambda m, y: F.gelu(y), y)
            x = x + F.linear(y, self.down[i])
            x = self.part("tokens", lambda m, x: x, x)
        return self.part("head", lambda m, x: F.linear(F.layer_norm(x, (D,))[:, 0], m.head_weight), x)


def in_view(m, y):
    y[:, 0] += y[:, 1]
    return y.relu()


def assigned(m, y):
    y[:, 0] = 2 * y[:, 1]
    return y.relu()


def broadcast(m, x):
    one, other = torch.broadcast_tensors(x, F.gelu(x[:, 1:2]))
    return F.linear((one * other)[:, 0], m.head_weight)


WAYS = {
    "plain": {},
    "value is key": {"attend": lambda m, q, k, v: F.scaled_dot_product_attention(q, v, v)},
    "all are one": {"attend": lambda m, q, k, v: F.scaled_dot_product_attention(v, v, v)},
    "by name": {"attend": lambda m, q, k, v: F.scaled_dot_product_attention(query=q, key=v, value=v)},
    "written out": {"attend": lambda m, q, k, v: (q @ k.mT).softmax(-1) @ v},
    "value added": {"attend": lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v) + v},
    "query as a gate": {"attend": lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v) * q.sigmoid()},
    "norm over all tokens": {"head": lambda m, x: F.linear(F.layer_norm(x, x.shape[1:])[:, 0], m.head_weight)},
    "group norm over tokens": {"head": lambda m, x: F.linear(F.group_norm(x, 1)[:, 0], m.head_weight)},
    "norm of the branch": {"branch": lambda m, a: F.layer_norm(a, a.shape[1:])},
    "broadcast": {"head": broadcast},
    "branch mixes rows": {
        "branch": lambda m, a: a + a[:, :1].expand_as(a), "head": lambda m, x: F.linear(x.mean(1), m.head_weight)
    },
    "tokens as weights": {"head": lambda m, x: F.linear(x[0], x[0])[:1, :5].expand(len(x), -1)},
    "named tuple": {"head": lambda m, x: F.linear(torch.stack(Two(x[:, 0], x[:, 5])).sum(0), m.head_weight)},
    "in place": {"mlp": lambda m, y: F.relu(y, inplace=True)},
    "product in place": {"mlp": lambda m, y: y.mul_(m.bias[:16])},
    "through a view": {"mlp": in_view},
    "assigned": {"mlp": assigned},
    "constants joined": {
        "head": lambda m, x: F.linear(torch.cat([x[:, :2], torch.full((len(x), 1, D), 77)], 1).sum(1), m.head_weight)
    },
    "one of the last": {"head": lambda m, x: F.linear(x[:, -1], m.head_weight)},
    "picked": {"head": lambda m, x: F.linear(x[:, [0, 3]].mean(1), m.head_weight)},
    "largest": {"head": lambda m, x: F.linear(x.amax(1), m.head_weight)},
    "tokens mixed behind": {"head": lambda m, x: F.linear((x.mT @ torch.ones(17, 3).double()).mT[:, 0], m.head_weight)},
    "rolled between": {"tokens": lambda m, x: x.roll(1, 1)},
    "dropped between": {"tokens": lambda m, x: x[:, :-2]},
}  # fmt: skip


def everything(model, x):
    seen = observe(model, Inputs.of(x), rules="libra")
    record = seen.record
    places = [*seen.roots, *(b.x for b in record.blocks), *(b.z for b in record.blocks)]
    places += [a.out for b in record.blocks for a in b.attentions] + ([record.last] if record.last else [])
    return seen.scores.detach(), gradients(seen.scores[:, 1], places)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", WAYS)
def test_gradients_are_those_without_plans(name, count, monkeypatch):
    model, x = Blocks(**WAYS[name]).double(), images(count, dtype=torch.float64)
    scores, found = everything(model, x)
    init = Trace.__init__

    def without(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self._live = None

    monkeypatch.setattr(Trace, "__init__", without)
    same, wanted = everything(model, x)
    assert torch.equal(scores, same)
    assert wanted[0].abs().max() > 0
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(
            one, other, rtol=0, atol=1e-12 * float(wanted[0].abs().max().clamp_min(other.abs().max()))
        )


@pytest.mark.parametrize(
    "name", ["nest_tiny", "swin_tiny_patch4_window7_224", "maxvit_nano_rw_256", "vit_tiny_patch16_224"]
)
def test_gradients_of_the_image_are_those_without_plans(name, monkeypatch):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5).eval()
    x = images(1, model.pretrained_cfg["input_size"][1])
    found = everything(model, x)[1][0]
    monkeypatch.setattr(Liveness, "finish", lambda self, scores: None)
    assert relative_error(found, everything(model, x)[1][0]) < 1e-5


def test_complex_weights_and_autocast():
    weight = torch.randn(5, D, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
    x = torch.randn(2, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def forward(z):
        out = F.linear(torch.fft.fft(z), weight)
        return out.real + 2 * out.imag

    seen = observe(forward, Inputs.of(x), rules="libra")
    leaf = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(forward(leaf)[:, 1].sum(), leaf)
    assert torch.allclose(gradients(seen.scores[:, 1], list(seen.roots))[0], wanted)

    layer = nn.Linear(D, 5)

    def cast(z):
        with torch.autocast("cpu", torch.bfloat16):
            return layer(z).float()

    seen = observe(cast, Inputs.of(x.float()), rules="libra")
    found = gradients(seen.scores[:, 1], list(seen.roots))[0]
    assert torch.allclose(found, layer.weight[1].expand(2, -1), rtol=0.02)


def test_indices_stay_small():
    """Beside 400 tokens in a batch no index of the size of the batch is kept."""
    model = Blocks()
    sizes, follow = [], Liveness.follow

    def watched(self, name, func, args, kwargs, outputs, before, unread):
        follow(self, name, func, args, kwargs, outputs, before, unread)
        for tensor in outputs:
            sizes.extend(index.untyped_storage().size() // 8 for _, index in self._marks.origins(tensor))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Liveness, "follow", watched)
        observe(model, Inputs.of(images(8, 160)), rules="libra")
    assert max(sizes) <= 401 * D
