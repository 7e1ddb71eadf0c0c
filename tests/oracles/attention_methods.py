"""Methods on attention maps and their gradients, as their formulas are written: full matrices, one image, one head.

`read` are the tokens that the head reads; a map is the average of those rows. `A[h]` has queries as rows, `dA` is its
gradient of the score.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .vit import Block, Record, ViTConfig, _block, _head, _layer_norm, _linear, observe


def patches(rows: list[Tensor], prefix: int, grid: tuple[int, int]) -> Tensor:
    return torch.stack([row[prefix:].reshape(grid) for row in rows])


def mean_row(R: Tensor, read: list[int]) -> Tensor:
    return sum(R[i] for i in read) / len(read)


def generic_attention(record: Record, read: list[int], first: int = 1) -> list[Tensor]:
    rows = []
    for b in range(len(record.logits)):
        N = record.x_last.shape[1]
        R = torch.eye(N, dtype=torch.float64)
        for block in record.blocks[first - 1 :]:
            A_bar = torch.zeros(N, N, dtype=torch.float64)
            for A, dA in zip(block.A[b], block.dA[b], strict=True):
                A_bar = A_bar + (dA * A).relu() / len(block.A[b])
            R = R + A_bar @ R
        rows.append(mean_row(R, read))
    return rows


def attention_grad_cam(record: Record, read: list[int], prefix: int, relu: bool = True) -> list[Tensor]:
    rows, block = [], record.blocks[-1]
    for b in range(len(record.logits)):
        heat = torch.zeros(record.x_last.shape[1], dtype=torch.float64)
        for i in read:
            for A, dA in zip(block.A[b], block.dA[b], strict=True):
                weight = dA[i, prefix:].mean()
                heat = heat + weight * A[i] / len(block.A[b]) / len(read)
        rows.append(heat.relu() if relu else heat)
    return rows


def scores_of(block: Block, record: Record, index: int, config: ViTConfig, b: int, h: int) -> Tensor:
    """Queries times keys of one head."""
    name, width = f"blocks.{index}", block.x.shape[-1]
    d = width // config.heads
    qkv = _linear(_layer_norm(block.x[b], record.state, f"{name}.norm1", config), record.state, f"{name}.attn.qkv")
    q, k = qkv[:, h * d : (h + 1) * d], qkv[:, width + h * d : width + (h + 1) * d]
    return q @ k.T / math.sqrt(d)


def ag_cam(record: Record, read: list[int], config: ViTConfig) -> list[Tensor]:
    rows = []
    for b in range(len(record.logits)):
        heat = torch.zeros(record.x_last.shape[1], dtype=torch.float64)
        for index, block in enumerate(record.blocks):
            for h in range(config.heads):
                S = scores_of(block, record, index, config, b, h)
                for i in read:
                    heat = heat + block.dA[b, h, i].relu() * (1 / (1 + (-S[i]).exp())) / len(read)
        rows.append(heat)
    return rows


def le_grad(record: Record, config: ViTConfig, layers: int | None = None) -> list[Tensor]:
    """Each layer alone: its tokens are made from the input of the block, and read out by norm and head."""
    rows, depth = [], len(record.blocks)
    for b in range(len(record.logits)):
        heat = torch.zeros(record.x_last.shape[1], dtype=torch.float64)
        for index in range(depth - (layers or depth), depth):
            with torch.enable_grad():
                parts = _block(
                    record.blocks[index].x[b : b + 1].clone().requires_grad_(), record.state, f"blocks.{index}", config
                )
                score = _head(parts["y"], record.state, config)[0, record.target[b]]
                (gradient,) = torch.autograd.grad(score, parts["A"])
            for h in range(config.heads):
                for query in range(gradient.shape[2]):
                    heat = heat + gradient[0, h, query].relu() / config.heads / gradient.shape[2]
        rows.append(heat)
    return rows


def token_tm(record: Record, read: list[int]) -> list[Tensor]:
    def W(before: Tensor, after: Tensor) -> Tensor:
        lengths, cosines = [], []
        for t, u in zip(before, after, strict=True):
            lengths.append((u @ u).sqrt() / (t @ t).sqrt())
            cosines.append((t @ u) / (t @ t).sqrt() / (u @ u).sqrt())
        powers = torch.stack(cosines).exp()
        return torch.diag(torch.stack(lengths) * powers / powers.sum())

    rows, depth = [], len(record.blocks)
    for b in range(len(record.logits)):
        N = record.x_last.shape[1]
        eye = torch.eye(N, dtype=torch.float64)
        C = torch.diag(torch.stack([(t @ t).sqrt() for t in record.blocks[0].x[b]]))
        for index, block in enumerate(record.blocks):
            y = record.x_last if index + 1 == depth else record.blocks[index + 1].x
            heads = len(block.A[b])
            values = sum(block.v[b, h] @ block.W_O[h].T for h in range(heads))
            mean_A, mean_dA = sum(block.A[b]) / heads, sum(one.relu() for one in block.dA[b]) / heads
            U_att = eye + (mean_A @ W(block.x[b], values)) * mean_dA
            U_mlp = eye + W(block.z[b], y[b] - block.z[b])
            C = U_mlp @ U_att @ C
        rows.append(mean_row(C, read))
    return rows


# --- input times gradient, and relevance ------------------------------------------------------------------------------


def full_grad_plus(state, image: Tensor, config: ViTConfig, target: int, prefix: int) -> Tensor:
    """One image `[1, 3, H, W]`. A bias becomes one for each token, so that each has a gradient of its own."""
    tokens = prefix + (image.shape[2] // 4) * (image.shape[3] // 4)
    wide = dict(state)
    for name, value in state.items():
        if name.endswith("bias") and (name.startswith("blocks") or name == "norm.bias"):
            wide[name] = value.expand(tokens, -1)
        if name == "patch_embed.proj.bias":
            wide[name] = value.expand(tokens - prefix, -1)
    record = observe(wide, image, config, target)
    total = torch.zeros(tokens, dtype=torch.float64)
    for block in record.blocks:
        total = total + (block.x * block.dx)[0].sum(-1)
    for name in wide:
        terms = (wide[name] * record.d_state[name]).sum(-1)
        if name.endswith("bias") and (name.startswith("blocks") or name == "norm.bias"):
            total = total + terms
        elif name == "patch_embed.proj.bias":
            total[prefix:] += terms
        elif name == "pos_embed":
            total[tokens - terms.shape[1] :] += terms[0]
    return total


def over(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b == 0, torch.zeros_like(a), a / torch.where(b == 0, torch.ones_like(b), b))


def alpha_one(x: Tensor, weight: Tensor, R: Tensor) -> Tensor:
    """`R_j = (x+_j w+_jk + x-_j w-_jk) R_k / sum_j (...)`, one token at a time."""
    rows = []
    for token, r in zip(x, R, strict=True):
        c = token[None] * weight  # [K, J]
        positive = c.clamp(min=0)
        rows.append((positive * over(r, positive.sum(1))[:, None]).sum(0))
    return torch.stack(rows)


def shared(u: Tensor, v: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    """In proportion, then both scaled to their shares of the sum by magnitude."""
    a, b = over(u * R, u + v), over(v * R, u + v)
    A, B = a.sum(), b.sum()
    of_u, of_v = (part.abs() / (A.abs() + B.abs()) * R.sum() for part in (A, B))
    return a * over(of_u, A), b * over(of_v, B)


def transformer_attribution(record: Record, read: list[int], prefix: int, config: ViTConfig, first: int = 1):
    w, rows = record.state, []
    for image in range(len(record.logits)):
        c, x = int(record.target[image]), record.x_last[image]
        normed = _layer_norm(x, w, "norm", config) if "norm.weight" in w else x
        R = torch.zeros_like(x)
        if config.pool == "distilled":
            parts = [_linear(normed[i], w, name) for i, name in ((0, "head"), (1, "head_dist"))]
            one = torch.zeros_like(parts[0])
            one[c] = 1
            for i, name, r in zip((0, 1), ("head", "head_dist"), shared(*parts, one), strict=True):
                R[i] = alpha_one(normed[i : i + 1], w[f"{name}.weight"], r[None])[0]
        else:
            pooled = normed[0] if config.pool == "token" else normed[prefix:].mean(0)
            final = _layer_norm(pooled, w, "fc_norm", config) if "fc_norm.weight" in w else pooled
            one = torch.zeros(1, len(record.logits[0]), dtype=torch.float64)
            one[0, c] = 1
            r = alpha_one(final[None], w["head.weight"], one)[0]  # the norm behind the pool passes it on
            if config.pool == "token":
                R[0] = r
            else:
                R[prefix:] = over(normed[prefix:] / len(normed[prefix:]) * r, pooled.expand_as(normed[prefix:]))
        maps = []
        for index in reversed(range(len(record.blocks))):
            block, name = record.blocks[index], f"blocks.{index}"
            z, h = block.z[image], _layer_norm(block.z[image], w, f"{name}.norm2", config)
            hidden = _linear(h, w, f"{name}.mlp.fc1")
            active = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
            m = _linear(active, w, f"{name}.mlp.fc2") * w.get(f"{name}.ls2.gamma", torch.ones(()))
            R, r = shared(z, m, R)
            R = R + alpha_one(h, w[f"{name}.mlp.fc1.weight"], alpha_one(active, w[f"{name}.mlp.fc2.weight"], r))
            R, r = shared(block.x[image], block.a[image], R)
            width, d = z.shape[-1], z.shape[-1] // config.heads
            A, v = block.A[image], block.v[image]
            o = A @ v
            r = alpha_one(o.transpose(0, 1).flatten(1), w[f"{name}.attn.proj.weight"], r)
            n1 = _layer_norm(block.x[image], w, f"{name}.norm1", config)
            qkv = _linear(n1, w, f"{name}.attn.qkv")
            r_qkv, A_bar = torch.zeros_like(qkv), torch.zeros_like(A[0])
            for q in range(config.heads):
                at = slice(q * d, (q + 1) * d)
                S = over(r[:, at], o[q])
                R_A, r_v = A[q] * (S @ v[q].T) / 2, v[q] * (A[q].T @ S) / 2
                A_bar = A_bar + (block.dA[image, q] * R_A).relu() / config.heads
                query, key = qkv[:, at], qkv[:, width:][:, at]
                S = over(R_A, query @ key.T)  # softmax and scale pass it on
                r_qkv[:, at] = query * (S @ key) / 2
                r_qkv[:, width:][:, at] = key * (S.T @ query) / 2
                r_qkv[:, 2 * width :][:, at] = r_v
            maps.insert(0, A_bar)
            R = R + alpha_one(n1, w[f"{name}.attn.qkv.weight"], r_qkv)
        product = torch.eye(len(x), dtype=torch.float64)
        for A_bar in maps[first - 1 :]:
            product = (torch.eye(len(x), dtype=torch.float64) + A_bar) @ product
        rows.append(mean_row(product, read))
    return rows


def finer_cam(tokens: Tensor, run, target: list[int], prefix: int, alpha: float = 1.0, count: int = 3) -> list[Tensor]:
    """`tokens` is what a layer returned, `[B, N, D]`, and `run` makes logits of it."""
    rows = []
    for b, c in enumerate(target):
        T = tokens[b : b + 1].clone().requires_grad_()
        logits = run(T, b)[0]
        p = (logits - logits.max()).exp().detach()
        p = p / p.sum()
        distance = {d: float((logits[d] - logits[c]).detach().abs()) for d in range(len(logits)) if d != c}
        others = sorted(distance, key=lambda d: distance[d])[:count]
        score = sum(p[d] * (logits[c] - alpha * logits[d]) for d in others) / sum(p[d] for d in others)
        (gradient,) = torch.autograd.grad(score, T)
        weights = gradient[0, prefix:].mean(0)
        rows.append((tokens[b] @ weights).detach())
    return rows
