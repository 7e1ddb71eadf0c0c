"""Explainers side by side by many metrics, on trained models and real pictures: one result file and table a model.

``python benchmarks/evaluation.py`` measures what is missing under ``docs/evidence/evaluation`` and writes the tables
there. Report data only; nothing was chosen on them. About an hour and a half of CPU on one thread. ``XATTR_DATA`` names
the folder with ``kangaroo.tar``; `xattr.datasets.borrowed.NO_DEPS` installs the ViT-S/14.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import _data as data
import timm
import torch
from _versions import versions
from torch import Tensor

from xattr import attr, metrics
from xattr.attr import GradSkip
from xattr.datasets import MODELS, cell_masks, digit_scenes, embedded_model, untrained_model
from xattr.datasets.borrowed import efficientnet_lite0

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "evaluation"
SEEDS, SCENES, PHOTOGRAPHS = (1, 2), 500, 24
HIGHER = {
    "dropped": True,
    "mean fill": True,
    "blur": True,
    "leave-one-out": True,
    "violations": False,
    "SaCo": True,
    "pointing": True,
    "energy": True,
    "AP": True,
}
Explain = Callable[[Tensor, Tensor], Tensor]
Values = dict[str, dict[str, Tensor]]


def explainers(model: Any, untrained: Any, transformer: bool) -> dict[str, Explain]:
    """Methods and controls; a map is `[B, 1, h, w]` at the method's own size."""

    def of(method: Any, **arguments: Any) -> Explain:
        return lambda x, target: method.attribute(x, target=target, **arguments).detach().sum(1, keepdim=True)

    controls = {
        f"{name} (control)": of(getattr(attr, name)(model))
        for name in ("RandomMap", "CentreMap", "BrightnessMap", "EdgeMap")
    }
    if transformer:
        skip = GradSkip(model)
        return {
            "GradSkip": of(skip, upsample=None),
            "GradSkip, PAPER": of(skip, settings=GradSkip.PAPER, upsample=None),
            "GradientXToken": of(attr.GradientXToken(model), upsample=None),
            "AttentionRollout": of(attr.AttentionRollout(model), upsample=None),
            "LRP, attnlrp": of(attr.LRP(model), rule="attnlrp"),
            "IntegratedGradients, 20 steps": of(attr.IntegratedGradients(model), n_steps=20),
            **controls,
            "GradSkip, blurred (control)": of(attr.BlurredMap(skip)),
            "GradSkip, untrained model (control)": of(GradSkip(untrained), upsample=None),
        }
    cam = attr.GradCam(model)
    return {
        "GradCam": of(cam),
        "LRP, gamma": of(attr.LRP(model), rule="gamma"),
        "Input x gradient": of(attr.LRP(model), rule="plain"),
        "IntegratedGradients, 20 steps": of(attr.IntegratedGradients(model), n_steps=20),
        **controls,
        "LRP, gamma, blurred (control)": of(attr.BlurredMap(attr.LRP(model)), rule="gamma"),
        "GradCam, untrained model (control)": of(attr.GradCam(untrained)),
    }


def located(maps: Tensor, masks: Tensor) -> dict[str, Tensor]:
    maps = torch.nn.functional.interpolate(maps.float(), size=masks.shape[2:], mode="bilinear")
    return {
        "pointing": metrics.pointing(maps, masks),
        "energy": metrics.energy(maps, masks),
        "AP": metrics.average_precision(maps, masks),
    }


def faithful(bounds: Mapping[str, Any], x: Tensor, maps: Tensor, steps: int) -> dict[str, Tensor]:
    """The first way of removing serves all metrics, the others the curves alone."""
    first = next(iter(bounds.values()))
    found = {name: metrics.insertion_deletion(b, x, maps, steps=steps).difference for name, b in bounds.items()}
    return {
        **found,
        "leave-one-out": metrics.leave_one_out(first, x, maps),
        "violations": metrics.violations(first, x, maps).double(),
        "SaCo": metrics.saco(first, x, maps),
    }


def scenes(name: str, seed: int) -> Values:
    """An embedded model on its share of the scenes: tokens dropped, and patches filled with the background."""
    model, drawn = embedded_model(name, seed), digit_scenes("report", SCENES)
    share = slice(SEEDS.index(seed), None, len(SEEDS))
    x, masks = drawn.images[share], cell_masks(drawn.cells)[share]
    with torch.no_grad():
        target = model(x).argmax(1)
    bounds = {
        "dropped": metrics.Remembered(metrics.Perturber(model).bind(x, target)),
        "mean fill": metrics.Remembered(metrics.Perturber(model, "patch", 0.0).bind(x, target)),
    }
    rows = {}
    for row, explain in explainers(model, untrained_model(name), True).items():
        maps = torch.cat([explain(a, b) for a, b in zip(x.split(50), target.split(50), strict=True)])
        rows[row] = {**faithful(bounds, x, maps, 28), **located(maps, masks)}
    return rows


