"""GradSkip, step by step as its formulas are written: one image, one layer, one head at a time.

Notation of the formulas: block l has input ``x``, attention branch ``a`` and sum ``z = x + a``; ``A_q`` is the map of
head q (rows are queries) and ``dA_q`` its gradient; ``T`` is the number of tokens that the walk visits (the patches, or
all tokens with ``prefix_tokens="include"``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from .vit import Block, Record

CHOICES = {
    "gini_over": ("rows", "columns", "map"),
    "head_norm": ("minmax", "max", "l1"),
    "head_filter": (None, "top25", "bottom25"),
    "embedding": ("input", "relevance", "value", "projected", "ratio", "none"),
    "row_norm": ("row", "mean", "none"),
    "flow_sign": ("abs", "relu"),
    "gate": ("layer", "token"),
    "gate_norm": ("l1", "l2", "signed", "dot"),
    "start": ("gradient_x_input", "uniform", "cls"),
    "prefix_tokens": ("exclude", "include"),
    "reads": (True, False),
}


@dataclass(frozen=True)
class Settings:
    """Every choice of the method; the defaults are the first reading of the paper."""

    alpha: float = 0.5
    flow_threshold: float | str = 0.1  # or "mean"
    gini_over: str = "rows"
    head_norm: str = "minmax"
    head_filter: str | None = None
    embedding: str = "input"
    row_norm: str = "row"
    flow_sign: str = "abs"
    gate: str = "layer"
    gate_norm: str = "l1"
    start: str = "gradient_x_input"
    prefix_tokens: str = "exclude"
    reads: bool = False
    first_layer: int = 1

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")
        if isinstance(self.flow_threshold, str) and self.flow_threshold != "mean":
            raise ValueError(f"flow_threshold must be a number or 'mean', got {self.flow_threshold!r}")
        if self.start == "cls" and self.prefix_tokens != "include":
            raise ValueError("start='cls' needs prefix_tokens='include'")
        if self.first_layer < 1:
            raise ValueError(f"first_layer counts from 1, got {self.first_layer}")


PAPER: dict[str, Any] = asdict(Settings())
DEFAULT: dict[str, Any] = {
    **PAPER,
    "prefix_tokens": "include",
    "embedding": "relevance",
    "gate": "token",
    "gate_norm": "dot",
}
READS: dict[str, Any] = {**DEFAULT, "prefix_tokens": "exclude", "reads": True}


def gradskip(
    record: Record,
    grid: tuple[int, int],
    n_prefix: int,
    *,
    read: Sequence[int],
    signed: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Explain every image of ``record``; ``read`` holds the indices of the tokens that the head reads.

    The result's per-layer lists go from the first block walked (the latest) to the last; ``layers`` names the blocks,
    counted from 1. Entries: ``map [B,h,w]``, ``start [B,T]``, ``start_layer``, ``rho_cls [B]``, ``layers``; per block
    ``omega``, ``raw_flow``, ``flow``, ``sparsity``, ``gini`` ``[B,H]``, ``beta`` ``[B]`` or ``[B,T]``, ``W [B,T,T]``,
    ``nu`` ``[B,T]`` or ``[B,H,T]``, ``reads [B,T]``, ``relevance [B,T]`` (after the block's step); ``masses`` holds one
    more entry ``[B]`` than there are blocks, the start's mass first.
    """
    chosen = Settings(**settings)
    images = [_explain(record, b, grid, n_prefix, list(read), signed, chosen) for b in range(len(record.logits))]
    result: dict[str, Any] = {"layers": images[0]["layers"], "start_layer": images[0]["start_layer"]}
    for name in ("map", "start", "rho_cls"):
        result[name] = torch.stack([image[name] for image in images])
    for name in ("omega", "raw_flow", "flow", "sparsity", "gini", "beta", "W", "nu", "reads", "relevance", "masses"):
        result[name] = [torch.stack(of_layer) for of_layer in zip(*(image[name] for image in images), strict=True)]
    return result


