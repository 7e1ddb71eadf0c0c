"""Our numbers beside those of Quantus, pytorch-grad-cam and Captum, on the same images, maps and models.

``python benchmarks/compare_metrics.py`` measures what is missing under ``docs/evidence/metrics/compared`` and writes
the table there. It needs ``benchmarks/requirements-compare.txt``. Each number is computed with all images at once, two
at a time, and one at a time: a number that depends on that says something about the batch, not about the map. Two
models trained on digit scenes: the embedded ViT, and a small CNN, which is trained here. About two CPU minutes, on one
thread.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _compared import ROWS, Row
from torch import Tensor, nn

import xattr
from xattr.datasets import digit_scenes, embedded_model

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "metrics" / "compared"
IMAGES = 12
MODELS = ("class-token", "cnn")


def cnn() -> tuple[nn.Module, float]:
    """Three convolutions and a mean over places, trained for 12 epochs; and its accuracy on report scenes."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if after < 64 else [nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    model, scenes = nn.Sequential(*layers), digit_scenes("train", 3000)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(12):
        for rows in torch.randperm(len(scenes)).split(50):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(scenes.images[rows]), scenes.labels[rows]).backward()
            optimiser.step()
    return model.eval(), accuracy(model.eval())


def accuracy(model: nn.Module) -> float:
    scenes = digit_scenes("report", 500)
    with torch.no_grad():
        return (model(scenes.images).argmax(1) == scenes.labels).double().mean().item()


def numbers(row: Row, whose: str, size: int, setting: tuple[Any, ...]) -> tuple[list[Any] | str, float]:
    """What one side says, and its CPU seconds; or the error that it ends in."""
    torch.manual_seed(0)
    np.random.seed(0)
    began = time.process_time()
    try:
        found = getattr(row, whose)(*setting, size)
    except AttributeError as error:
        return f"{type(error).__name__}: {error}", 0.0
    return np.asarray(found, dtype=np.float64).tolist(), time.process_time() - began


def side(row: Row, whose: str, setting: tuple[Any, ...]) -> tuple[dict[str, Any], float]:
    """The same with all images at once, two, and one at a time, and with all in reverse; and the median seconds."""
    model, *batch = setting
    timed = [numbers(row, whose, IMAGES, setting) for _ in range(3)]
    found = {"all": timed[0][0]}
    found |= {name: numbers(row, whose, size, setting)[0] for name, size in (("two", 2), ("one", 1))}
    reverse, _ = numbers(row, whose, IMAGES, (model, *(t.flip(0) for t in batch)))
    found["reversed"] = reverse[::-1] if row.each and not isinstance(reverse, str) else reverse
    return found, sorted(seconds for _, seconds in timed)[1]


def measure(name: str) -> None:
    path = FOLDER / f"{name}.json"
    if path.exists():
        return
    model, right = cnn() if name == "cnn" else (embedded_model(name), accuracy(embedded_model(name)))
    images = digit_scenes("report", IMAGES).images
    with torch.no_grad():
        classes = model(images).argmax(1)
    maps = gradients(model, images, classes)
    rows = {}
    for title, row in ROWS.items():
        found: dict[str, Any] = {"tool": row.tool, "differs": row.differs}
        for whose in ("ours", "theirs"):
            found[whose], found[f"seconds_{whose}"] = side(row, whose, (model, images, maps, classes))
        rows[title] = found
        print(f"{name}: {title}", flush=True)
    result = {
        "model": name,
        "accuracy": right,
        "images": f"report, {IMAGES} with one digit",
        "maps": "gradient of the logit of the predicted class, ties broken by noise of 1e-9",
        "ties": 1 - len(maps.unique()) / maps.numel(),
        "seeds": "0 before each call, for torch and numpy",
        "command": "python benchmarks/compare_metrics.py",
        "versions": {
            "xattr": xattr.__version__,
            "python": platform.python_version(),
            **{tool: importlib.metadata.version(tool) for tool in ("torch", "numpy", "captum", "quantus", "grad-cam")},
        },
        "rows": rows,
    }
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def gradients(model: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """Ties, which each tool breaks in its own way, are broken beforehand."""
    x = images.clone().requires_grad_()
    scores = model(x.view_as(x)).gather(1, classes[:, None]).sum()
    maps = torch.autograd.grad(scores, x)[0].double()
    noise = torch.randn(maps.shape, generator=torch.Generator().manual_seed(0), dtype=maps.dtype)
    return maps + 1e-9 * maps.abs().amax((1, 2, 3), keepdim=True) * noise


def shown(values: dict[str, Any]) -> str:
    """The mean for all images at once; for the others too, where any number differs."""
    if isinstance(values["all"], str):
        return str(values["all"])
    arrays = [np.array(value) for value in values.values()]
    means = [f"{array.mean():.4g}" for array in arrays]
    apart = max(_apart(arrays[0], other) for other in arrays[1:])
    return means[0] if apart < 1e-5 else f"{' / '.join(means)} (up to {apart:.2g})"


def _apart(one: Any, other: Any) -> float:
    """The largest difference, in parts of the largest number."""
    return float(np.abs(np.asarray(one) - other).max() / max(1e-12, np.abs(one).max()))


def table() -> str:
    lines = [
        "# The same numbers by other tools",
        "",
        f"{IMAGES} report scenes; maps are gradients of the predicted class's logit, without ties. Means over images, "
        "and over points for a curve. Where any number depends on the batch or the order, the means are those with all "
        "images at once / two at a time / one at a time / all in reverse, and behind them is the largest change of a "
        "number, in parts of the largest number. *apart*: largest difference between ours and theirs, all at once, in "
        "such parts. Seconds: CPU, one thread, all at once, median of three. Made by `python "
        "benchmarks/compare_metrics.py`; all numbers in the files.",
    ]
    for name in MODELS:
        result = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        versions = ", ".join(f"{tool} {version}" for tool, version in result["versions"].items())
        lines += [
            "",
            f"## {name}",
            "",
            f"Accuracy {result['accuracy']:.3f}. {versions}. Seeds: {result['seeds']}.",
            "",
            "| number | ours | theirs | apart | s, ours | s, theirs | what differs |",
            "|---" * 7 + "|",
        ]
        for title, row in result["rows"].items():
            ours, theirs = row["ours"]["all"], row["theirs"]["all"]
            apart = "" if isinstance(theirs, str) else f"{_apart(ours, theirs):.1g}"
            seconds = [f"{row[f'seconds_{whose}']:.2f}" for whose in ("ours", "theirs")]
            cells = [f"{title} ({row['tool']})", shown(row["ours"]), shown(row["theirs"]), apart, *seconds]
            lines.append(f"| {' | '.join([*cells, row['differs']])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        measure(name)
    (FOLDER / "README.md").write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main()
