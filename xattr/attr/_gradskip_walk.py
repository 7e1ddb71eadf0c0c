"""The walk of GradSkip over what one backward left, and the evidence that it leaves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..trace import Block, Layout, Target
from ..trace.record import image_chunks
from . import _gradskip_steps as steps
from ._gradskip_backward import Backward
from ._map import Upsample, dot, finish, result_dtype, tokens_read, walk_start
from .gradskip_settings import GradSkipSettings


@dataclass(frozen=True)
class GradSkipEvidence:
    """How a GradSkip map came about. L counts the blocks that were walked, first to last.

    Attributes:
        map: the map, as `attribute` returns it.
        target: the class explained, as an index or one per image.
        omega: head weights, `[L, B, H]`.
        flow: flow indicator of each head after threshold and scaling, `[L, B, H]`.
        sparsity: sparsity indicator of each head after scaling, `[L, B, H]`.
        gini: sparsity of each head before scaling, `[L, B, H]`.
        beta: share of the attention branch, `[L, B]` for a layer gate, `[L, B, P]` for a token gate.
        rho_cls: share of |input x gradient| that lies on prefix tokens where the walk starts, `[B]`.
        start: relevance at the start, `[B, P]`.
        relevance: relevance in front of each walked block, `[L, B, P]`.
        layers: module path of each walked block.
        left_out: module path of each other attention, and why it was left out.
        settings: the choices.
    """

    map: Tensor
    target: Target
    omega: Tensor
    flow: Tensor
    sparsity: Tensor
    gini: Tensor
    beta: Tensor
    rho_cls: Tensor
    start: Tensor
    relevance: Tensor
    layers: tuple[str, ...]
    left_out: dict[str, str]
    settings: GradSkipSettings


def walk(
    found: Backward, settings: GradSkipSettings, signed: bool, upsample: Upsample, map_budget: int
) -> GradSkipEvidence:
    """The walk from the last block to the first; arguments as in `GradSkip`. Does not change what was found."""
    record, layout, image = found.record, found.layout, found.image
    depth, include = len(record.blocks), settings.prefix_tokens == "include"
    with torch.inference_mode(False), torch.no_grad():
        top, tokens = walk_start(record, layout, found.g_last, skip_prefix=not include)
        at_start = dot(tokens, found.g_last if top == depth else found.g_x[depth - 1])
        start = _start(at_start, found.g_last, layout, settings).to(result_dtype(image))
        blocks = range(settings.first_layer - 1, top)
        R, kept = start, []
        for l in reversed(blocks):
            block = record.blocks[l]
            relevance = dot(block.x, found.g_x[l]) if settings.embedding == "relevance" else None
            R, seen = _pass_block(R, block, found.g_z[l], found.g_out[l], relevance, layout, settings, map_budget)
            kept.append({**seen, "relevance": R})
    left = {b.path: "below first_layer" for b in record.blocks[: blocks.start] if blocks}
    left |= {b.path: "only prefix tokens are read behind it" for b in record.blocks[top:]}
    left |= {b.path: "not walked: first_layer lies behind it" for b in record.blocks[:top] if not blocks}
    left |= {a.path: "no residual sum: belongs to the head" for a in record.head}
    patches = R[:, layout.patches] if include else R
    grid = (patches if signed else patches.clamp_min(0)).unflatten(1, layout.grid)
    magnitude = at_start.abs()
    prefix = magnitude[:, layout.prefix].sum(1)
    total = magnitude.sum(1)
    names = ("omega", "flow", "sparsity", "gini", "beta", "relevance")
    stacked = {name: _stack([layer[name] for layer in reversed(kept)], start) for name in names}
    return GradSkipEvidence(
        map=finish(grid, image, upsample),
        target=found.target,
        rho_cls=torch.where(total > 0, prefix / torch.where(total > 0, total, 1), 0),
        start=start,
        layers=tuple(record.blocks[l].path for l in blocks),
        left_out=left,
        settings=settings,
        **stacked,
    )


def _stack(layers: list[Tensor], like: Tensor) -> Tensor:
    """One tensor for all layers, with NaN where a layer has fewer heads than another."""
    if not layers:
        return like.new_zeros(0)
    width = max(layer.shape[-1] for layer in layers)
    full = [layer.new_full((*layer.shape[:-1], width), torch.nan) for layer in layers]
    for wide, layer in zip(full, layers, strict=True):
        wide[..., : layer.shape[-1]] = layer
    return torch.stack(full)


def _start(at_start: Tensor, g_last: Tensor, layout: Layout, settings: GradSkipSettings) -> Tensor:
    """Relevance of the tokens in the walk, `[B, P]`, before the last walked block."""
    if settings.prefix_tokens == "exclude":
        patches = at_start[:, layout.patches]
        return torch.full_like(patches, 1 / patches.shape[1]) if settings.start == "uniform" else patches
    if settings.start == "uniform":
        return torch.full_like(at_start, 1 / at_start.shape[1])
    on_prefix = torch.zeros_like(at_start)
    on_prefix[:, layout.prefix] = tokens_read(g_last)[:, layout.prefix].to(at_start.dtype)
    count = on_prefix.sum(1, keepdim=True)
    otherwise = at_start
    if settings.start == "cls":
        if not layout.prefix:
            raise ValueError('start="cls" needs a prefix token, and this model has none; use "gradient_x_input".')
        otherwise = torch.zeros_like(at_start)
        otherwise[:, layout.prefix[:1]] = 1
    return torch.where(count > 0, on_prefix / count.clamp_min(1), otherwise)


def _pass_block(
    R: Tensor,
    block: Block,
    g_z: Tensor,
    g_out: list[Tensor],
    relevance: Tensor | None,
    layout: Layout,
    settings: GradSkipSettings,
    map_budget: int,
) -> tuple[Tensor, dict[str, Tensor]]:
    """One step of the walk, in chunks of images so that few maps are alive at once."""
    batch, heads, rows, columns = block.shape
    parts: list[dict[str, Tensor]] = []
    # Some six arrays with all heads and four with none are alive in the steps.
    for images in image_chunks(batch, (6 * heads + 4) * rows * columns * R.element_size(), map_budget):
        A, dA = block.maps(images).to(R.dtype), block.map_gradients(g_out, images).to(R.dtype)
        reads: Tensor | float = 0.0
        walk = slice(None)
        if settings.prefix_tokens == "exclude":
            walk = layout.patches
            if settings.reads and layout.prefix:
                reads = (A[:, :, layout.prefix] * dA[:, :, layout.prefix]).sum((1, 2))[:, walk]
            A, dA = A[..., walk, walk], dA[..., walk, walk]
        edges = A * dA
        x, a, g = (t[images, walk].to(R.dtype) for t in (block.x.value, block.a, g_z))
        nu = _embedding(block, x, images, walk, relevance, settings.embedding)
        size = nu.mean(-1, keepdim=True)
        nu = nu / torch.where(size > 0, size, 1)
        gini = steps.sparsity(A, settings.gini_over)
        flow = steps.normalise_heads(steps.flow(edges, settings.flow_threshold), settings.head_norm)
        sparsity = steps.normalise_heads(gini, settings.head_norm)
        omega = steps.head_weights(flow, sparsity, gini, settings)
        W = steps.weighted_attention(A, edges, omega, nu, settings)
        beta = steps.main_share(a, x, g, settings)
        after = steps.step(R[images], W, beta) + reads
        seen = {"omega": omega, "flow": flow, "sparsity": sparsity, "gini": gini, "after": after}
        parts.append({**seen, "beta": beta if settings.gate == "token" else beta[:, 0]})
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return joined.pop("after"), joined


def _embedding(block: Block, x: Tensor, images: slice, walk: slice, relevance: Tensor | None, kind: str) -> Tensor:
    """Magnitude of each key token of the walk, `[B, 1 or H, P]`."""
    values = block.values(images)[:, :, walk].to(x.dtype)
    norm = torch.linalg.vector_norm(x, dim=-1)[:, None]
    if kind == "input":
        return norm
    if kind == "none":
        return torch.ones_like(norm)
    if kind == "value":
        return torch.linalg.vector_norm(values, dim=-1)
    if kind == "relevance":
        assert relevance is not None
        positive = relevance[images, walk].to(x.dtype).clamp_min(0)[:, None]
        return torch.where((positive > 0).any(-1, keepdim=True), positive, norm)
    if block.projection is None:
        raise ValueError(f"embedding={kind!r} needs a linear map behind the attention {block.path!r}; none was seen.")
    by_head = block.projection.to(x.dtype).unflatten(1, (values.shape[1], values.shape[-1]))
    projected = torch.einsum("bhnd,ohd->bhno", values, by_head)
    if kind == "projected":
        return torch.linalg.vector_norm(projected, dim=-1)
    return torch.linalg.vector_norm(projected.sum(1), dim=-1)[:, None] / norm.clamp_min(torch.finfo(norm.dtype).tiny)
