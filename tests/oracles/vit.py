"""A vision transformer written out by hand: every intermediate and every gradient that GradSkip's formulas name.

Nothing is taken from a model object but its weights (a ``state_dict`` in timm's naming), and no operation is fused, so
that each line can be held against its formula. Two sets of backward rules:

* ``"libra"``: the denominator of LayerNorm, the gate of GELU and the attention map are constants of the backward
  pass; every value stays what it was.
* ``"plain"``: the ordinary gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

POOLS = ("token", "avg", "distilled")
RULES = ("libra", "plain")


@dataclass(frozen=True)
class ViTConfig:
    """What the weights alone do not tell."""

    heads: int
    pool: str = "token"  # "token": class token; "avg": mean of the patches; "distilled": mean of two heads' logits
    eps: float = 1e-6
    rules: str = "libra"

    def __post_init__(self) -> None:
        if self.pool not in POOLS or self.rules not in RULES:
            raise ValueError(f"pool must be one of {POOLS} and rules one of {RULES}, got {self.pool!r}, {self.rules!r}")


@dataclass(frozen=True)
class Block:
    """One block: ``z = x + a``, then ``y = z + MLP(LN(z))``. Rows of ``A`` are queries. Gradients are of ``f``."""

    x: Tensor  # [B, N, D] block input
    a: Tensor  # [B, N, D] attention branch as it enters the sum (after LayerScale)
    z: Tensor  # [B, N, D]
    A: Tensor  # [B, H, N, N]
    v: Tensor  # [B, H, N, d] value vectors, bias included
    W_O: Tensor  # [H, D, d] the output projection's columns that belong to each head, LayerScale not included
    dx: Tensor  # [B, N, D] df/dx, the whole gradient: skip and branch
    dz: Tensor  # [B, N, D] df/dz, equal to df/da
    dA: Tensor  # [B, H, N, N]


@dataclass(frozen=True)
class Record:
    """One forward and one backward."""

    logits: Tensor  # [B, classes]
    target: Tensor  # [B]
    score: Tensor  # [B] the logit or probability of the target; f is its sum
    blocks: tuple[Block, ...]  # blocks[l - 1] is block l
    x_last: Tensor  # [B, N, D] output of the last block, before the final norm
    dx_last: Tensor  # [B, N, D]
    image: Tensor
    d_image: Tensor
    state: dict[str, Tensor]
    d_state: dict[str, Tensor]  # df/d(parameter), 0 for parameters that f does not reach


def observe(
    state: Mapping[str, Tensor],
    images: Tensor,
    config: ViTConfig,
    target: int | Sequence[int] | Tensor | None = None,
    target_output: str = "logit",
) -> Record:
    """Run the model of ``state`` on ``images`` and differentiate the target's score (default: the predicted class)."""
    if target_output not in ("logit", "prob"):
        raise ValueError(f"target_output must be 'logit' or 'prob', got {target_output!r}")
    # Leaves of our own: the caller's tensors are neither written nor marked.
    weights = {name: value.detach().clone().requires_grad_() for name, value in state.items()}
    image = images.detach().to(weights["patch_embed.proj.weight"].dtype).clone().requires_grad_()

    with torch.enable_grad():
        x = _embed(image, weights)
        seen: list[dict[str, Tensor]] = []
        for index in range(_depth(weights)):
            parts = _block(x, weights, f"blocks.{index}", config)
            seen.append(parts)
            x = parts["y"]
        logits = _head(x, weights, config)
        wanted = _targets(target, logits)
        outputs = logits if target_output == "logit" else _softmax(logits)
        score = outputs[torch.arange(len(outputs)), wanted]
        f = score.sum()  # images do not interact: the gradient of the sum holds each image's own gradient

        sources = [x, image, *weights.values()]
        for parts in seen:
            sources += [parts["x"], parts["z"], parts["A"]]
        found = torch.autograd.grad(f, sources, allow_unused=True)
    grads = [torch.zeros_like(s) if g is None else g for s, g in zip(sources, found, strict=True)]

    dx_last, d_image = grads[0], grads[1]
    d_state = dict(zip(weights, grads[2 : 2 + len(weights)], strict=True))
    blocks = []
    for index, parts in enumerate(seen):
        dx, dz, dA = grads[2 + len(weights) + 3 * index :][:3]
        kept = {name: parts[name].detach() for name in ("x", "a", "z", "A", "v", "W_O")}
        blocks.append(Block(**kept, dx=dx, dz=dz, dA=dA))
    return Record(
        logits=logits.detach(),
        target=wanted,
        score=score.detach(),
        blocks=tuple(blocks),
        x_last=x.detach(),
        dx_last=dx_last,
        image=image.detach(),
        d_image=d_image,
        state={name: value.detach() for name, value in weights.items()},
        d_state=d_state,
    )


def _targets(target: int | Sequence[int] | Tensor | None, logits: Tensor) -> Tensor:
    if target is None:
        return logits.detach().argmax(dim=-1)
    wanted = torch.as_tensor(target)
    return wanted.expand(len(logits)) if wanted.ndim == 0 else wanted


