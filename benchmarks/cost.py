"""What explanations cost beside one forward and backward: seconds and memory as ratios, measured in one run.

``python benchmarks/cost.py`` explains one image with timm's ViT-B/16 (random weights) on one thread. Every method takes
turns with a plain forward and backward to the pixels (frozen weights, fused attention); the median of the ratios of CPU
seconds is taken. FLOPs and peak bytes are counted. The table goes to ``docs/evidence/cost``.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import captum.attr
import timm
import torch
from torch import Tensor

import xattr
from xattr import attr
from xattr.metrics import count_flops, peak_bytes

FILE = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "cost" / "README.md"
SALIENCY, GRADIENTS = "Captum Saliency", "Captum IntegratedGradients, 50 steps"


def plain(model: Any, x: Tensor) -> Any:
    """A forward, and a backward to the pixels."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(model(x.view_as(x))[:, 1].sum(), x)


METHODS: dict[str, Callable[[Any, Tensor], Any]] = {
    "forward and backward": plain,
    SALIENCY: lambda m, x: captum.attr.Saliency(m).attribute(x, target=1),
    "AttentionRollout": lambda m, x: attr.AttentionRollout(m).attribute(x, target=1),
    "GradCam": lambda m, x: attr.GradCam(m, "blocks.11.norm1").attribute(x, target=1),
    "GradientXToken": lambda m, x: attr.GradientXToken(m).attribute(x, target=1),
    "GradSkip, PAPER": lambda m, x: attr.GradSkip(m).attribute(x, target=1, settings=attr.GradSkip.PAPER),
    "GradSkip, DEFAULT": lambda m, x: attr.GradSkip(m).attribute(x, target=1),
    "LRP, attnlrp": lambda m, x: attr.LRP(m).attribute(x, target=1, rule="attnlrp"),
    "LRP, gamma": lambda m, x: attr.LRP(m).attribute(x, target=1, rule="gamma"),
    GRADIENTS: lambda m, x: captum.attr.IntegratedGradients(m).attribute(
        x, target=1, n_steps=50, internal_batch_size=10
    ),
}


def setting() -> tuple[Any, Tensor]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = timm.create_model("vit_base_patch16_224").eval()
    for p in model.parameters():
        p.requires_grad_(False)
    return model, torch.randn(1, 3, 224, 224)


def seconds(function: Callable[[], Any]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began


def gflop(function: Callable[[], Any]) -> str:
    try:
        return f"{count_flops(function) / 1e9:.1f}"
    except RuntimeError:  # torch's counter cannot watch a leaf, which Captum hands over
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    model, x = setting()
    base = lambda: plain(model, x)
    base()
    lines, bytes_, times = [], {}, {}
    for name, run in METHODS.items():
        one = lambda run=run: run(model, x)
        one()
        times[name] = statistics.median(seconds(one) / seconds(base) for _ in range(1 if name == GRADIENTS else rounds))
        bytes_[name] = peak_bytes(one)
        print(f"{name}: {times[name]:.2f}", flush=True)
    for name, run in METHODS.items():
        ratios = (times[name], times[name] / times[SALIENCY], times[GRADIENTS] / times[name])
        memory = bytes_[name] / bytes_["forward and backward"]
        cells = [name, gflop(lambda run=run: run(model, x)), *(f"{r:.2f}" for r in ratios), f"{memory:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(
        f"""# Cost

One image, timm's ViT-B/16 with random weights, one CPU thread; CPU seconds as the median ratio to a forward and
backward to the pixels that took turns with the method. Peak: most bytes of tensors alive at once, counted. Machines
differ; the counts (GFLOP, peak) do not. Made by `python benchmarks/cost.py` (xattr {xattr.__version__}, torch
{torch.__version__}, timm {timm.__version__}, captum {captum.__version__}, {platform.machine()}).

| method | GFLOP | seconds / fwd and bwd | seconds / Saliency | IG's seconds / seconds | peak / fwd and bwd |
|---|---|---|---|---|---|
"""
        + "\n".join(lines)
        + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
