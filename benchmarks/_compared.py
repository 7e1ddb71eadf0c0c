"""The numbers that compare_metrics.py computes twice: by ours, and by another tool.

Each takes a model, images, maps, classes, and how many images go at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import captum.attr
import captum.metrics
import numpy as np
import torch
from torch import Tensor, nn

from xattr.metrics import Perturber, deletion, entropy, gini
from xattr.metrics.features import ranked
from xattr.metrics.infidelity import infidelity
from xattr.metrics.road import imputed
from xattr.metrics.sensitivity import max_sensitivity

try:
    import quantus
    from pytorch_grad_cam.metrics import road as grad_cam
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputSoftmaxTarget
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}. Install what is compared: pip install -r benchmarks/requirements-compare.txt") from None

STEPS, DRAWS = 36, 64
PERCENT = tuple(range(10, 100, 10))
Number = Callable[[nn.Module, Tensor, Tensor, Tensor, int], Any]


@dataclass(frozen=True)
class Row:
    """One number, by both.

    Attributes:
        tool: the other one.
        ours: how we compute it.
        theirs: how they do.
        differs: where the definitions part; empty where they coincide.
        each: whether there is a number for each image, or one for all.
    """

    tool: str
    ours: Number
    theirs: Number
    differs: str = ""
    each: bool = True


def batched(function: Callable[[nn.Module, Tensor, Tensor, Tensor], Any]) -> Number:
    """The same of some images at a time."""

    def number(model: nn.Module, x: Tensor, maps: Tensor, classes: Tensor, size: int) -> Any:
        parts = zip(x.split(size), maps.split(size), classes.split(size), strict=True)
        return np.concatenate([np.asarray(function(model, *part)) for part in parts])

    return number


def by_quantus(metric: Callable[[], Any], softmax: bool = True) -> Number:
    """Quantus takes all images, and a batch size."""

    def number(model: nn.Module, x: Tensor, maps: Tensor, classes: Tensor, size: int) -> Any:
        found = metric()(model, x.numpy(), classes.numpy(), maps.numpy().copy(), softmax=softmax, batch_size=size)
        return list(found.values()) if isinstance(found, dict) else found

    return number


def _quiet(metric: Any, **settings: Any) -> Callable[[], Any]:
    return lambda: metric(disable_warnings=True, **settings)


# Pixel flipping


def _flipped(model: nn.Module, x: Tensor, maps: Tensor, classes: Tensor) -> Any:
    return deletion(model, x, maps, classes, unit="pixel", baseline=0.0, steps=STEPS)


_flipping = {"features_in_step": 24 * 24 // STEPS, "perturb_baseline": "black"}

# ROAD


def _removed(maps: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
    """Pixels removed at each step, most relevant first and least relevant first, boolean `[B, S, H * W]`."""
    rank = ranked(maps.flatten(1))[0].argsort(1)[:, None]
    number = torch.tensor(counts)[:, None]
    return rank < number, rank >= rank.shape[-1] - number


def _without_noise(model: nn.Module, x: Tensor, removed: Tensor) -> Tensor:
    """Probabilities, `[B, S, classes]`."""
    keep = ~removed.flatten(0, 1).view(-1, 1, *x.shape[2:])
    filled = imputed(x.repeat_interleave(removed.shape[1], 0), keep, noise=0)
    with torch.no_grad():
        return model(filled).softmax(1).view(*removed.shape[:2], -1)


def _above(maps: Tensor) -> list[int]:
    """How many values are not below the percentiles 10, 20, .., 90, as pytorch-grad-cam removes them."""
    n = maps[0].numel()
    return [n - math.ceil((n - 1) * p / 100) for p in PERCENT]


def _road(model: nn.Module, x: Tensor, maps: Tensor, classes: Tensor) -> Tensor:
    first, last = (_without_noise(model, x, removed) for removed in _removed(maps, _above(maps)))
    index = classes[:, None, None].expand(-1, len(PERCENT), 1)
    return (last - first).gather(2, index).squeeze(2).mean(1) / 2


def _road_as_shipped(model: nn.Module, x: Tensor, maps: Tensor, classes: Tensor) -> Tensor:
    bound = Perturber(model, "pixel", "road").bind(x, classes)
    first, last = (bound.score(~removed) for removed in _removed(maps, _above(maps)))
    return (last - first).mean(1) / 2


def _road_accuracy(model: nn.Module, x: Tensor, maps: Tensor, classes: Tensor, size: int) -> Tensor:
    first, _ = _removed(maps, [int(maps[0].numel() * p / 100) for p in PERCENT])
    parts = zip(x.split(size), first.split(size), strict=True)
    probabilities = torch.cat([_without_noise(model, *part) for part in parts])
    return (probabilities.argmax(2) == classes[:, None]).double().mean(0)


def _cams(maps: Tensor) -> Any:
    """From 0 to 1, as pytorch-grad-cam takes them: it ranks one less the map."""
    low, high = maps.amin((1, 2, 3), keepdim=True), maps.amax((1, 2, 3), keepdim=True)
    return ((maps - low) / (high - low))[:, 0].numpy()


def _their_road(noise: float) -> Callable[[nn.Module, Tensor, Tensor, Tensor], Any]:
    def number(model: nn.Module, x: Tensor, maps: Tensor, classes: Tensor) -> Any:
        targets = [ClassifierOutputSoftmaxTarget(int(c)) for c in classes]
        imputer = grad_cam.NoisyLinearImputer(noise=noise)
        scores = [
            [
                grad_cam.PerturbationConfidenceMetric(order(p, imputer))(x, _cams(maps), targets, model)
                for p in PERCENT
            ]
            for order in (grad_cam.RemoveLeastRelevantFirst, grad_cam.RemoveMostRelevantFirst)
        ]  # fmt: skip
        return (np.mean(scores[0], 0) - np.mean(scores[1], 0)) / 2

    return number


def _their_road_as_shipped(model: nn.Module, x: Tensor, maps: Tensor, classes: Tensor) -> Any:
    targets = [ClassifierOutputSoftmaxTarget(int(c)) for c in classes]
    return grad_cam.ROADCombined()(x, _cams(maps), targets, model)


def _share_removed(percent: int) -> Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]:
    def number(model: nn.Module, x: Tensor, maps: Tensor, classes: Tensor) -> Tensor:
        found = deletion(model, x, maps.clamp_min(0), classes, unit="pixel", baseline=0.0, steps=10)
        return found.fractions[:, percent // 10]

    return number


def _their_share_removed(percent: int) -> Callable[[nn.Module, Tensor, Tensor, Tensor], Any]:
    order = grad_cam.RemoveMostRelevantFirst(100 - percent, lambda image, kept: kept)

    def number(model: nn.Module, x: Tensor, maps: Tensor, classes: Tensor) -> Any:
        kept = [order(image, torch.from_numpy(cam)) for image, cam in zip(x, _cams(maps.clamp_min(0)), strict=True)]
        return 1 - torch.stack(kept).mean((1, 2))

    return number


# Infidelity and sensitivity


def _infidelity(which: str) -> Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]:
    settings = {"perturbation": "gaussian", "size": 0.1, "samples": DRAWS, "score": "logit"}
    return lambda model, x, maps, classes: getattr(infidelity(model, x, maps, classes, **settings), which)


def _their_infidelity(same_draws: bool, **settings: Any) -> Callable[[nn.Module, Tensor, Tensor, Tensor], Any]:
    def number(model: nn.Module, x: Tensor, maps: Tensor, classes: Tensor) -> Any:
        draws = torch.randn(DRAWS, *x.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64)

        def perturb(repeated: Tensor) -> tuple[Tensor, Tensor]:
            # Captum repeats each image as often as there are draws, one image after the other.
            noise = draws.repeat(len(x), 1, 1, 1) if same_draws else torch.randn(repeated.shape, dtype=torch.float64)
            noise = (0.1 * noise).to(repeated)
            return noise, repeated - noise

        return captum.metrics.infidelity(
            model, perturb, x, maps.float(), target=classes, n_perturb_samples=DRAWS, **settings
        )

    return number


def _sensitivity(model: nn.Module, x: Tensor, maps: Tensor, classes: Tensor) -> Tensor:
    gradient = captum.attr.Saliency(model).attribute
    return max_sensitivity(lambda z, target: gradient(z, target=target, abs=False), x, classes).value


def _their_sensitivity(model: nn.Module, x: Tensor, maps: Tensor, classes: Tensor) -> Any:
    return captum.metrics.sensitivity_max(captum.attr.Saliency(model).attribute, x, target=classes, abs=False)


_OWN_DRAWS = "the draws: ours are the same for every image; theirs go on from image to image"
ROWS: dict[str, Row] = {
    "pixel flipping, points 1 to 36": Row(
        "Quantus PixelFlipping",
        batched(lambda *a: _flipped(*a).curve[:, 1:]),
        by_quantus(_quiet(quantus.PixelFlipping, **_flipping)),
    ),
    "pixel flipping, area": Row(
        "Quantus PixelFlipping",
        batched(lambda *a: _flipped(*a).value),
        by_quantus(_quiet(quantus.PixelFlipping, return_auc_per_sample=True, **_flipping)),
        "their curve starts at the first step, and its area is not divided by the number of steps; it is taken by a "
        "function that numpy 2 has no longer",
    ),
    "ROAD accuracy without noise, 10 to 90 %": Row(
        "Quantus ROAD",
        _road_accuracy,
        by_quantus(_quiet(quantus.ROAD, percentages=list(PERCENT), noise=0.0)),
        "theirs is the accuracy on the first batch",
        each=False,
    ),
    "ROAD without noise, (LeRF - MoRF) / 2": Row(
        "pytorch-grad-cam ROAD", batched(_road), batched(_their_road(0.0))
    ),
    "ROAD with the default noise": Row(
        "pytorch-grad-cam ROADCombined",
        batched(_road_as_shipped),
        batched(_their_road_as_shipped),
        "noise, of a standard deviation of .01 in both: the same for every image (ours), drawn anew (theirs)",
    ),
    **{
        f"share of pixels removed by a map with ties, nominal {percent} %": Row(
            "pytorch-grad-cam ROAD",
            batched(_share_removed(percent)),
            batched(_their_share_removed(percent)),
            "negative values are set to 0: ours breaks ties at random, theirs removes all from a percentile on",
        )
        for percent in (90, 70, 50)
    },
    "Gini index": Row("Quantus Sparseness", batched(lambda m, x, maps, c: gini(maps)), by_quantus(
        _quiet(quantus.Sparseness)), "theirs adds 1e-7 to a map whose largest value, over all images, is 1"
    ),
    "entropy": Row("Quantus Complexity", batched(lambda m, x, maps, c: entropy(maps)), by_quantus(
        _quiet(quantus.Complexity))
    ),
    "infidelity, same draws": Row("Captum infidelity", batched(_infidelity("raw")), batched(_their_infidelity(True))),
    "infidelity, same draws, best factor": Row(
        "Captum infidelity", batched(_infidelity("value")), batched(_their_infidelity(True, normalize=True))
    ),
    "infidelity, own draws": Row(
        "Captum infidelity", batched(_infidelity("raw")), batched(_their_infidelity(False)), _OWN_DRAWS
    ),
    "max-sensitivity": Row(
        "Captum sensitivity_max",
        batched(_sensitivity),
        batched(_their_sensitivity),
        f"{_OWN_DRAWS}; ours calls Captum's image by image",
    ),
}  # fmt: skip
