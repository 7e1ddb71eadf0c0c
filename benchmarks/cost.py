"""What explanations cost beside one forward and backward: seconds and memory as ratios, measured in one run.

``python benchmarks/cost.py`` explains one image with timm's ViT-B/16 (random weights) on one thread. Every method takes
turns with a plain forward and backward to the pixels (frozen weights, fused attention), and the median of the ratios is
printed. FLOPs are counted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import captum.attr
import timm
import torch
from torch import Tensor

from xattr import attr
from xattr.metrics import count_flops


def plain(model: Any, x: Tensor) -> Any:
    """A forward, and a backward to the pixels."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(model(x.view_as(x))[:, 1].sum(), x)


METHODS: dict[str, Callable[[Any, Tensor], Any]] = {
    "forward and backward": plain,
    "Captum Saliency": lambda m, x: captum.attr.Saliency(m).attribute(x, target=1),
    "AttentionRollout": lambda m, x: attr.AttentionRollout(m).attribute(x, target=1),
    "GradCam": lambda m, x: attr.GradCam(m, "blocks.11.norm1").attribute(x, target=1),
    "GradientXToken": lambda m, x: attr.GradientXToken(m).attribute(x, target=1),
    "GradSkip, PAPER": lambda m, x: attr.GradSkip(m).attribute(x, target=1, settings=attr.GradSkip.PAPER),
    "GradSkip, DEFAULT": lambda m, x: attr.GradSkip(m).attribute(x, target=1),
    "LRP, attnlrp": lambda m, x: attr.LRP(m).attribute(x, target=1, rule="attnlrp"),
    "LRP, gamma": lambda m, x: attr.LRP(m).attribute(x, target=1, rule="gamma"),
    "Captum IntegratedGradients, 50": lambda m, x: captum.attr.IntegratedGradients(m).attribute(
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
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    model, x = setting()
    print(f"{'method':32} GFLOP  seconds, of forward and backward")
    for name, run in METHODS.items():
        run(model, x)
        count = 1 if "50" in name else rounds
        ratios = [seconds(lambda: run(model, x)) / seconds(lambda: plain(model, x)) for _ in range(count)]  # noqa: B023
        try:
            flops = count_flops(lambda: run(model, x)) / 1e9  # noqa: B023
        except RuntimeError:  # torch's counter cannot watch a leaf, which Captum hands over
            flops = float("nan")
        print(f"{name:32} {flops:5.0f}  {statistics.median(ratios):32.2f}", flush=True)


if __name__ == "__main__":
    main()
