"""Methods on attention maps and their gradients, as their formulas are written: full matrices, one image, one head.

`read` are the tokens that the head reads; a map is the average of those rows. `A[h]` has queries as rows, `dA` is its
gradient of the score.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .vit import Block, Record, ViTConfig, _block, _head, _layer_norm, _linear


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