def _explain(
    record: Record, b: int, grid: tuple[int, int], n_prefix: int, read: list[int], signed: bool, chosen: Settings
) -> dict[str, Any]:
    """The walk for image ``b``."""
    prefix = list(range(n_prefix))
    n_tokens = record.x_last.shape[1]
    if n_tokens - n_prefix != grid[0] * grid[1]:
        raise ValueError(f"{n_tokens} tokens less {n_prefix} prefix tokens are not a grid of {grid}")
    include = chosen.prefix_tokens == "include"
    walked = list(range(n_tokens)) if include else list(range(n_prefix, n_tokens))
    prefix_read = [token for token in read if token in prefix]

    # Step 8. Without the prefix tokens, a head that reads one leaves nothing to start from behind the last block.
    start_layer = len(record.blocks) - 1 if prefix_read and not include else len(record.blocks)
    if start_layer == len(record.blocks):
        u, du = record.x_last[b], record.dx_last[b]
    else:
        u, du = record.blocks[start_layer].x[b], record.blocks[start_layer].dx[b]  # the input of block L
    gradient_x_input = (u * du).sum(dim=-1)  # [N]
    R = _start(gradient_x_input, walked, prefix, prefix_read, chosen)

    # Step 3. The share of |gradient x input| that lies on prefix tokens, where the walk starts.
    magnitude = gradient_x_input.abs()
    rho = magnitude[prefix].sum() / magnitude.sum() if magnitude.sum() > 0 else magnitude.new_zeros(())

    out: dict[str, Any] = {"start": R, "start_layer": start_layer, "rho_cls": rho, "layers": [], "masses": [R.sum()]}
    per_layer = ("omega", "raw_flow", "flow", "sparsity", "gini", "beta", "W", "nu", "reads", "relevance")
    out |= {name: [] for name in per_layer}
    for layer in range(start_layer, chosen.first_layer - 1, -1):
        block = record.blocks[layer - 1]
        A, dA = block.A[b][:, walked][:, :, walked], block.dA[b][:, walked][:, :, walked]  # step 3: not renormalised
        heads = head_weights(A, dA, chosen)
        nu = embedding_weights(block, b, walked, chosen)
        W = weighted_attention(A, dA, heads["omega"], nu, chosen)
        beta = main_share(block.dz[b][walked], block.a[b][walked], block.x[b][walked], chosen)
        R = step(R, W, beta)
        entering = torch.zeros_like(R)
        if chosen.reads and not include:
            entering = read_by_prefix(block.A[b], block.dA[b], prefix, walked)
        R = R + entering
        step_record = {**heads, "nu": nu, "W": W, "beta": beta, "reads": entering, "relevance": R}
        for name in per_layer:
            out[name].append(step_record[name])
        out["layers"].append(layer)
        out["masses"].append(R.sum())

    # Step 10.
    patches = R[n_prefix:] if include else R
    out["map"] = (patches if signed else patches.clamp(min=0)).reshape(grid)
    return out


def _start(
    gradient_x_input: Tensor, walked: list[int], prefix: list[int], prefix_read: list[int], chosen: Settings
) -> Tensor:
    """Step 8: the vector that the walk begins with."""
    if chosen.start == "uniform":
        return torch.full_like(gradient_x_input[walked], 1 / len(walked))
    if chosen.prefix_tokens == "include" and (chosen.start == "cls" or prefix_read):
        if not prefix:
            raise ValueError("start='cls' needs a prefix token")
        holders = prefix_read or prefix[:1]
        R = torch.zeros_like(gradient_x_input)
        for token in holders:
            R[token] = 1 / len(holders)
        return R
    return gradient_x_input[walked]


def gini(values: Tensor) -> Tensor:
    """Step 4. ``2 sum_i i p_(i) / (n sum_i p_(i)) - (n + 1) / n`` for ascending p; 0 where all values are 0."""
    n = values.numel()
    ascending = values.flatten().sort().values
    total = ascending.sum()
    if total == 0:
        return torch.zeros_like(total)
    ranks = torch.arange(1, n + 1, dtype=values.dtype)
    return 2 * (ranks * ascending).sum() / (n * total) - (n + 1) / n


def head_weights(A: Tensor, dA: Tensor, chosen: Settings) -> dict[str, Tensor]:
    """Step 4: ``omega`` and its parts, each ``[H]``, from the ``[H, T, T]`` maps of one layer."""
    n_heads = len(A)
    G = torch.stack([(A[q] * dA[q].abs()).mean() for q in range(n_heads)])
    floor = G.mean() if chosen.flow_threshold == "mean" else float(chosen.flow_threshold) * G.max()
    kept = G.clone()
    kept[floor > G] = 0

    S = torch.stack([_head_gini(A[q], chosen) for q in range(n_heads)])

    flow = normalised_over_heads(kept, chosen)
    sparsity = normalised_over_heads(S, chosen)
    omega = chosen.alpha * flow + (1 - chosen.alpha) * sparsity
    # The largest value of an indicator is never 0, so with alpha in [0, 1] this rule waits for an input that does not
    # come. The filter acts after it: where only heads with omega 0 pass, the fallbacks of step 6 apply.
    if (omega == 0).all():
        omega = torch.ones_like(omega)
    return {"omega": omega * _filter(S, chosen), "raw_flow": G, "flow": flow, "sparsity": sparsity, "gini": S}


def _head_gini(A: Tensor, chosen: Settings) -> Tensor:
    if chosen.gini_over == "rows":
        return torch.stack([gini(row) for row in A]).mean()
    if chosen.gini_over == "columns":
        return gini(A.mean(dim=0))  # the mean over queries: how much each key is attended to
    return gini(A.flatten())


def normalised_over_heads(v: Tensor, chosen: Settings) -> Tensor:
    """Step 4: the tilde. Heads that differ by next to nothing are not told apart, whatever the normalisation."""
    if v.max() - v.min() <= 1e-3 * v.mean():
        return torch.ones_like(v)
    if chosen.head_norm == "l1":
        return v / v.abs().sum()
    if chosen.head_norm == "max" or len(v) == 2:  # min-max would make two heads exactly 0 and 1
        return v / v.max()
    return (v - v.min()) / (v.max() - v.min())


