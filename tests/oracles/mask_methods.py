"""Methods that score masked images or some of the tokens, one mask and one image at a time."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .presets import bilinear
from .vit import Record, ViTConfig, _block, _embed, _head, _layer_norm, prefix_count


def probability(state, image: Tensor, config: ViTConfig, target: int, kept: list[int] | None = None) -> float:
    """Of one image `[3, H, W]`; with `kept` patches alone in the sequence, behind the prefix tokens."""
    x = _embed(image[None], state)
    if kept is not None:
        prefix = prefix_count(state)
        x = torch.stack([x[0, i] for i in [*range(prefix), *(prefix + p for p in kept)]])[None]
    for index in range(1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks."))):
        x = _block(x, state, f"blocks.{index}", config)["y"]
    logits = _head(x, state, config)[0]
    powers = (logits - logits.max()).exp()
    return float(powers[target] / powers.sum())


def corrected(masks: list[set[int]], scores: list[float], patches: int) -> np.ndarray:
    """Mean score of the masks that lie on a patch."""
    heat = np.zeros(patches)
    for i in range(patches):
        on = [score for mask, score in zip(masks, scores, strict=True) if i in mask]
        heat[i] = sum(on) / len(on) if on else 0.0
    return heat


def tis(record: Record, b: int, config: ViTConfig, count: int, keep: float, iterations: int, seed: int) -> np.ndarray:
    prefix, state = prefix_count(record.state), record.state
    outputs = [*(block.x for block in record.blocks[1:]), record.x_last]
    points = np.concatenate([one[b, prefix:].numpy() for one in outputs], axis=1).T
    start = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:count].tolist()
    centroids, own = [points[i] for i in start], None
    for _ in range(iterations):
        nearest = [min(range(count), key=lambda k: ((point - centroids[k]) ** 2).sum()) for point in points]
        if nearest == own:
            break
        own = nearest
        for k in range(count):
            members = [point for point, mine in zip(points, own, strict=True) if mine == k]
            centroids[k] = sum(members) / len(members) if members else centroids[k]
    number, masks, scores = round(keep * points.shape[1]), [], []
    for centroid in centroids:
        top = sorted(sorted(range(len(centroid)), key=lambda i: -centroid[i])[:number])
        masks.append(set(top))
        scores.append(probability(state, record.image[b], config, int(record.target[b]), top))
    return corrected(masks, scores, points.shape[1])


def mutex_statistics(series: np.ndarray) -> list[float]:
    """Of one patch over layers."""
    n, total = len(series), series.sum()
    mean = total / n
    shares = [value / total for value in series if value > 0]  # none, where all are 0
    std = math.sqrt(sum((value - mean) ** 2 for value in series) / n)
    middle = sorted(series)
    median = middle[n // 2] if n % 2 else (middle[n // 2 - 1] + middle[n // 2]) / 2
    defined = std > 1e-15 * mean
    return [
        -sum(p * math.log(p) for p in shares),
        max(series),
        min(series),
        total,
        std if defined else 0,
        total / std if defined else 0,
        median,
        sum((value - mean) ** 3 for value in series) / n / std**3 if defined else 0,
        sum((value - mean) ** 4 for value in series) / n / std**4 if defined else 0,
    ]


def mutex(record: Record, b: int, config: ViTConfig, threshold: float = 0.01, quantile: float = 0.5) -> np.ndarray:
    prefix = prefix_count(record.state)
    patches = record.x_last.shape[1] - prefix
    masks, scores = [], []
    for join in (np.min, np.max, np.sum):
        into, out = [], []
        for block in record.blocks:
            graph = join(block.A[b].numpy(), axis=0)[prefix:, prefix:].copy()
            largest = graph.max()
            for i in range(patches):
                for j in range(patches):
                    if graph[i, j] < threshold * largest:
                        graph[i, j] = 0
            into.append([sum(graph[i, j] for i in range(patches)) for j in range(patches)])
            out.append([sum(graph[i, j] for j in range(patches)) for i in range(patches)])
        for degrees in (into, out):
            table = np.array([mutex_statistics(np.array(degrees)[:, i]) for i in range(patches)])
            for column in table.T:
                limit = np.quantile(column, quantile)
                masks.append({i for i in range(patches) if column[i] >= limit - 2e-13 * abs(limit)})
    for mask in masks:
        scores.append(probability(record.state, record.image[b], config, int(record.target[b]), sorted(mask)))
    return corrected(masks, scores, patches)


def rise(record: Record, b: int, config: ViTConfig, count: int, cells: int, p: float, seed: int) -> np.ndarray:
    x = record.image[b].numpy()
    _, height, width = x.shape
    grids = torch.rand(count, 1, cells, cells, generator=torch.Generator().manual_seed(seed)) < p
    shifts = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed + 1))
    cell = [math.ceil(height / cells), math.ceil(width / cells)]
    heat, mean = np.zeros((height, width)), 0.0
    for grid, shift in zip(grids, shifts, strict=True):
        large = bilinear(grid[0].double().numpy(), (cells + 1) * cell[0], (cells + 1) * cell[1])
        y, u = (int(s * c) for s, c in zip(shift, cell, strict=True))
        M = large[y : y + height, u : u + width]
        score = probability(record.state, torch.from_numpy(x * M), config, int(record.target[b]))
        heat, mean = heat + score * M, mean + M.mean() / count
    return heat / (count * mean)


def vit_cx(record: Record, b: int, config: ViTConfig, grid: tuple[int, int], distance: float, noise: float, seed: int):
    def scaled(m: np.ndarray) -> np.ndarray:
        return (m - m.min()) / (m.max() - m.min())

    prefix, x, target = prefix_count(record.state), record.image[b], int(record.target[b])
    _, height, width = x.shape
    tokens = _layer_norm(record.blocks[-1].x[b], record.state, f"blocks.{len(record.blocks) - 1}.norm1", config)
    maps = [scaled(bilinear(column.reshape(grid).numpy(), height, width)) for column in tokens[prefix:].T]
    apart = lambda i, j: 1 - (maps[i] * maps[j]).sum() / np.sqrt((maps[i] ** 2).sum() * (maps[j] ** 2).sum())
    table = np.array([[apart(i, j) for j in range(len(maps))] for i in range(len(maps))])
    clusters = [[i] for i in range(len(maps))]
    while len(clusters) > 1:
        pairs = [(p, q) for p in range(len(clusters)) for q in range(p)]
        furthest = {(p, q): max(table[i, j] for i in clusters[p] for j in clusters[q]) for p, q in pairs}
        p, q = min(pairs, key=lambda pair: furthest[pair])
        if furthest[p, q] >= distance:
            break
        clusters[q] = clusters[q] + clusters.pop(p)
    clusters.sort(key=lambda cluster: (-len(cluster), min(cluster)))
    heat, covered = np.zeros((height, width)), np.zeros((height, width))
    plain = probability(record.state, x, config, target)
    for k, cluster in enumerate(clusters):
        M = scaled(sum(maps[i] for i in cluster))
        drawn = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed + k)).double()
        n = noise * drawn * torch.from_numpy(1 - M)
        score = probability(record.state, x * torch.from_numpy(M) + n, config, target)
        score = score - probability(record.state, x + n, config, target) + plain
        heat, covered = heat + score * M, covered + M
    return heat / len(clusters) / np.where(covered > 0, covered, 1), len(clusters)
