"""Which settings of GradSkip are the best default: every candidate and every single change, on tuning data, seed 0.

``python benchmarks/ablation.py`` measures what is missing under ``docs/evidence/gradskip_default`` and writes the
tables there: first the choice (``tuning``), then every single change of the winner (``around``), then the chosen
default on other seeds and pictures (``report``). One forward and one backward of an image serve all settings. About 70
CPU minutes on one thread. ``XATTR_DATA`` names the folder with ``kangaroo.tar`` and ``cifar10_test.npz``;
`xattr.datasets.borrowed.NO_DEPS` installs the ViT-S/14.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import _ablation_tables as tables
import _data as data
import numpy as np
import scipy.stats
import torch
from _versions import versions
from torch import Tensor

import xattr
from xattr import attr
from xattr.attr import GradSkipSettings
from xattr.attr._gradskip_backward import Backward, backward
from xattr.attr._gradskip_walk import walk
from xattr.trace import Inputs

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "gradskip_default"
METRICS = ("blank", "pointing", "energy", "auc", "sensitivity", "ins-del", "occlusion")
RESAMPLES = 2000

PAPER = attr.GradSkip.PAPER
READS = replace(PAPER, reads=True)
G = replace(READS, embedding="relevance")
A = replace(G, gate="token", gate_norm="dot")
C = replace(A, reads=False, prefix_tokens="include")
CANDIDATES = {"PAPER": PAPER, "+ reads": READS, "G": G, "A": A, "C": C}
REFERENCES = {"tuning": "A", "around": "C", "report": "DEFAULT"}
CHANGES: dict[str, list[Any]] = {
    "start": ["uniform"],
    "row_norm": ["mean", "none"],
    "flow_sign": ["relu"],
    "gate": ["layer", "token"],
    "gate_norm": ["l1", "l2", "signed", "dot"],
    "embedding": ["input", "relevance", "value", "projected", "ratio", "none"],
    "reads": [False],
    "first_layer": [2, 4],
    "head_norm": ["max", "l1"],
    "alpha": [0.0, 0.25, 0.75, 1.0],
    "flow_threshold": [0.0, 0.01, "mean"],
    "gini_over": ["columns", "map"],
    "head_filter": ["top25", "bottom25"],
    "gradients": ["plain"],
    "target_output": ["prob"],
}


def around(name: str, base: GradSkipSettings) -> dict[str, GradSkipSettings]:
    """Every single change of a setting."""
    return {
        f"{name}, {field}={value}": replace(base, **{field: value})
        for field, values in CHANGES.items()
        for value in values
        if getattr(base, field) != value
    }


# -- rows that are no setting of GradSkip ------------------------------------------------------------------------------


def reads_only(found: Backward) -> Tensor:
    """What prefix tokens read from patches, summed over the layers."""
    prefix, patches = found.layout.prefix, found.layout.patches
    parts = [
        (block.maps() * block.map_gradients(g))[:, :, prefix].sum((1, 2))[:, patches]
        for block, g in zip(found.record.blocks, found.g_out, strict=True)
    ]
    return torch.stack(parts).sum(0)


def gae(found: Backward) -> Tensor:
    """Generic attention explainability (Chefer et al. 2021), its rows weighted by how the head reads the tokens."""
    v = found.g_last.abs().sum(-1)
    v = v / v.sum(1, keepdim=True)
    for block, g in zip(reversed(found.record.blocks), reversed(found.g_out), strict=True):
        mean = (block.maps() * block.map_gradients(g)).clamp_min(0).mean(1)
        v = v + (v[:, None] @ mean)[:, 0]
    return v[:, found.layout.patches]


def gradient_x_token(found: Backward) -> Tensor:
    return (found.record.blocks[0].x.value * found.g_x[0]).sum(-1)[:, found.layout.patches]


def start_only(found: Backward) -> Tensor:
    settings = replace(A, first_layer=len(found.record.blocks) + 1)
    return walk(found, settings, True, None, 2**30).map.flatten(1)


FORMULAS: dict[str, Callable[[Backward], Tensor]] = {
    "start only": start_only,
    "Libra gradient x token": gradient_x_token,
    "reads only": reads_only,
    "GAE, Libra gradients": gae,
}
METHODS = {
    "rollout": attr.AttentionRollout,
    "brightness": attr.BrightnessMap,
    "centre": attr.CentreMap,
    "random": attr.RandomMap,
}


def maps_of(model: Any, images: Tensor, target: Any, settings: dict[str, GradSkipSettings]) -> dict[str, Tensor]:
    """Signed maps on the token grid, `[B, h, w]`, for every row."""
    maps: dict[str, Tensor] = {}
    passes: dict[tuple[str, str], Backward] = {}
    for name, s in {"": A, **settings}.items():
        key = s.gradients, s.target_output
        if key not in passes:
            passes[key] = backward(model, Inputs.of(images), target, rules=key[0], output=key[1])
        if name:
            maps[name] = walk(passes[key], s, True, None, 2**30).map[:, 0]
    libra = passes[A.gradients, A.target_output]
    grid = libra.layout.grid
    for name, formula in FORMULAS.items():
        if name == "reads only" and not libra.layout.prefix:
            continue
        maps[name] = formula(libra).unflatten(1, grid)
    for name, method in METHODS.items():
        extra = {"upsample": None} if name == "rollout" else {}
        heat = method(model).attribute(images, target=target, **extra)
        maps[name] = torch.nn.functional.adaptive_avg_pool2d(heat.float(), grid)[:, 0]
    return maps


# -- numbers of each image ---------------------------------------------------------------------------------------------


@torch.inference_mode()
def insertion_less_deletion(model: Any, images: Tensor, target: Tensor, maps: Tensor, fill: Tensor) -> Tensor:
    """Mean probability of the class while patches come, most relevant first, less while they go, `[B]`."""
    count = maps[0].numel()
    order = maps.flatten(1).argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(1).unflatten(1, maps.shape[1:])
    factor = images.shape[-1] // maps.shape[-1]
    rank = rank.repeat_interleave(factor, 1).repeat_interleave(factor, 2)[:, None]
    step = max(1, count // 18)
    total = torch.zeros(len(images))
    steps = range(step, count, step)
    for k in steps:
        for sign, shown in ((1, rank < k), (-1, rank >= k)):
            scores = model(torch.where(shown, images, fill)).softmax(1)
            total += sign * scores.gather(1, target[:, None])[:, 0]
    return total / len(steps)


def localisation(maps: Tensor, masks: Tensor) -> dict[str, Tensor]:
    heat, inside = maps[:, None], masks[:, None]
    return {
        "pointing": xattr.metrics.pointing(heat, inside),
        "energy": xattr.metrics.energy(heat, inside),
        "auc": xattr.metrics.auroc(maps.flatten(1), masks.flatten(1)),
    }


def scenes(name: str, seed: int, split: Any, settings: dict[str, GradSkipSettings]) -> dict[str, dict[str, Tensor]]:
    """The digit scenes: where the map lies, class sensitivity, insertion less deletion with empty patches."""
    model, single, double = data.scenes(name, seed, split)
    fill = torch.zeros(1)
    rows: dict[str, dict[str, Tensor]] = {}
    on_pairs = [maps_of(model, double.images, double.labels[:, i], settings) for i in (0, 1)]
    for row, maps in maps_of(model, single.images, single.labels, settings).items():
        rows[row] = {"blank": blank(maps), **localisation(maps, data.on_grid(single.cells))}
        sides = []
        for i in (0, 1):
            inside = data.on_grid(double.cells[:, i])[:, None]
            asked, other = on_pairs[i][row][:, None], on_pairs[1 - i][row][:, None]
            sides.append(xattr.metrics.class_sensitivity(asked, other, inside))
        rows[row]["sensitivity"] = torch.stack(sides).mean(0)
        rows[row]["ins-del"] = insertion_less_deletion(model, single.images, single.labels, maps, fill)
    return rows


def cifar(seed: int, split: str, settings: dict[str, GradSkipSettings]) -> dict[str, dict[str, Tensor]]:
    """CIFAR-10 test images that the model knows: insertion less deletion, patches to the mean colour."""
    model, images, labels = data.cifar(seed, split)
    fill = images.mean((2, 3), keepdim=True)
    return {
        row: {"blank": blank(maps), "ins-del": insertion_less_deletion(model, images, labels, maps, fill)}
        for row, maps in maps_of(model, images, labels, settings).items()
    }


def kangaroos(split: str, settings: dict[str, GradSkipSettings]) -> dict[str, dict[str, Tensor]]:
    """ViT-S/14 that marks salient objects: where the map lies, and Spearman's correlation with occluded tiles."""
    rows: dict[str, dict[str, list[Tensor]]] = {}
    for model, image, boxes in data.kangaroos(split):
        effect = occlusion(model, image)
        for row, maps in maps_of(model, image, 0, settings).items():
            found = {"blank": blank(maps), **localisation(maps, boxes)}
            tiles = torch.nn.functional.avg_pool2d(maps[:, None].double(), 2).flatten()
            same = bool((tiles == tiles[0]).all())
            found["occlusion"] = torch.tensor([0.0 if same else scipy.stats.spearmanr(tiles, effect).statistic])
            for metric, value in found.items():
                rows.setdefault(row, {}).setdefault(metric, []).append(value)
    return {row: {metric: torch.cat(values) for metric, values in of.items()} for row, of in rows.items()}