def _filter(S: Tensor, chosen: Settings) -> Tensor:
    """0/1 over the heads: the quarter with the largest or the smallest Gini; of equal heads the first."""
    if chosen.head_filter is None:
        return torch.ones_like(S)
    count = max(1, round(len(S) / 4))
    order = torch.sort(S, descending=chosen.head_filter == "top25", stable=True).indices
    mask = torch.zeros_like(S)
    mask[order[:count]] = 1
    return mask


def embedding_weights(block: Block, b: int, walked: list[int], chosen: Settings) -> Tensor:
    """Step 5: nu, ``[T]``, or ``[H, T]`` where each head has its own."""
    x, dx, v = block.x[b][walked], block.dx[b][walked], block.v[b][:, walked]
    length = x.norm(dim=-1)
    if chosen.embedding == "none":
        return torch.ones_like(length)
    if chosen.embedding == "input":
        return _over_mean(length)
    if chosen.embedding == "relevance":
        positive = (x * dx).sum(dim=-1).clamp(min=0)
        return _over_mean(positive if (positive > 0).any() else length)
    if chosen.embedding == "value":
        return torch.stack([_over_mean(v_q.norm(dim=-1)) for v_q in v])
    projected = [v[q] @ block.W_O[q].T for q in range(len(v))]  # row j: W_O^q v_j^q, [T, D] each
    if chosen.embedding == "projected":
        return torch.stack([_over_mean(p.norm(dim=-1)) for p in projected])
    return _over_mean(torch.stack(projected).sum(dim=0).norm(dim=-1) / length)  # "ratio"


def _over_mean(nu: Tensor) -> Tensor:
    return nu / nu.mean() if nu.mean() > 0 else nu


def weighted_attention(A: Tensor, dA: Tensor, omega: Tensor, nu: Tensor, chosen: Settings) -> Tensor:
    """Step 6: ``W~ [T, T]``."""
    n_heads, n_tokens, _ = A.shape
    E = torch.zeros_like(A[0])
    without_gradient = torch.zeros_like(A[0])
    for q in range(n_heads):
        nu_q = nu[q] if nu.ndim == 2 else nu
        gradient = dA[q].abs() if chosen.flow_sign == "abs" else dA[q].clamp(min=0)
        E += omega[q] * A[q] * gradient * nu_q[None, :]  # nu belongs to the key j, the column
        without_gradient += omega[q] * A[q] * nu_q[None, :]

    if chosen.row_norm == "none":
        return E
    if chosen.row_norm == "mean":
        mean_row_sum = E.sum(dim=1).mean()
        return E / mean_row_sum if mean_row_sum > 0 else E
    W = torch.zeros_like(E)
    for i in range(n_tokens):
        if E[i].sum() > 0:
            W[i] = E[i] / E[i].sum()
        elif without_gradient[i].sum() > 0:
            W[i] = without_gradient[i] / without_gradient[i].sum()
        else:
            W[i, i] = 1
    return W


def main_share(g_z: Tensor, a: Tensor, x: Tensor, chosen: Settings) -> Tensor:
    """Step 7: beta_main, a scalar or ``[T]``. Both paths are measured with the gradient at their sum."""
    C_main, C_skip = _contribution(g_z * a, chosen), _contribution(g_z * x, chosen)
    total = C_main + C_skip
    return torch.where(total > 0, C_main / total, torch.zeros_like(total))  # no gradient on any path: 0, not 0/0


def _contribution(product: Tensor, chosen: Settings) -> Tensor:
    """The size of ``g_z * a`` or ``g_z * x`` ``[T, d]``: over all of it, or over each token's coordinates."""
    over = (0, 1) if chosen.gate == "layer" else (1,)
    if chosen.gate_norm == "l1":
        return product.abs().sum(dim=over)
    if chosen.gate_norm == "l2":
        return (product**2).sum(dim=over).sqrt()
    if chosen.gate_norm == "signed":
        return product.sum(dim=over).abs()
    per_token = product.sum(dim=1).abs()  # "dot": |<g_i, a_i>|
    return per_token.sum() if chosen.gate == "layer" else per_token


def step(R: Tensor, W: Tensor, beta: Tensor) -> Tensor:
    """Step 9. ``R'_i = sum_j beta_j W[j, i] R_j + (1 - beta_i) R_i``; one beta for all tokens is the special case."""
    beta = beta.expand(len(R))
    moved = torch.zeros_like(R)
    for j in range(len(R)):
        moved += beta[j] * R[j] * W[j]
    return moved + (1 - beta) * R


def read_by_prefix(A: Tensor, dA: Tensor, prefix: list[int], walked: list[int]) -> Tensor:
    """What the rows of the prefix tokens read: ``r_j = sum_q sum_{p in prefix} A_q[p, j] dA_q[p, j]``, signed."""
    r = torch.zeros_like(A[0, 0])
    for q in range(len(A)):
        for p in prefix:
            r += A[q, p] * dA[q, p]
    return r[walked]
