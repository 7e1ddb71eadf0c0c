"""Layer-wise relevance propagation written out by hand, for two small networks.

Relevance itself is passed from layer to layer, never a gradient: each linear layer spells out every contribution
``c_jk = x_j w_jk`` of an input to an output and hands each input its share. The relevance that biases absorb is counted
as well. Two sets of rules:

* ``"epsilon"``: the epsilon rule in linear layers and convolutions; inside attention the rules of AttnLRP
  (arXiv:2402.05602), which keep no sum.
* ``"gamma"``: the gamma rule, for inputs of both signs, in linear layers and convolutions; the attention map is
  constant (as in arXiv:2411.16760), so that relevance and biases add up to the logit.

In both, LayerNorm's denominator and the gates of GELU, ReLU6 and squeeze-excite are constants.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RULES = ("epsilon", "gamma", "res_lrp")
Gammas = tuple[float, float]  # of convolutions, of linear layers
GAMMA = (0.25, 0.05)


def _normal(shape: torch.Size | tuple[int, ...], generator: torch.Generator, scale: float, mean: float = 0.0) -> Tensor:
    return mean + scale * torch.randn(shape, generator=generator, dtype=torch.float64)


class SmallCNN(nn.Module):
    """3 x H x W images to 5 logits; in eval mode, with statistics and biases that matter."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(6)
        self.pool = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1, groups=2, bias=False)
        self.bn2 = nn.BatchNorm2d(6)
        self.bn3 = nn.BatchNorm2d(6)  # behind a sum: no convolution to fold it into
        self.fc = nn.Linear(6, 6)
        self.conv4 = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(8, 5)
        self.double().eval()
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            scales = {self.conv1: 0.3, self.conv2: 0.4, self.conv4: 0.9, self.fc: 0.3, self.head: 0.7}
            for layer, scale in scales.items():
                layer.weight.copy_(_normal(layer.weight.shape, g, scale))
                if layer.bias is not None:
                    layer.bias.copy_(_normal(layer.bias.shape, g, 0.5))
            for bn, mean in ((self.bn1, 0.0), (self.bn2, 0.0), (self.bn3, 1.5)):
                sign = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
                bn.weight.copy_(sign * (0.6 + 0.8 * torch.rand(6, generator=g, dtype=torch.float64)))
                bn.bias.copy_(_normal((6,), g, 0.4))
                bn.running_mean.copy_(_normal((6,), g, 0.4, mean))
                bn.running_var.copy_(0.5 + torch.rand(6, generator=g, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(F.relu(self.bn1(self.conv1(x))))
        y = y + F.relu(self.bn2(self.conv2(y)))
        y = F.relu(self.bn3(y))
        y = y * torch.sigmoid(self.fc(y.mean((2, 3))))[:, :, None, None]
        y = F.relu6(self.conv4(y))
        return self.head(self.average(y).flatten(1))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        o = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(o.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class SmallTransformer(nn.Module):
    """3 x 12 x 12 images, 9 patches and a class token, to 5 logits; in eval mode, attention far from uniform."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 16))
        self.pos_embed = nn.Parameter(torch.zeros(1, 10, 16))
        self.blocks = nn.ModuleList(Block(16, 2, 32) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)
        self.double().eval()
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, value in self.named_parameters():
                mean = 1.0 if "norm" in name and name.endswith("weight") else 0.0
                scale = {"patch.weight": 0.15, "cls_token": 0.5, "pos_embed": 0.5}.get(name, 0.35)
                value.copy_(_normal(value.shape, g, scale, mean))

    def forward(self, x: Tensor) -> Tensor:
        y = self.patch(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.cls_token.expand(len(y), -1, -1), y], 1) + self.pos_embed
        for block in self.blocks:
            y = block(y)
        return self.head(self.norm(y)[:, 0])


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """``a / b``, and 0 where ``b`` is 0."""
    none = b == 0
    return torch.where(none, torch.zeros_like(b), a / torch.where(none, torch.ones_like(b), b))


def per_image(values: Tensor) -> Tensor:
    return values.flatten(1).sum(1)


def total(r: Tensor, bias: Tensor) -> Tensor:
    """What has to be the logit."""
    return per_image(r) + bias


class Propagation:
    """The rules of one run, and the relevance that biases have absorbed so far."""

    def __init__(self, rule: str, eps: float, gamma: Gammas, images: Tensor) -> None:
        if rule not in RULES:
            raise ValueError(f"rule must be one of {RULES}, got {rule!r}")
        self.rule, self.eps = rule, eps
        self.conv_gamma, self.linear_gamma = gamma
        self.residual_gamma = 1.0
        self.bias = images.new_zeros(len(images))

    def share(self, c: Tensor, b: Tensor, r: Tensor, gamma: float, axes: tuple[int, ...]) -> Tensor:
        """Relevance ``r [B, ..., K]`` of outputs to inputs ``[B, ..., J]``, given contributions ``c [B, ..., J, K]``.

        ``b`` is the bias of each output; ``axes`` are those of ``r`` over which the epsilon rule takes its maximum.
        """
        b = b.expand_as(r)
        z = c.sum(-2) + b
        if self.rule in ("epsilon", "res_lrp"):
            e = self.eps * z.abs().amax(axes, keepdim=True)
            denominator = z + torch.where(z >= 0, e, -e)
        else:
            c = c + gamma * torch.where((z > 0)[..., None, :], c.clamp(min=0), c.clamp(max=0))
            b = b + gamma * torch.where(z > 0, b.clamp(min=0), b.clamp(max=0))
            denominator = torch.where(z == 0, torch.zeros_like(z), c.sum(-2) + b)
        per_unit = ratio(r, denominator)
        self.bias = self.bias + per_image(b * per_unit)
        return (c * per_unit[..., None, :]).sum(-1)

    def residual(self, u: Tensor, v: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """Relevance of ``o = u + v`` to ``u`` and ``v``, entry by entry."""
        o = u + v
        if self.rule != "res_lrp":
            return ratio(u, o) * r, ratio(v, o) * r
        u, v = (part * torch.where(part.sign() == o.sign(), 1 + self.residual_gamma, 1) for part in (u, v))
        return ratio(u, u + v) * r, ratio(v, u + v) * r

    def linear(self, layer: nn.Linear, x: Tensor, r: Tensor) -> Tensor:
        c = x[..., :, None] * layer.weight.T
        return self.share(c, layer.bias, r, self.linear_gamma, axes=(-1,))

    def conv(self, layer: nn.Conv2d, bn: nn.BatchNorm2d | None, x: Tensor, r: Tensor) -> Tensor:
        """A convolution, together with the BatchNorm behind it: one linear map for each output position."""
        weight, bias = folded(layer, bn)
        window = {"kernel_size": layer.kernel_size, "padding": layer.padding, "stride": layer.stride}
        patches = F.unfold(x, **window).transpose(1, 2)  # [B, L, J]: the J inputs that output position L sees
        c = patches[..., :, None] * weight.flatten(1).T  # [B, L, J, K]
        shares = self.share(c, bias, r.flatten(2).transpose(1, 2), self.conv_gamma, axes=(1, 2))
        return F.fold(shares.transpose(1, 2), x.shape[-2:], **window)

    def diagonal(self, bn: nn.BatchNorm2d, x: Tensor, r: Tensor) -> Tensor:
        """A BatchNorm that has no linear map before it: each output has one input and a bias."""
        scale, shift = (v[:, None, None, None] for v in scale_and_shift(bn))
        c = (x[..., None] * scale)[..., None]  # [B, C, H, W, J = 1, K = 1]
        return self.share(c, shift, r[..., None], self.conv_gamma, axes=(1, 2, 3, 4))[..., 0]

    def layer_norm(self, norm: nn.LayerNorm, x: Tensor, r: Tensor) -> Tensor:
        """``y_j = w_j c (x_j - mean(x)) + b_j`` with a constant ``c``; the mean is part of the linear map."""
        width = x.shape[-1]
        constant = (x.var(-1, unbiased=False, keepdim=True) + norm.eps).rsqrt()
        centre = torch.eye(width, dtype=x.dtype) - 1 / width
        contribution = x[..., :, None] * centre * (constant * norm.weight)[..., None, :]  # [..., i, j]
        per_unit = ratio(r, norm(x))
        self.bias = self.bias + per_image(norm.bias * per_unit)
        return (contribution * per_unit[..., None, :]).sum(-1)


def scale_and_shift(bn: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    scale = bn.weight / (bn.running_var + bn.eps).sqrt()
    return scale, bn.bias - bn.running_mean * scale


def folded(conv: nn.Conv2d, bn: nn.BatchNorm2d | None) -> tuple[Tensor, Tensor]:
    """Weight (with the zeros between groups filled in) and bias of a convolution and the BatchNorm behind it."""
    n_out, n_in = conv.out_channels // conv.groups, conv.in_channels // conv.groups
    weight = conv.weight.new_zeros(conv.out_channels, conv.in_channels, *conv.kernel_size)
    for group in range(conv.groups):
        rows, columns = slice(group * n_out, (group + 1) * n_out), slice(group * n_in, (group + 1) * n_in)
        weight[rows, columns] = conv.weight[rows]
    bias = conv.weight.new_zeros(conv.out_channels) if conv.bias is None else conv.bias
    if bn is None:
        return weight, bias
    scale, shift = scale_and_shift(bn)
    return weight * scale[:, None, None, None], bias * scale + shift


def of_target(logits: Tensor, target: int | Tensor) -> Tensor:
    """The relevance to start from: the target's logit, and 0 for the other classes."""
    index = torch.as_tensor(target).expand(len(logits))[:, None]
    return torch.zeros_like(logits).scatter(1, index, logits.gather(1, index))


@torch.no_grad()
def cnn_relevance(
    model: SmallCNN, x: Tensor, target: int | Tensor, rule: str, eps: float = 1e-6, gamma: Gammas = GAMMA
) -> tuple[Tensor, Tensor]:
    """Relevance of the pixels [B, 3, H, W] and, per image, of all biases."""
    run = Propagation(rule, eps, gamma, x)
    a1 = F.relu(model.bn1(model.conv1(x)))
    pooled, winners = F.max_pool2d(a1, 2, return_indices=True)
    branch = F.relu(model.bn2(model.conv2(pooled)))
    added = pooled + branch
    a3 = F.relu(model.bn3(added))
    gated = a3 * torch.sigmoid(model.fc(a3.mean((2, 3))))[:, :, None, None]
    a4 = F.relu6(model.conv4(gated))
    mean = a4.mean((2, 3))

    r = of_target(model.head(mean), target)
    r = run.linear(model.head, mean, r)
    r = ratio(a4, a4.sum((2, 3), keepdim=True).expand_as(a4)) * r[:, :, None, None]  # average pooling
    r = run.conv(model.conv4, None, gated, r)  # ReLU6 has passed r on as it is
    r = run.diagonal(model.bn3, added, r)  # and so have the gate and ReLU
    r_skip, r_branch = run.residual(pooled, branch, r)
    r = r_skip + run.conv(model.conv2, model.bn2, pooled, r_branch)
    r = torch.zeros_like(a1).flatten(2).scatter(2, winners.flatten(2), r.flatten(2)).reshape(a1.shape)  # max pooling
    return run.conv(model.conv1, model.bn1, x, r), run.bias


@torch.no_grad()
def transformer_relevance(
    model: SmallTransformer, x: Tensor, target: int | Tensor, rule: str, eps: float = 1e-6, gamma: Gammas = GAMMA
) -> tuple[Tensor, Tensor]:
    """Relevance of the pixels [B, 3, H, W] and, per image, of all biases, position embeddings and the class token."""
    run = Propagation(rule, eps, gamma, x)
    maps = model.patch(x)
    tokens = torch.cat([model.cls_token.expand(len(x), -1, -1), maps.flatten(2).transpose(1, 2)], 1)
    inputs = [tokens + model.pos_embed]
    for block in model.blocks:
        inputs.append(block(inputs[-1]))
    last = model.norm(inputs[-1])

    r = torch.zeros_like(last)
    r[:, 0] = run.linear(model.head, last[:, 0], of_target(model.head(last[:, 0]), target))
    r = run.layer_norm(model.norm, inputs[-1], r)
    for block, value in zip(reversed(model.blocks), reversed(inputs[:-1]), strict=True):
        r = _block(run, block, value, r)
    r_position, r = ratio(model.pos_embed.expand_as(r), inputs[0]) * r, ratio(tokens, inputs[0]) * r
    run.bias = run.bias + per_image(r_position) + per_image(r[:, 0])
    return run.conv(model.patch, None, x, r[:, 1:].transpose(1, 2).reshape(maps.shape)), run.bias


def _block(run: Propagation, block: Block, x: Tensor, r: Tensor) -> Tensor:
    batch, n, width = x.shape
    d = width // block.heads
    normed1 = block.norm1(x)
    q, k, v = block.qkv(normed1).reshape(batch, n, 3, block.heads, d).permute(2, 0, 3, 1, 4)  # each [B, H, N, d]
    products = q[:, :, :, None, :] * k[:, :, None, :, :] / math.sqrt(d)  # [B, H, i, j, d]
    scores = products.sum(-1)
    A = scores.softmax(-1)
    weighted = A[..., None] * v[:, :, None, :, :]  # [B, H, i, j, d]: what token j gives to output i
    o = weighted.sum(3)
    concat = o.transpose(1, 2).reshape(batch, n, width)
    attention = block.proj(concat)
    middle = x + attention
    normed2 = block.norm2(middle)
    active = F.gelu(block.fc1(normed2))
    mlp = block.fc2(active)

    r, r_mlp = run.residual(middle, mlp, r)
    r_mlp = run.linear(block.fc2, active, r_mlp)
    r_mlp = run.linear(block.fc1, normed2, r_mlp)  # GELU has passed r_mlp on as it is
    r = r + run.layer_norm(block.norm2, middle, r_mlp)

    r, r_attention = run.residual(x, attention, r)
    r_o = run.linear(block.proj, concat, r_attention).reshape(batch, n, block.heads, d).transpose(1, 2)
    r_weighted = weighted * ratio(r_o, o)[:, :, :, None, :]
    if run.rule == "gamma":
        r_q, r_k, r_v = torch.zeros_like(q), torch.zeros_like(k), r_weighted.sum(2)
    else:
        r_A, r_v = r_weighted.sum(4) / 2, r_weighted.sum(2) / 2
        r_scores = scores * (r_A - A * r_A.sum(-1, keepdim=True))
        r_products = products * ratio(r_scores, scores)[..., None]
        r_q, r_k = r_products.sum(3) / 2, r_products.sum(2) / 2
    r_qkv = torch.stack([r_q, r_k, r_v]).permute(1, 3, 0, 2, 4).reshape(batch, n, 3 * width)
    return r + run.layer_norm(block.norm1, x, run.linear(block.qkv, normed1, r_qkv))


def _input_x_gradient(model: SmallCNN, x: Tensor, target: int) -> Tensor:
    """By autograd, with the gates of squeeze-excite and of ReLU6 constant: what epsilon -> 0 has to give."""
    x = x.clone().requires_grad_()
    y = model.pool(F.relu(model.bn1(model.conv1(x))))
    y = F.relu(model.bn3(y + F.relu(model.bn2(model.conv2(y)))))
    y = model.conv4(y * torch.sigmoid(model.fc(y.mean((2, 3)))).detach()[:, :, None, None])
    y = y * (F.relu6(y) / y).detach()
    logits = model.head(model.average(y).flatten(1))
    return x.detach() * torch.autograd.grad(logits[:, target].sum(), x)[0]


if __name__ == "__main__":
    torch.set_num_threads(1)
    pixels = torch.randn(3, 3, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    cnn, transformer = SmallCNN(), SmallTransformer()
    for network, relevance in ((cnn, cnn_relevance), (transformer, transformer_relevance)):
        for rule_name, small in (("gamma", 0.0), ("epsilon", 1e-12)):
            logits = network(pixels).detach()
            sums = [total(*relevance(network, pixels, k, rule_name, small)) for k in range(5)]
            off = ((torch.stack(sums, 1) - logits) / logits).abs().max().item()
            print(f"{type(network).__name__}, {rule_name}: relative error of the sum at most {off:.1e}")
            assert off <= 1e-9 or (network is transformer and rule_name == "epsilon")  # there it is not promised
    wanted = _input_x_gradient(cnn, pixels, 2)
    found, _ = cnn_relevance(cnn, pixels, 2, "epsilon", 1e-12)
    off = ((found - wanted).abs().max() / wanted.abs().max()).item()
    print(f"cnn, epsilon 1e-12 against input x gradient: {off:.1e}")
    assert off <= 1e-6
