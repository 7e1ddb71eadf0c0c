"""One run: a training, what is measured of it, and the file that holds both."""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import __version__
from ...trace.modules import in_evaluation_mode
from ..cache import cached_features
from ..mixing import LayaHead, MixingHead
from ..model import LayaModel
from ..training import Fitted, fit
from . import measures
from .data import Split
from .experiments import Experiment
from .faithfulness import completeness, faithfulness

EXAMINED = ("laya", "scalar-mix")
"""Heads whose weights are compared with what happens without a layer."""


def run(
    experiment: Experiment,
    head: str,
    seed: int,
    folder: Path,
    work: Path,
    *,
    epochs: int | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Train one head with one seed, measure it and write `<head>-<seed>.json`.

    Args:
        experiment: one of `EXPERIMENTS`.
        head: one of its heads.
        seed: of the weights and of the order of the examples.
        folder: for the result.
        work: for the state of the training, which goes on where it was, and for the features of frozen backbones.
        epochs: at most; `None` for the experiment's own.
        limit: train on the first examples only.
    """
    began = time.process_time()
    split, model = experiment.data().first(limit), experiment.build(head, seed)
    fitted = fit(
        model,
        split.train,
        split.validation,
        epochs=experiment.epochs if epochs is None else epochs,
        batch_size=128,
        optimizer=experiment.optimizer,
        patience=5,
        seed=seed,
        checkpoint=work / experiment.name / f"{head}-{seed}.pt",
        cache=work / "features",
    )
    trained = time.process_time() - began
    result: dict[str, Any] = {
        "experiment": experiment.name,
        "head": head,
        "seed": seed,
        "command": f"python -m xattr.heads.reproduce {experiment.name} --head {head} --seed {seed}",
        **measured(experiment, model, split, head, seed, work / "features"),
        "training": training(fitted, limit),
        "cpu_seconds": {"training": round(trained), "measuring": round(time.process_time() - began - trained)},
        "versions": {"xattr": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = written(result)
    (folder / f"{head}-{seed}.json").write_text(text, encoding="utf-8")
    return dict(json.loads(text))


def training(fitted: Fitted, limit: int | None) -> dict[str, Any]:
    """What the training did."""
    return {
        "validation_accuracy": fitted.accuracy,
        "epochs": len(fitted.losses),
        "best_epoch": fitted.best_epoch,
        "limit": limit,
    }


def measured(
    experiment: Experiment, model: LayaModel, split: Split, head: str, seed: int, cache: Path
) -> dict[str, Any]:
    """Everything that is measured of a trained model."""
    image, (inputs, labels) = split.test[0][:1], split.test
    test = features(model, (inputs, labels), cache)
    validation = features(model, split.validation, cache)
    with in_evaluation_mode(model.head):
        logits = measures.in_chunks(model.head, test)
    found: dict[str, Any] = {
        "accuracy": measures.right(logits, labels),
        "macro_f1": measures.macro_f1(logits.argmax(1), labels),
        **measures.sizes(model, image),
    }
    seen, held_out = (measures.explained(model.head, given) for given in (test, validation))
    if seen is not None and held_out is not None and isinstance(model.head, MixingHead):
        train = features(model, split.train, cache)
        found["attention"] = measures.attention(seen, labels, experiment.classes)
        found["checks"] = measures.checks(model.head, test, seen, labels)
        found["truncation"] = measures.truncated(model, train, test, labels, image)
        if head in EXAMINED:
            found["faithfulness"] = faithfulness(model.head, test, validation)
            found["completeness_error"] = completeness(model.head, [h[:1000] for h in test])
        if head == "laya":
            found["flagging"] = measures.flagging(model.head, held_out, split.validation[1], seen, labels)
    if head in experiment.probed:
        train = features(model, split.train, cache)
        by_layer = measures.probes((train, split.train[1]), (validation, split.validation[1]), test, seed)
        found["probes"] = [measures.right(by_layer[:, i], labels) for i in range(by_layer.shape[1])]
        if isinstance(model.head, LayaHead) and model.head.causal:
            costs = measures.depths(model, image)
            with in_evaluation_mode(model.head):
                prefixes = measures.in_chunks(model.head.prefix_logits, test)
            found["early_exit"] = {
                "laya": measures.early_exits(prefixes, labels, costs),
                "probes": measures.early_exits(by_layer, labels, costs),
            }
    return found


def features(model: LayaModel, data: tuple[Tensor, Tensor], cache: Path) -> list[Tensor]:
    """Features of all layers for all inputs, `[n, d_i]` each."""
    if model.freeze:
        return cached_features(model, data, cache)[0]
    with torch.no_grad(), in_evaluation_mode(model):
        parts = [model.features(part) for part in data[0].split(1000)]
    return [torch.cat(layer) for layer in zip(*parts, strict=True)]


def written(result: dict[str, Any]) -> str:
    """JSON with numbers of six digits, in which a list of them takes one line."""
    text = json.dumps(_shortened(result), indent=1)
    return re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), text) + "\n"


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_shortened(part) for part in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def results(folder: Path) -> list[dict[str, Any]]:
    """All results in a folder, heads and seeds in the order of their names."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*-*.json"))]


def agreement(one: Any, other: Any, path: str = "") -> list[tuple[str, float]]:
    """Where two results differ: path, and by how much; infinite where they are not both numbers.

    Seconds, versions and commands are left out.
    """
    if path in ("cpu_seconds", "versions", "command"):
        return []
    if isinstance(one, dict) and isinstance(other, dict):
        keys: Sequence[str] = sorted(one.keys() | other.keys())
        join = lambda key: f"{path}/{key}" if path else key
        return [d for key in keys for d in agreement(one.get(key), other.get(key), join(key))]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [d for i, (a, b) in enumerate(zip(one, other, strict=True)) for d in agreement(a, b, f"{path}/{i}")]
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (one, other))
    if numbers:
        return [] if one == other else [(path, abs(one - other))]
    return [] if one == other else [(path, float("inf"))]