def _depth(w: Mapping[str, Tensor]) -> int:
    return 1 + max(int(name.split(".")[1]) for name in w if name.startswith("blocks."))


def _embed(image: Tensor, w: Mapping[str, Tensor]) -> Tensor:
    """Patches in row-major order, behind the prefix tokens, plus the position embedding."""
    kernel = w["patch_embed.proj.weight"]  # [D, C, p, p], stride = kernel: a linear map of each patch
    width, channels, p, _ = kernel.shape
    batch, _, height, breadth = image.shape
    h, b = height // p, breadth // p
    cells = image.reshape(batch, channels, h, p, b, p).permute(0, 2, 4, 1, 3, 5)  # [B, h, b, C, p, p]
    x = cells.reshape(batch, h * b, -1) @ kernel.reshape(width, -1).T
    if "patch_embed.proj.bias" in w:
        x = x + w["patch_embed.proj.bias"]

    prefix = [w[name].expand(batch, -1, -1) for name in ("cls_token", "dist_token", "reg_token") if name in w]
    position = w.get("pos_embed")
    if position is None:
        return torch.cat([*prefix, x], dim=1)
    if position.shape[1] == x.shape[1]:  # no entry for prefix tokens ("no_embed_class"): added before they join
        return torch.cat([*prefix, x + position], dim=1)
    return torch.cat([*prefix, x], dim=1) + position


def _block(x: Tensor, w: Mapping[str, Tensor], name: str, config: ViTConfig) -> dict[str, Tensor]:
    batch, tokens, width = x.shape
    d = width // config.heads

    normed = _layer_norm(x, w, f"{name}.norm1", config)
    qkv = _linear(normed, w, f"{name}.attn.qkv")  # the three parts one after the other, heads inside each
    q, k, v = (part.reshape(batch, tokens, config.heads, d).transpose(1, 2) for part in qkv.split(width, dim=-1))
    A = _softmax(q @ k.transpose(-2, -1) / math.sqrt(d))
    if config.rules == "libra":
        A = A.detach().requires_grad_()  # constant for the rest of the graph; a leaf, so that df/dA can be read

    W_O = w[f"{name}.attn.proj.weight"].reshape(width, config.heads, d).transpose(0, 1)  # [H, D, d]
    a = torch.zeros_like(x)
    for head in range(config.heads):
        a = a + (A[:, head] @ v[:, head]) @ W_O[head].T
    if f"{name}.attn.proj.bias" in w:
        a = a + w[f"{name}.attn.proj.bias"]
    if f"{name}.ls1.gamma" in w:
        a = a * w[f"{name}.ls1.gamma"]
    z = x + a

    hidden = _gelu(_linear(_layer_norm(z, w, f"{name}.norm2", config), w, f"{name}.mlp.fc1"), config)
    m = _linear(hidden, w, f"{name}.mlp.fc2")
    if f"{name}.ls2.gamma" in w:
        m = m * w[f"{name}.ls2.gamma"]
    return {"x": x, "a": a, "z": z, "A": A, "v": v, "W_O": W_O, "y": z + m}


def _head(x: Tensor, w: Mapping[str, Tensor], config: ViTConfig) -> Tensor:
    if "norm.weight" in w:  # before the pool; a mean-pooling model has "fc_norm" after it instead
        x = _layer_norm(x, w, "norm", config)
    if config.pool == "distilled":
        return (_linear(x[:, 0], w, "head") + _linear(x[:, 1], w, "head_dist")) / 2
    pooled = x[:, 0] if config.pool == "token" else x[:, prefix_count(w) :].mean(dim=1)
    if "fc_norm.weight" in w:
        pooled = _layer_norm(pooled, w, "fc_norm", config)
    return _linear(pooled, w, "head")


def prefix_count(state: Mapping[str, Tensor]) -> int:
    """Class, distillation and register tokens: they stand before the patches."""
    return sum(state[name].shape[1] for name in ("cls_token", "dist_token", "reg_token") if name in state)


def _linear(x: Tensor, w: Mapping[str, Tensor], name: str) -> Tensor:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def _layer_norm(x: Tensor, w: Mapping[str, Tensor], name: str, config: ViTConfig) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)  # the mean stays differentiable under both rule sets
    denominator = ((centred**2).mean(dim=-1, keepdim=True) + config.eps).sqrt()
    if config.rules == "libra":
        denominator = denominator.detach()
    return centred / denominator * w[f"{name}.weight"] + w[f"{name}.bias"]


def _gelu(x: Tensor, config: ViTConfig) -> Tensor:
    gate = (1 + torch.erf(x / math.sqrt(2))) / 2  # Phi(x)
    return x * (gate.detach() if config.rules == "libra" else gate)


def _softmax(scores: Tensor) -> Tensor:
    powers = (scores - scores.amax(dim=-1, keepdim=True).detach()).exp()  # the shift cancels, in the gradient too
    return powers / powers.sum(dim=-1, keepdim=True)
