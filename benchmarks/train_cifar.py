"""Train a class-token transformer with a convolution stem on CIFAR-10, and write its weights and card.

``python benchmarks/train_cifar.py --seed 0`` takes about an hour on one core; an interrupted training goes on at its
last epoch. ``XATTR_DATA`` names the folder with ``cifar10_train.npz`` and ``cifar10_test.npz`` (JPEG bytes).
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import math
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import timm
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from xattr.datasets.cifar import untrained_cifar_model
from xattr.datasets.models import folder_of

RECIPE: dict[str, Any] = {
    "epochs": 14,
    "batch": 100,
    "rate": 1.5e-3,
    "warmup": 1,
    "decay": 0.05,
    "clip": 1.0,
    "smoothing": 0.1,
    "augmentation": "shift by up to 4 pixels, mirror",
}


def photographs(split: str) -> tuple[Tensor, Tensor]:
    """Images ``[n, 3, 32, 32]`` in [-1, 1] and their labels."""
    found = np.load(Path(os.environ["XATTR_DATA"]) / f"cifar10_{split}.npz")
    ends, data = found["offsets"], found["jpeg"].tobytes()
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(data[a:b]))) for a, b in itertools.pairwise(ends)])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
    return images, torch.from_numpy(found["labels"])


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    shifts = torch.randint(0, 9, (len(images), 2), generator=generator).tolist()
    padded = F.pad(images, (4, 4, 4, 4))
    moved = torch.stack([one[:, y : y + 32, x : x + 32] for one, (y, x) in zip(padded, shifts, strict=True)])
    mirror = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(mirror[:, None, None, None], moved.flip(3), moved)


def train(seed: int, checkpoint: Path) -> Any:
    images, labels = photographs("train")
    model: Any = untrained_cifar_model(seed).train()
    groups: dict[bool, list[Tensor]] = {True: [], False: []}
    for p in model.parameters():
        groups[p.ndim > 1].append(p)
    optimizer = torch.optim.AdamW(
        [
            {"params": groups[True], "weight_decay": RECIPE["decay"]},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        lr=0.0,
    )
    start = 0
    if checkpoint.is_file():
        state = torch.load(checkpoint, weights_only=True)
        if state["recipe"] == RECIPE:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            start = state["epoch"]
    steps = len(images) // RECIPE["batch"]
    for epoch in range(start, RECIPE["epochs"]):
        generator = torch.Generator().manual_seed(1000 * seed + epoch)
        order, total = torch.randperm(len(images), generator=generator), 0.0
        for step in range(steps):
            done = epoch + step / steps
            warm = min(1.0, (done + 1 / steps) / RECIPE["warmup"])
            for group in optimizer.param_groups:
                group["lr"] = RECIPE["rate"] * warm * 0.5 * (1 + math.cos(math.pi * done / RECIPE["epochs"]))
            rows = order[step * RECIPE["batch"] : (step + 1) * RECIPE["batch"]]
            batch = augmented(images[rows].float() / 127.5 - 1, generator)
            loss = F.cross_entropy(model(batch), labels[rows], label_smoothing=RECIPE["smoothing"])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), RECIPE["clip"])
            optimizer.step()
            total += loss.item()
        state = {"recipe": RECIPE, "epoch": epoch + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        partial = checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(checkpoint)
        print(f"cifar-{seed} epoch {epoch + 1}/{RECIPE['epochs']} loss {total / steps:.3f}", flush=True)
    return model.eval()


@torch.inference_mode()
def accuracy(model: Any) -> float:
    images, labels = photographs("test")
    found = [model(chunk.float() / 127.5 - 1).argmax(1) for chunk in images.split(250)]
    return (torch.cat(found) == labels).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoints", type=Path, default=Path(tempfile.gettempdir()) / "captum-xattr-training")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.checkpoints.mkdir(parents=True, exist_ok=True)
    card_path = folder_of(arguments.seed) / f"cifar-{arguments.seed}.json"
    if card_path.is_file():
        return print(f"{card_path.name} exists")
    began = time.process_time()
    model = train(arguments.seed, arguments.checkpoints / f"cifar-{arguments.seed}.pt")
    weights = {
        key: (value.half() if value.is_floating_point() else value).contiguous()
        for key, value in model.state_dict().items()
    }
    model.load_state_dict(weights)
    card = {
        "name": "cifar",
        "seed": arguments.seed,
        "data": "CIFAR-10, A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        "parameters": sum(p.numel() for p in model.parameters()),
        "stored": "float16",
        "training": RECIPE,
        "command": f"python benchmarks/train_cifar.py --seed {arguments.seed}",
        "cpu_seconds_of_the_last_run": round(time.process_time() - began),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "timm": timm.__version__},
        "accuracy": accuracy(model),
    }
    card_path.with_suffix(".safetensors").write_bytes(safetensors.torch.save(weights))
    card_path.write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(card))


if __name__ == "__main__":
    main()
