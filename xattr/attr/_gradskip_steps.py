"""The steps of GradSkip as functions of tensors; nothing here knows a model.

Shapes: B images, H heads, P tokens in the walk, D channels. Rows of a map A are queries.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .gradskip_settings import GradSkipSettings


def gini(values: Tensor) -> Tensor:
    """Gini coefficient along the last axis: 0 for equal values, `(n - 1) / n` for one-hot; 0 where all are 0.

    For ascending p: `2 * sum_i i * p_i / (n * sum_i p_i) - (n + 1) / n`.
    """
    n = values.shape[-1]
    rank = torch.arange(1, n + 1, device=values.device, dtype=values.dtype)
    total = values.sum(-1)
    weighted = (_ascending(values) * rank).sum(-1)
    return torch.where(total > 0, 2 * weighted / (n * torch.where(total > 0, total, 1)) - (n + 1) / n, 0)


def _ascending(values: Tensor) -> Tensor:
    """Sorted along the last axis; on the CPU by NumPy, whose sort without indices is many times faster."""
    if values.device.type != "cpu":
        return values.sort(-1).values
    return torch.from_numpy(np.sort(values.detach().numpy(), axis=-1))


def sparsity(A: Tensor, over: str) -> Tensor:
    """Gini coefficient of each head, `[B, H]`, of the rows, of the mean row, or of the whole map."""
    if over == "rows":
        return gini(A).mean(-1)
    return gini(A.mean(-2)) if over == "columns" else gini(A.flatten(-2))


def flow(edges: Tensor, threshold: float | str) -> Tensor:
    """`G_q = mean_ij |A dA|` of each head, `[B, H]`, from `edges = A dA`; heads below the threshold are 0."""
    strength = edges.abs().flatten(2).mean(-1)
    if threshold == "mean":
        limit = strength.mean(1, keepdim=True)
    else:
        limit = float(threshold) * strength.amax(1, keepdim=True)
    return torch.where(strength < limit, 0, strength)


def normalise_heads(v: Tensor, how: str) -> Tensor:
    """Scale an indicator `[B, H]` over the heads; 1 for all heads where it hardly differs between them."""
    low, high = v.amin(1, keepdim=True), v.amax(1, keepdim=True)
    flat = high - low <= 1e-3 * v.mean(1, keepdim=True)
    if how == "minmax" and v.shape[1] > 2:
        scaled = (v - low) / torch.where(flat, 1, high - low)
    elif how == "l1":
        scaled = v / torch.where(flat, 1, v.sum(1, keepdim=True))
    else:
        scaled = v / torch.where(flat, 1, high)
    return torch.where(flat, 1, scaled)


def head_weights(flow_: Tensor, sparsity_: Tensor, gini_: Tensor, settings: GradSkipSettings) -> Tensor:
    """`omega = alpha * flow + (1 - alpha) * sparsity`, `[B, H]`, after the head filter."""
    omega = settings.alpha * flow_ + (1 - settings.alpha) * sparsity_
    omega = torch.where((omega == 0).all(1, keepdim=True), 1, omega)
    if settings.head_filter is not None:
        kept = max(1, round(omega.shape[1] / 4))
        chosen = gini_.topk(kept, 1, largest=settings.head_filter == "top25").indices
        omega = omega * torch.zeros_like(omega).scatter(1, chosen, 1)
    return omega


def weighted_attention(A: Tensor, edges: Tensor, omega: Tensor, nu: Tensor, settings: GradSkipSettings) -> Tensor:
    """`E[i, j] = sum_q omega_q |A_q[i, j] dA_q[i, j]| nu_j` with normalised rows, `[B, P, P]`, from `edges = A dA`.

    A row without any gradient becomes `sum_q omega_q A_q nu`; where that is 0 too, the identity row.
    """
    E = _over_heads(edges.abs() if settings.flow_sign == "abs" else edges.clamp_min(0), omega, nu)
    rows = E.sum(-1, keepdim=True)
    if settings.row_norm == "none":
        return E
    if settings.row_norm == "mean":
        mean = rows.mean(1, keepdim=True)
        return E / torch.where(mean > 0, mean, 1)
    plain = _over_heads(A, omega, nu)
    plain_rows = plain.sum(-1, keepdim=True)
    identity = torch.eye(E.shape[-1], device=E.device, dtype=E.dtype)
    plain = torch.where(plain_rows > 0, plain / torch.where(plain_rows > 0, plain_rows, 1), identity)
    return torch.where(rows > 0, E / torch.where(rows > 0, rows, 1), plain)


def _over_heads(maps: Tensor, omega: Tensor, nu: Tensor) -> Tensor:
    """`sum_q omega_q maps_q nu_q`, `[B, P, P]`; `nu` is `[B, H, P]`, or `[B, 1, P]` for all heads alike."""
    if nu.shape[1] == 1:  # one product of a vector and a matrix
        return (omega[:, None] @ maps.flatten(2)).view(maps[:, 0].shape) * nu
    return ((omega[..., None] * nu)[:, :, None] * maps).sum(1)


def main_share(a: Tensor, x: Tensor, g_z: Tensor, settings: GradSkipSettings) -> Tensor:
    """The gate `beta_main = C_main / (C_main + C_skip)`: `[B, 1]` for one of the layer, `[B, P]` for one a token."""
    per_token = settings.gate == "token"

    def magnitude(u: Tensor) -> Tensor:
        product = g_z * u
        if settings.gate_norm == "dot":
            each = product.sum(-1).abs()
            return each if per_token else each.sum(1, keepdim=True)
        product = product if per_token else product.flatten(1)[:, None]
        if settings.gate_norm == "l1":
            return product.abs().sum(-1)
        return product.square().sum(-1).sqrt() if settings.gate_norm == "l2" else product.sum(-1).abs()

    main, skip = magnitude(a), magnitude(x)
    total = main + skip
    return torch.where(total > 0, main / torch.where(total > 0, total, 1), 0)


def step(R: Tensor, W: Tensor, beta: Tensor) -> Tensor:
    """`R^{l-1} = W^T (beta R) + (1 - beta) R`, `[B, P]`."""
    return ((beta * R)[:, None, :] @ W)[:, 0] + (1 - beta) * R