@torch.inference_mode()
def occlusion(model: Any, image: Tensor) -> Tensor:
    """How much the score falls when each of 8 x 8 tiles takes the picture's mean colour, `[64]`."""
    fill, side = image.mean((2, 3), keepdim=True)[0], image.shape[-1] // 8
    covered = image.repeat(64, 1, 1, 1)
    for i in range(64):
        y, x = side * (i // 8), side * (i % 8)
        covered[i, :, y : y + side, x : x + side] = fill
    return model(image)[:, 0] - torch.cat([model(part)[:, 0] for part in covered.split(8)])


def blank(maps: Tensor) -> Tensor:
    return (maps.flatten(1).amax(1) <= 0).double()


# -- runs --------------------------------------------------------------------------------------------------------------


def settings_of(stage: str) -> dict[str, GradSkipSettings]:
    if stage == "tuning":
        return {**CANDIDATES, **around("A", A), **around("+ reads", READS)}
    if stage == "around":
        return {"C": C, **around("C", C)}
    return {"DEFAULT": attr.GradSkip.DEFAULT, **{k: v for k, v in CANDIDATES.items() if v != attr.GradSkip.DEFAULT}}


def runs(stage: str) -> Iterator[tuple[str, Callable[[dict[str, GradSkipSettings]], Any]]]:
    seeds, split = ((1, 2), "report") if stage == "report" else ((0,), "tuning")
    for name in data.MODELS:
        yield name, lambda s, name=name: [scenes(name, seed, split, s) for seed in seeds]
    yield "vit-s14", lambda s: [kangaroos(split, s)]
    yield "cifar", lambda s: [cifar(0, split, s)]


def summary(rows: dict[str, dict[str, Tensor]], reference: str) -> dict[str, dict[str, list[float]]]:
    """Mean, and the paired difference to the reference with a bootstrap interval of 95 % over images."""
    result: dict[str, dict[str, list[float]]] = {}
    for row, found in rows.items():
        result[row] = {}
        for metric, values in found.items():
            difference = (values - rows[reference][metric]).double().numpy()
            draws = np.random.RandomState(0).randint(0, len(difference), (RESAMPLES, len(difference)))
            low, high = np.percentile(difference[draws].mean(1), [2.5, 97.5])
            mean = float(values.double().mean())
            result[row][metric] = [round(v, 4) for v in (mean, float(difference.mean()), float(low), float(high))]
    return result


def run(stage: str) -> None:
    settings = settings_of(stage)
    for name, measure in runs(stage):
        path = FOLDER / f"{stage}-{name}.json"
        if path.is_file():
            continue
        began = time.process_time()
        parts = measure(settings)
        rows = {row: {m: torch.cat([part[row][m] for part in parts]) for m in of} for row, of in parts[0].items()}
        result = {
            "stage": stage,
            "model": name,
            "images": {metric: len(values) for metric, values in next(iter(rows.values())).items()},
            "columns": ["mean", "difference to the first row", "low", "high"],
            "command": "python benchmarks/ablation.py",
            "cpu_seconds": round(time.process_time() - began),
            "versions": versions("torch", "timm"),
            "rows": summary(rows, REFERENCES[stage]),
        }
        path.write_text(json.dumps(result) + "\n", encoding="utf-8")
        print(f"{path.stem}: {result['cpu_seconds']} CPU s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--stage", choices=[*REFERENCES])
    stage = parser.parse_args().stage
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for one in [stage] if stage else REFERENCES:
        run(one)
    chosen = next(name for name, settings in CANDIDATES.items() if settings == attr.GradSkip.DEFAULT)
    tables.write(FOLDER, chosen)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
