"""Train the embedded models and write their cards.

``python benchmarks/train_embedded.py --model class-token --seed 0`` trains one model, without arguments all nine. What
exists is skipped, an interrupted training goes on at its last epoch (with the result it would have had), and weights
are written only if they fulfil every criterion below. ``--digits`` writes ``xattr/datasets/digits.npz`` from
scikit-learn instead.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import timm
import torch
from torch import Tensor
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from xattr.datasets import MODELS, SEEDS, Scenes, cell_masks, digit_scenes, pair_scenes, untrained_model  # noqa: E402
from xattr.datasets.scenes import CELL, SIZE  # noqa: E402

RECIPE: dict[str, Any] = {
    "epochs": 60,
    "scenes": 1500,
    "pairs": 500,
    "batch": 50,
    "rate": 2e-3,
    "warmup": 3,
    "decay": 0.05,
    "clip": 1.0,
    "noise": 0.0,
}
# The mean-pool model learns its source digits by heart (.99 on train scenes, .90 on tuning scenes) unless they come
# with noise; the other two do not need it.
RECIPES: dict[str, dict[str, Any]] = dict.fromkeys(MODELS, RECIPE) | {"mean-pool": RECIPE | {"noise": 0.15}}
MEASURED = 2000
CRITERIA: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "accuracy": ("at least 0.90 on report and on tuning scenes", lambda m: min(m["accuracy"].values()) >= 0.90),
    "brightness": (
        "the brightest pixel, ties broken at random, hits the digit in at most 0.35 of the scenes",
        lambda m: m["brightness"]["stricter"] <= 0.35,
    ),
    "centre": (
        "the centre of the image hits the digit in at most 0.35 of the scenes",
        lambda m: m["centre"]["stricter"] <= 0.35,
    ),
    "cover_item": (
        "with the digit's cell covered the true class is still predicted in at most 0.15 of the scenes",
        lambda m: m["cover_item"] <= 0.15,
    ),
    "cover_other": (
        "with the cell of a shuffled digit covered instead, accuracy falls by at most 0.03",
        lambda m: m["cover_other"] <= 0.03,
    ),
}


def write_digits() -> None:
    """scikit-learn's digits, whose values are integers from 0 to 16, as one compressed file."""
    from sklearn.datasets import load_digits

    found, path = load_digits(), ROOT / "xattr" / "datasets" / "digits.npz"
    np.savez_compressed(path, images=found.images.astype(np.uint8), labels=found.target.astype(np.uint8))


def epoch_of(recipe: dict[str, Any], seed: int, epoch: int) -> tuple[Tensor, Tensor]:
    """Images ``[n, 1, 24, 24]`` and class probabilities ``[n, 10]`` of one epoch, mixed.

    Every source of chance follows from seed and epoch alone, so a resumed training sees the same scenes. Some show two
    digits, half the probability each: trained on one digit only, a model names just one of two, and a test of class
    sensitivity on pairs would ask it about a class that it does not see.
    """
    number = 1000 * seed + epoch
    scenes = digit_scenes("train", n=recipe["scenes"], seed=number)
    pairs = pair_scenes("train", n=recipe["pairs"], seed=number)
    targets = torch.cat([F.one_hot(scenes.labels, 10).float(), F.one_hot(pairs.labels, 10).float().mean(dim=1)])
    generator = torch.Generator().manual_seed(number)
    order = torch.randperm(len(targets), generator=generator)
    images = torch.cat([scenes.images, pairs.images])[order]
    images += recipe["noise"] * torch.randn(images.shape, generator=generator)
    return images, targets[order]