def network() -> Values:
    """EfficientNet-Lite0 on photographs of wallabies: 7 x 7 tiles, filled with the mean or blurred."""
    model, untrained = efficientnet_lite0(), timm.create_model("tf_efficientnet_lite0").eval()
    tiles = metrics.patch_labels((7, 7), (224, 224))
    rows: dict[str, list[dict[str, Tensor]]] = {}
    for x, masks in data.wallabies(model, PHOTOGRAPHS):
        target = torch.tensor([data.WALLABY])
        bounds = {
            name: metrics.Remembered(metrics.Perturber(model, tiles, fill).bind(x, target))
            for name, fill in (("mean fill", "mean"), ("blur", "blur"))
        }
        for row, explain in explainers(model, untrained, False).items():
            maps = explain(x, target)
            rows.setdefault(row, []).append({**faithful(bounds, x, maps, 7), **located(maps, masks)})
    return joined(rows)


def transformer() -> Values:
    """The ViT-S/14 that marks salient objects: its score of the region it marks; 8 x 8 tiles filled with the mean."""
    rows: dict[str, list[dict[str, Tensor]]] = {}
    tiles = metrics.patch_labels((8, 8), (224, 224))
    for model, x, boxes in data.kangaroos("report"):
        bound = metrics.Remembered(metrics.Perturber(model, tiles, "mean", "logit").bind(x, 0))
        masks = torch.nn.functional.interpolate(boxes[:, None].float(), size=(224, 224)) > 0
        named = explainers(model, model, True)
        named.pop("GradSkip, untrained model (control)")
        for row, explain in named.items():
            maps = explain(x, torch.tensor([0]))
            whole = torch.nn.functional.interpolate(maps.float(), size=(224, 224), mode="bilinear")
            found = {"leave-one-out": metrics.leave_one_out(bound, x, whole)}
            rows.setdefault(row, []).append({**found, **located(maps, masks)})
    return joined(rows)


def joined(rows: Mapping[str, list[dict[str, Tensor]]]) -> Values:
    return {row: {m: torch.cat([one[m] for one in of]) for m in of[0]} for row, of in rows.items()}


def of_seeds(name: str) -> Values:
    parts = [scenes(name, seed) for seed in SEEDS]
    return joined({row: [part[row] for part in parts] for row in parts[0]})


RUNS: dict[str, tuple[str, Callable[[], Values]]] = {
    **{
        name: (
            f"{name} model, {SCENES} report scenes, half of them by each of the seeds {SEEDS}, predicted class",
            lambda name=name: of_seeds(name),  # type: ignore[misc]
        )
        for name in MODELS
    },
    "vit-s14": ("ViT-S/14 for salient objects, photographs of kangaroos with boxes, its own region", transformer),
    "efficientnet-lite0": ("EfficientNet-Lite0, photographs of kangaroos with boxes, class wallaby", network),
}


def run(name: str) -> None:
    path = FOLDER / f"{name}.json"
    if path.is_file():
        return
    began = time.process_time()
    what, measure = RUNS[name]
    rows = measure()
    measured = [metric for metric in HIGHER if metric in next(iter(rows.values()))]
    values = {metric: {row: of[metric] for row, of in rows.items()} for metric in measured}
    result = {
        "what": what,
        "command": "python benchmarks/evaluation.py",
        "cpu_seconds": round(time.process_time() - began),
        "versions": versions("torch", "timm"),
        "table": metrics.summary_table(values, HIGHER, next(iter(rows))),
        "agreement": agreement(values),
    }
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{name}: {result['cpu_seconds']} CPU s", flush=True)


def agreement(values: Mapping[str, Mapping[str, Tensor]]) -> str:
    """The mean rank of each row over the metrics, and whether the metrics agree."""
    ranks = metrics.rank_methods(values, HIGHER)
    order = ranks.mean_rank.argsort().tolist()
    listed = ", ".join(f"{ranks.methods[i]} {float(ranks.mean_rank[i]):.1f}" for i in order)
    return f"Mean rank over the metrics: {listed}. Kendall's W {ranks.kendall_w:.2f}."


def table() -> str:
    lines = [
        "# Explainers by many metrics",
        "",
        "Report data; nothing was chosen on them. *dropped*, *mean fill*, *blur*: insertion less deletion by each way "
        "of removing, 28 steps of patches (EfficientNet: 7 steps of 7 x 7 tiles). Leave-one-out (Spearman), violations "
        "and SaCo by the first of them in a table. Pointing, energy and AP in the digit's cell or in the boxes. "
        "Controls know nothing of the trained model, but for the blurred map. Made by `python "
        "benchmarks/evaluation.py`.",
    ]
    for name in RUNS:
        path = FOLDER / f"{name}.json"
        if path.is_file():
            found = json.loads(path.read_text(encoding="utf-8"))
            lines += ["", f"## {name}", "", found["what"] + ".", "", found["table"], "", found["agreement"]]
    return "\n".join(lines) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in RUNS:
        run(name)
        (FOLDER / "README.md").write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main()
