"""How fast perturbed forwards are beside plain ones: achieved FLOP/s as a ratio, measured in one run, and FLOPs.

``python benchmarks/metrics.py`` measures what is missing under ``docs/evidence/metrics/throughput`` and writes the
table there: insertion and deletion of 28 steps with timm's ViT-S/16 (random weights), patches dropped or filled, and
with ResNet-18, pixels filled. About three CPU minutes in all, on one thread. Every run takes turns with plain forwards
of the same images in one batch. To measure again, delete a result.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from _versions import versions
from torch import Tensor

from xattr.metrics import Perturber, count_flops, insertion_deletion

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "metrics" / "throughput"
IMAGES, SIZE, STEPS, REPEATS, PLAIN = 2, 224, 28, 3, 4
VIT, CNN = "vit_small_patch16_224", "resnet18"
# Model, unit, baseline, and how many examples one forward may hold: as the budget has it, or eight.
RUNS: dict[str, tuple[str, Any, str, int | None]] = {
    "vit-drop": (VIT, "patch", "drop_tokens", None),
    "vit-drop-8": (VIT, "patch", "drop_tokens", 8),
    "vit-mean": (VIT, "patch", "mean", None),
    "vit-mean-8": (VIT, "patch", "mean", 8),
    "cnn-mean": (CNN, "pixel", "mean", None),
    "cnn-mean-8": (CNN, "pixel", "mean", 8),
}


def seconds(function: Callable[[], Any], times: int = 1) -> float:
    """Of this process's one thread, so that other programs count less."""
    began = time.process_time()
    for _ in range(times):
        function()
    return (time.process_time() - began) / times


def setting(name: str) -> tuple[Any, Tensor, Tensor]:
    torch.manual_seed(0)
    model = timm.create_model(name).eval()
    side = SIZE // 16 if name == VIT else SIZE
    return model, torch.randn(IMAGES, 3, SIZE, SIZE), torch.randn(IMAGES, 1, side, side)


def measure(run: str) -> None:
    path = FOLDER / f"{run}.json"
    if path.exists():
        return
    name, unit, baseline, limit = RUNS[run]
    model, images, maps = setting(name)
    perturber = Perturber(model, unit, baseline, internal_batch_size=limit)
    bound = perturber.bind(images)

    def plain() -> Any:
        with torch.no_grad():
            return model(images)

    pair = lambda: insertion_deletion(bound, images, maps, steps=STEPS)
    whole = count_flops(lambda: insertion_deletion(perturber, images, maps, steps=STEPS))
    flops, one = count_flops(pair), count_flops(plain) / IMAGES
    seconds(plain)
    rows = []
    for _ in range(REPEATS):
        before, during, after = seconds(plain, PLAIN), seconds(pair), seconds(plain, PLAIN)
        rows.append((flops / during / 1e9, one * IMAGES / ((before + after) / 2) / 1e9))
    ratios = [perturbed / forward for perturbed, forward in rows]
    result = {
        "model": name,
        "unit": unit,
        "operator": bound.features.operator,
        "internal_batch_size": limit,
        "images": IMAGES,
        "size": SIZE,
        "steps": STEPS,
        "forwards_per_image": flops / IMAGES / one,
        "forwards_per_image_with_bind": whole / IMAGES / one,
        "gflop_of_a_forward": one / 1e9,
        "gflops_perturbed": [perturbed for perturbed, _ in rows],
        "gflops_plain": [forward for _, forward in rows],
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "seed": 0,
        "threads": 1,
        "machine": platform.machine(),
        "command": "python benchmarks/metrics.py",
        "versions": versions("torch", "timm"),
    }
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"{run}: {result['ratio']:.2f}", flush=True)


def table() -> str:
    lines = [
        "# What perturbed forwards achieve",
        "",
        f"Insertion and deletion of {STEPS} steps as one pair, {IMAGES} images of {SIZE} pixels, random weights (seed "
        "0), one thread, CPU seconds. *forwards*: FLOPs of the pair for each image, over those of one plain forward; "
        "*with bind*: with what finds out how the model is run, the classes, and memory, most of it once a call, so "
        "that its share falls with the number of images. *perturbed*, *plain*: GFLOP/s, median; *ratio*: of the two, "
        f"median of {REPEATS} (lowest to highest), each taken with plain forwards of the {IMAGES} images right before "
        "and behind. FLOPs are matrix products, convolutions and attention. *a forward*: how many examples it may "
        "hold. Made by `python benchmarks/metrics.py`; versions in the files.",
        "",
        "| model | operator | a forward | forwards | with bind | perturbed | plain | ratio |",
        "|---" * 8 + "|",
    ]
    for run in RUNS:
        r = json.loads((FOLDER / f"{run}.json").read_text(encoding="utf-8"))
        cells = [
            r["model"],
            f"{r['unit']}, {r['operator']}",
            str(r["internal_batch_size"] or "by budget"),
            f"{r['forwards_per_image']:.1f}",
            f"{r['forwards_per_image_with_bind']:.1f}",
            f"{statistics.median(r['gflops_perturbed']):.0f}",
            f"{statistics.median(r['gflops_plain']):.0f}",
            f"{r['ratio']:.2f} ({min(r['ratios']):.2f} to {max(r['ratios']):.2f})",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for run in RUNS:
        measure(run)
    (FOLDER / "README.md").write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main()