def train(name: str, seed: int, checkpoint: Path, recipe: dict[str, Any]) -> Any:
    """Train one model on scenes that are new in each epoch, from `checkpoint` if there is one."""
    model: Any = untrained_model(name, seed).train()
    if name == "distilled":
        model.set_distilled_training(True)  # both heads learn, so that both prefix tokens matter
    matrices = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim != 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": recipe["decay"]}, {"params": rest, "weight_decay": 0.0}], lr=0.0
    )
    start = 0
    if checkpoint.is_file():
        state = torch.load(checkpoint, weights_only=True)
        if state["recipe"] == recipe:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            start = state["epoch"]
    steps = (recipe["scenes"] + recipe["pairs"]) // recipe["batch"]
    for epoch in range(start, recipe["epochs"]):
        images, targets = epoch_of(recipe, seed, epoch)
        loss_sum = 0.0
        for step in range(steps):
            done = epoch + step / steps
            warm = min(1.0, (done + 1 / steps) / recipe["warmup"])
            for group in optimizer.param_groups:
                group["lr"] = recipe["rate"] * warm * 0.5 * (1 + math.cos(math.pi * done / recipe["epochs"]))
            batch = slice(step * recipe["batch"], (step + 1) * recipe["batch"])
            outputs = model(images[batch])
            heads = outputs if isinstance(outputs, tuple) else (outputs,)
            loss = torch.stack([F.cross_entropy(head, targets[batch]) for head in heads]).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe["clip"])
            optimizer.step()
            loss_sum += loss.item()
        state = {"recipe": recipe, "epoch": epoch + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        partial = checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(checkpoint)  # an interruption while writing leaves the previous checkpoint
        print(f"{name}-{seed} epoch {epoch + 1}/{recipe['epochs']} loss {loss_sum / steps:.3f}", flush=True)
    return model.eval()


@torch.inference_mode()
def predict(model: torch.nn.Module, images: Tensor) -> Tensor:
    """Logits ``[n, 10]`` in chunks of 250 images."""
    return torch.cat([model(chunk) for chunk in images.split(250)])


def cover(scenes: Scenes, cells: Tensor) -> Tensor:
    """The images with one cell each set to 0."""
    return scenes.images * ~cell_masks(cells)


def shuffled_cells(scenes: Scenes, generator: torch.Generator) -> Tensor:
    """For each scene the cell of one of its shuffled digits, at random ``[n]``."""
    others = (scenes.sources >= 0).float()
    others[torch.arange(len(scenes)), scenes.cells] = 0
    return torch.multinomial(others, 1, generator=generator)[:, 0]


def pointing(heat: Tensor, scenes: Scenes, generator: torch.Generator) -> dict[str, float]:
    """Share of scenes whose highest value, ties broken at random, lies in the mask, and in the cell."""
    flat = heat.flatten(1)
    top = torch.multinomial((flat == flat.amax(dim=1, keepdim=True)).float(), 1, generator=generator)
    mask = scenes.masks.flatten(1).gather(1, top).double().mean().item()
    x, y = top[:, 0] % SIZE, top[:, 0] // SIZE
    cell = (y // CELL * (SIZE // CELL) + x // CELL == scenes.cells).double().mean().item()
    return {"mask": mask, "cell": cell, "stricter": max(mask, cell)}


def measure(model: torch.nn.Module) -> dict[str, Any]:
    """Everything the card says in numbers, on scenes the training never saw."""
    generator = torch.Generator().manual_seed(0)
    report, tuning, pairs = digit_scenes("report", MEASURED), digit_scenes("tuning", MEASURED), pair_scenes(n=1000)
    centre = torch.zeros_like(report.images)
    centre[:, :, SIZE // 2 - 1 : SIZE // 2 + 1, SIZE // 2 - 1 : SIZE // 2 + 1] = 1

    def accuracy(images: Tensor, scenes: Scenes) -> float:
        return (predict(model, images).argmax(dim=1) == scenes.labels).double().mean().item()

    plain = accuracy(report.images, report)
    top = predict(model, pairs.images).topk(2).indices.sort(dim=1).values
    return {
        "accuracy": {"report": plain, "tuning": accuracy(tuning.images, tuning)},
        "brightness": pointing(report.images, report, generator),
        "centre": pointing(centre, report, generator),
        "cover_item": accuracy(cover(report, report.cells), report),
        "cover_other": plain - accuracy(cover(report, shuffled_cells(report, generator)), report),
        "pairs_top_2": (top == pairs.labels.sort(dim=1).values).all(dim=1).double().mean().item(),
        "measured_scenes": {"report": MEASURED, "tuning": MEASURED, "pairs": 1000},
    }


def make(name: str, seed: int, checkpoints: Path) -> bool:
    """Train, round, measure and write one model; the card comes last and marks completion."""
    card_path = ROOT / ("xattr/datasets" if seed == 0 else "benchmarks") / "weights" / f"{name}-{seed}.json"
    if card_path.is_file():
        print(f"{name}-{seed} exists", flush=True)
        return True
    began = time.process_time()
    checkpoint = checkpoints / f"{name}-{seed}.pt"
    model = train(name, seed, checkpoint, RECIPES[name])
    weights = {key: value.half().contiguous() for key, value in model.state_dict().items()}
    model.load_state_dict({key: value.float() for key, value in weights.items()})  # measured as it will be loaded
    numbers = measure(model)
    print(json.dumps(numbers), flush=True)
    if failed := [text for text, fulfilled in CRITERIA.values() if not fulfilled(numbers)]:
        print(f"{name}-{seed} NOT written; failed:", *failed, sep="\n  ", flush=True)
        return False
    card = {
        "name": name,
        "seed": seed,
        "data": "digit_scenes: scikit-learn's digits, from Optical Recognition of Handwritten Digits, E. Alpaydin and "
        "C. Kaynak, UCI Machine Learning Repository, 1998, https://doi.org/10.24432/C50P49",
        "licence": "CC BY 4.0",
        "parameters": sum(p.numel() for p in model.parameters()),
        "stored": "float16",
        "training": RECIPES[name],
        "command": f"python benchmarks/train_embedded.py --model {name} --seed {seed}",
        "cpu_seconds": round(time.process_time() - began),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "timm": timm.__version__},
        "criteria": {key: text for key, (text, _) in CRITERIA.items()},
        **numbers,
    }
    card_path.parent.mkdir(parents=True, exist_ok=True)
    card_path.with_suffix(".safetensors").write_bytes(safetensors.torch.save(weights))
    card_path.write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    checkpoint.unlink()
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    parser.add_argument("--seed", type=int, choices=SEEDS, action="append", help="default: all")
    parser.add_argument("--digits", action="store_true", help="write digits.npz and stop")
    parser.add_argument("--checkpoints", type=Path, default=Path(tempfile.gettempdir()) / "captum-xattr-training")
    arguments = parser.parse_args()
    if arguments.digits:
        write_digits()
        return 0
    torch.set_num_threads(1)
    arguments.checkpoints.mkdir(parents=True, exist_ok=True)
    wanted = [(name, seed) for seed in arguments.seed or SEEDS for name in arguments.model or MODELS]
    made = [make(name, seed, arguments.checkpoints) for name, seed in wanted]  # one failure does not stop the others
    return 0 if all(made) else 1


if __name__ == "__main__":
    raise SystemExit(main())
