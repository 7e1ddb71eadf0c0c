"""Pictures of results: profiles of every run, the headline, early exits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .experiments import Experiment
from .faithfulness import ALPHA, CONTRIBUTION, DEPTH, IG, PROTOCOLS
from .summary import Run, by_class, lead, mean_of, of_head

_ROWS = (("alpha", "label/all", "attention\nby true class"),
         ("alpha", "predicted/all", "attention\nby predicted class"),
         ("contribution", "label/all", "contribution to the\nprediction, by true class"))  # fmt: skip


def draw_profiles(experiment: Experiment, laya: Sequence[Run], path: Path) -> None:
    """Attention and exact contributions by class and layer, one column a run."""
    from ...visualization._canvas import Picture, save_figure

    classes, depth = experiment.classes, len(experiment.layers)
    wide = 0.35 + 0.2 * depth + 0.35
    figure = Picture(figsize=(2.3 + max(1.25, wide) * len(laya), 8.0), layout="constrained")
    axes = figure.subplots(len(_ROWS), len(laya), squeeze=False)
    for i, (of, group, name) in enumerate(_ROWS):
        maps = [by_class(run, of, group).numpy() for run in laya]
        limit = 1.0 if of == "alpha" else float(np.nanmax(np.abs(maps)))
        for j, (run, values) in enumerate(zip(laya, maps, strict=True)):
            ax = axes[i][j]
            low, colours = (0.0, "Reds") if of == "alpha" else (-limit, "RdBu_r")
            image = ax.imshow(values, vmin=low, vmax=limit, cmap=colours, aspect="auto")
            ax.set_facecolor("0.85")  # a class without samples
            ax.set_xticks(range(depth), [str(k + 1) for k in range(depth)], fontsize=7)
            ax.set_yticks(range(len(classes)), classes if j == 0 else [], fontsize=7)
            if i == 0:
                ax.set_title(f"seed {run['seed']}", fontsize=9)
            if i + 1 == len(_ROWS):
                ax.set_xlabel("layer", fontsize=8)
            if j == 0:
                ax.set_ylabel(name, fontsize=8)
        figure.colorbar(image, ax=list(axes[i]), fraction=0.03, pad=0.01).ax.tick_params(labelsize=7)
    save_figure(figure, path)


def draw_headline(results: Mapping[str, Sequence[Run]], path: Path) -> None:
    """Faithfulness of attention less that of others, under each protocol, one colour an experiment."""
    from ...visualization._canvas import Picture, save_figure

    shown = {name: of_head(runs, "laya") for name, runs in results.items() if of_head(runs, "laya")}
    others = ((DEPTH, "depth prior"), (CONTRIBUTION, "exact contribution"), (IG, "integrated gradients (prob)"))
    figure = Picture(figsize=(11, 1.6 + 0.11 * len(PROTOCOLS) * (len(shown) + 1)), layout="constrained")
    axes = figure.subplots(1, len(others), sharey=True)
    step = 0.8 / len(shown)
    for ax, (other, title) in zip(axes, others, strict=True):
        for k, (name, laya) in enumerate(shown.items()):
            for i, protocol in enumerate(PROTOCOLS):
                found = mean_of(lead(protocol, ALPHA, other)(run) for run in laya)
                y = i - 0.4 + (k + 0.5) * step
                label = name if i == 0 else None
                ax.plot(found.mean, y, "o", color=f"C{k}", markersize=3.5, label=label)
                if found.n > 1:
                    ax.plot([found.low, found.high], [y, y], color=f"C{k}", linewidth=1.2)
        ax.axvline(0, color="0.4", linewidth=0.8)
        for i in range(1, len(PROTOCOLS)):
            ax.axhline(i - 0.5, color="0.9", linewidth=0.8)
        ax.set_title(f"attention less {title}", fontsize=9)
        ax.locator_params(axis="x", nbins=5)
        ax.tick_params(labelsize=7)
    axes[0].set_yticks(range(len(PROTOCOLS)), list(PROTOCOLS), fontsize=7)
    axes[0].invert_yaxis()
    axes[1].set_xlabel("difference of faithfulness (Spearman), mean and 95 % interval over seeds", fontsize=8)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    save_figure(figure, path)


def draw_exits(causal: Sequence[Run], path: Path) -> None:
    """Accuracy against cost of early exits: a causal LAYA head and linear probes, one line a run."""
    from ...visualization._canvas import Picture, save_figure

    figure = Picture(figsize=(5, 3.6), layout="constrained")
    ax = figure.subplots()
    for who, colour, name in (("probes", "0.5", "linear probe on each layer"), ("laya", "C3", "LAYA, causal scorer")):
        for i, run in enumerate(causal):
            points = run["early_exit"][who]
            ax.plot([p["cost"] for p in points], [p["accuracy"] for p in points], ".-", color=colour, linewidth=0.9,
                    label=name if i == 0 else None)  # fmt: skip
    ax.set_xlabel("mean share of the backbone's FLOPs", fontsize=9)
    ax.set_ylabel("accuracy", fontsize=9)
    ax.tick_params(labelsize=8)
    ax.legend(fontsize=8, frameon=False)
    save_figure(figure, path)
