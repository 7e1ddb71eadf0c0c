"""The paper's Fashion-MNIST experiment: ``python -m xattr.heads.reproduce``.

An MLP of 512, 256 and 128 units (linear, LayerNorm, GELU) is trained together with each head: Adam at 3e-4, batches of
128, pixels / 255, the last 6,000 training images for validation, patience 5, at most 50 epochs. One run is one result
file; runs that have one are left out, and one that was killed goes on at its last epoch. Two to three minutes a run on
one core. The table of all runs and the profile of each LAYA head are written at the end.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..datasets.fashion import FASHION_CLASSES, fashion_mnist
from ..metrics.cost import count_flops
from ..trace.modules import in_evaluation_mode
from ._parts import glorot
from .mixing import MixingHead
from .model import LayaModel
from .profiles import Profile, profile
from .training import fit

WIDTHS = (512, 256, 128)
SEEDS = (1337, 0, 1, 2, 3)
VALIDATION = 6000
MOMENTS = ("mean", "std", "half_width")
WORK = Path(tempfile.gettempdir()) / "captum-xattr-training" / "laya"
OPTIONS: dict[str, dict[str, Any]] = {
    "laya-paper": {},
    "last": {},
    "scalar-mix": {"width": 96, "pre_norm": False},
    "concat": {"width": 96, "pre_norm": False},
    "mean": {"width": 96, "pre_norm": False},
    "last-mlp": {"parameters": 143_341},
}
"""Heads by name, with the sizes of the paper; the last two are not in it."""


def backbone(widths: Iterable[int] = WIDTHS) -> nn.Sequential:
    """The MLP, with Keras's defaults: Glorot's weights, zero biases, an epsilon of 1e-3 in its norms."""
    parts: list[nn.Module] = [nn.Flatten()]
    before = 784
    for width in widths:
        parts += [nn.Linear(before, width), nn.LayerNorm(width, eps=1e-3), nn.GELU()]
        before = width
    network = nn.Sequential(*parts)
    glorot(network)
    return network


def build(head: str, seed: int) -> LayaModel:
    """Network and head with the weights of a seed; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LayaModel(backbone(), 10, head=head, freeze=False, example=torch.zeros(1, 784), **OPTIONS[head])
        glorot(model)
    return model


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Adam as in Keras."""
    return torch.optim.Adam(parameters, lr=3e-4, eps=1e-7)


def run(
    head: str, seed: int, folder: Path, *, work: Path = WORK, epochs: int = 50, limit: int | None = None
) -> dict[str, Any]:
    """One training and its result, written to ``<head>-<seed>.json``.

    Args:
        head: one of `OPTIONS`.
        seed: of the weights and of the order of the images.
        folder: for the result.
        work: for the state of the training, and for the weights in the end.
        epochs: how many at most.
        limit: train on the first images only.
    """
    began = time.process_time()
    images, labels = fashion_mnist("train")
    x = images.float() / 255
    if limit is not None:
        x, labels = torch.cat([x[:limit], x[-VALIDATION:]]), torch.cat([labels[:limit], labels[-VALIDATION:]])
    model = build(head, seed)
    fitted = fit(
        model,
        (x[:-VALIDATION], labels[:-VALIDATION]),
        (x[-VALIDATION:], labels[-VALIDATION:]),
        epochs=epochs,
        batch_size=128,
        optimizer=adam,
        patience=5,
        seed=seed,
        checkpoint=work / f"{head}-{seed}.pt",
    )
    test, named = fashion_mnist("test")
    logits, alpha = predictions(model, test.float() / 255)
    predicted = logits.argmax(1)
    size = sum(p.numel() for p in model.backbone.parameters())
    image = test[:1].float() / 255
    with torch.no_grad(), in_evaluation_mode(model):
        of_backbone, of_all = count_flops(lambda: model.backbone(image)), count_flops(lambda: model(image))
    result = {
        "data": "Fashion-MNIST",
        "head": head,
        "seed": seed,
        "command": f"python -m xattr.heads.reproduce --head {head} --seed {seed}",
        "accuracy": float((predicted == named).double().mean()),
        "macro_f1": macro_f1(predicted, named),
        "validation_accuracy": fitted.accuracy,
        "epochs": len(fitted.losses),
        "best_epoch": fitted.best_epoch,
        "parameters": {"backbone": size, "head": sum(p.numel() for p in model.head.parameters())},
        "flops": {"backbone": of_backbone, "head": of_all - of_backbone},
        "profiles": None if alpha is None else profiles(alpha, named, predicted),
        "cpu_seconds_of_the_last_run": round(time.process_time() - began),
        "versions": {"xattr": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    model.save(work / f"{head}-{seed}")
    (folder / f"{head}-{seed}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


@torch.inference_mode()
def predictions(model: LayaModel, images: Tensor) -> tuple[Tensor, Tensor | None]:
    """Logits `[n, C]`, and `alpha` `[n, L]` of a head that has it."""
    with in_evaluation_mode(model):
        if not isinstance(model.head, MixingHead):
            return torch.cat([model(part) for part in images.split(1000)]), None
        seen = [model.explain(part) for part in images.split(1000)]
    return torch.cat([one.logits for one in seen]), torch.cat([one.alpha for one in seen])


def macro_f1(predicted: Tensor, labels: Tensor) -> float:
    """Mean over the classes of the harmonic mean of precision and recall."""
    scores = []
    for c in labels.unique():
        hits = float(((predicted == c) & (labels == c)).sum())
        scores.append(2 * hits / float((predicted == c).sum() + (labels == c).sum()))
    return sum(scores) / len(scores)


def profiles(alpha: Tensor, labels: Tensor, predicted: Tensor) -> dict[str, Any]:
    """Mean `alpha` by true class, of all images and of those predicted wrongly."""
    found = {}
    for which in ("all", "wrong"):
        one = profile(alpha, labels, predicted, which=which, classes=FASHION_CLASSES)  # type: ignore[arg-type]
        rounded = lambda t: [[None if v != v else round(v, 4) for v in row] for row in t.tolist()]
        found[which] = {
            "counts": one.counts.tolist(),
            **{moment: rounded(getattr(one, moment)) for moment in MOMENTS},
        }
    return found


def table(folder: Path) -> str:
    """All results as a table, one row a run and the mean of each head."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*-*.json"))]
    lines = [
        "# LAYA on Fashion-MNIST",
        "",
        "An MLP of 512, 256 and 128 units trained together with each head (`python -m xattr.heads.reproduce`); test "
        "images. *share*: FLOPs of the head over those of the backbone. *alpha*: mean weight of each layer.",
        "",
        "| head | seed | accuracy | macro F1 | epochs | parameters | share | alpha |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for head in OPTIONS:
        of_head = [run for run in runs if run["head"] == head]
        for run in of_head:
            alpha = run["profiles"]["all"]["mean"][0] if run["profiles"] else []
            lines.append(
                f"| {head} | {run['seed']} | {run['accuracy']:.4f} | {run['macro_f1']:.4f} | {run['epochs']} | "
                f"{run['parameters']['head']:,} | {run['flops']['head'] / run['flops']['backbone']:.3f} | "
                f"{' '.join(f'{a:.2f}' for a in alpha)} |"
            )
        if len(of_head) > 1:
            mean = sum(run["accuracy"] for run in of_head) / len(of_head)
            lines.append(f"| **{head}** | mean of {len(of_head)} | **{mean:.4f}** | | | | | |")
    return "\n".join(lines) + "\n"


def draw(path: Path) -> None:
    """The depth profile of a result, beside it."""
    from ..visualization import depth_profile

    run = json.loads(path.read_text(encoding="utf-8"))
    found = run["profiles"]["all"]
    counts = torch.tensor(found["counts"])
    mean, std, half = (torch.tensor([[math.nan if v is None else v for v in row] for row in found[k]]) for k in MOMENTS)
    shown = Profile(("all", *FASHION_CLASSES), counts, mean, std, half, "label", "all")
    title = f"{path.stem}: mean attention to each layer, {int(counts[0]):,} test images"
    depth_profile(shown, layers=["512 units", "256 units", "128 units"], title=title, save=path.with_suffix(".png"))


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(prog="python -m xattr.heads.reproduce", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--head", action="append", choices=sorted(OPTIONS), help="default: those of the paper")
    parser.add_argument("--seed", action="append", type=int, help=f"default: {SEEDS}")
    parser.add_argument("--folder", type=Path, default=Path("docs/evidence/laya/fashion-mnist"))
    parser.add_argument("--work", type=Path, default=WORK, help="for the state of the trainings and the weights")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--limit", type=int, help="train on the first images only, for a try")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for seed in chosen.seed or SEEDS:
        for head in chosen.head or list(OPTIONS)[:4]:
            if (chosen.folder / f"{head}-{seed}.json").is_file():
                print(f"{head}-{seed} is there")
                continue
            result = run(head, seed, chosen.folder, work=chosen.work, epochs=chosen.epochs, limit=chosen.limit)
            print(f"{head}-{seed}: accuracy {result['accuracy']:.4f}", flush=True)
    (chosen.folder / "README.md").write_text(table(chosen.folder), encoding="utf-8")
    for path in chosen.folder.glob("laya-*.json"):
        draw(path)


if __name__ == "__main__":
    main()
