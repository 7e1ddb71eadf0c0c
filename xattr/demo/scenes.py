"""Every method side by side on small trained transformers, offline: one table and one picture."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm import tqdm

from .. import attr
from .._pictures import save_picture
from ..datasets import Pairs, Scenes, cell_masks, digit_scenes, embedded_model, pair_scenes
from ..metrics import class_sensitivity, cost_in_forwards, energy, pointing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ROWS", "Demo", "Row", "measure", "run"]

MODELS = ("class-token", "mean-pool")

# Name in the table -> class and arguments of `attribute`.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "GradSkip, DEFAULT": ("GradSkip", {"settings": attr.GradSkip.DEFAULT}),
    "GradSkip, PAPER": ("GradSkip", {"settings": attr.GradSkip.PAPER}),
    "GradientXToken, start only": ("GradientXToken", {"block": None}),
    "GradientXToken, libra, block 1": ("GradientXToken", {"block": 1}),
    "AttentionRollout": ("AttentionRollout", {}),
    "LRP, attnlrp": ("LRP", {"rule": "attnlrp"}),
    "LRP, gamma": ("LRP", {"rule": "gamma"}),
    "GradCam": ("GradCam", {}),
    "IntegratedGradients, 25 steps": ("IntegratedGradients", {"n_steps": 25}),
    "RandomMap (control)": ("RandomMap", {}),
    "CentreMap (control)": ("CentreMap", {}),
    "BrightnessMap (control)": ("BrightnessMap", {}),
    "EdgeMap (control)": ("EdgeMap", {}),
}


@dataclass(frozen=True)
class Row:
    """One method on one model, averaged over scenes.

    Attributes:
        model: name of the embedded model.
        method: the method, by class name.
        cost: FLOPs of one explanation, in forward passes.
        blank: number of maps without a positive value.
        energy: share of the positive mass inside the mask (the ink of the digit).
        cell: share of the positive mass inside the digit's cell, the finest that a grid of 4 x 4 patches resolves.
        pointing: share of images whose largest value lies in the digit's cell.
        sensitivity: class sensitivity on scenes with two digits, by cell.
    """

    model: str
    method: str
    cost: float
    blank: int
    energy: float
    cell: float
    pointing: float
    sensitivity: float


@dataclass(frozen=True)
class Demo:
    """What the demo made."""

    rows: tuple[Row, ...]
    figure: Figure
    scenes: int
    pairs: int

    @property
    def table(self) -> str:
        """The rows as aligned text."""
        width = max(len(row.method) for row in self.rows)
        head = f"{'method':{width}}  forwards  blank  energy: ink   cell  pointing  class sensitivity"
        lines: list[str] = []
        for model in dict.fromkeys(row.model for row in self.rows):
            lines += [f"\n{model} vision transformer", head, "-" * len(head)]
            lines += [
                f"{r.method:{width}}  {r.cost:8.2f}  {r.blank:5d}  {r.energy:11.2f}  {r.cell:5.2f}  {r.pointing:8.2f}  "
                f"{r.sensitivity:17.2f}"
                for r in self.rows
                if r.model == model
            ]
        note = (
            f"\n{self.scenes} unseen scenes of one digit among pixel-shuffled ones, all of them scanned digits; "
            f"{self.pairs} more with two digits.\n"
            f"forwards           FLOPs of one explanation in forward passes; lower is better, below higher is\n"
            f"blank              maps without any positive value (they count as energy 0)\n"
            f"energy             share of the positive mass in the digit's ink, and in its cell (chance .06 and .11)\n"
            f"pointing           share of maps whose largest value lies in the digit's cell (chance .11)\n"
            f"class sensitivity  two digits: energy in a cell, asked for its digit less asked for the other"
        )
        return "\n".join(lines) + "\n" + note

    def save(self, folder: str | Path = ".") -> Path:
        """Write the picture as `xattr-demo.png` into an existing folder.

        Raises:
            FileNotFoundError: there is no such folder.
        """
        return save_picture(self.figure, folder, "xattr-demo")


def run(scenes: int = 40, pairs: int = 20, shown: int = 3, show_progress: bool = False) -> Demo:
    """Explain sample scenes on the class-token and the mean-pooled model with every method and control.

    Runs on one thread: models this small are slower on several.

    Args:
        scenes: number of scenes with one digit.
        pairs: number of scenes with two digits.
        shown: how many scenes of each model the picture shows.
        show_progress: whether to draw a progress bar.

    Example:
        >>> from xattr.demo import run
        >>> demo = run(scenes=2, pairs=1, shown=1)
        >>> demo.rows[0].method
        'GradSkip, DEFAULT'
    """
    from ..visualization import comparison

    single, double = digit_scenes("report", n=scenes), pair_scenes("report", n=pairs)
    # Scenes with the digit in different cells, so that no place looks like the answer.
    first_of_cell = list(dict(zip(reversed(single.cells.tolist()), reversed(range(scenes)), strict=True)).values())
    chosen = sorted(first_of_cell)[:shown]
    rows, pictures, labels, shown_maps = [], [], [], {name: [] for name in ROWS}  # type: ignore[var-annotated]
    models = {name: embedded_model(name) for name in MODELS}
    with (
        _one_thread(),
        tqdm(total=len(models) * len(ROWS), disable=not show_progress, leave=False) as bar,
    ):
        for name, model in models.items():
            pictures.append(single[chosen])
            labels += [f"{name}: {int(label)}" for label in single.labels[chosen]]
            for method, (kind, arguments) in ROWS.items():
                row, maps = measure(getattr(attr, kind)(model), arguments, single, double)
                rows.append(replace(row, model=name, method=method))
                shown_maps[method] += list(maps[chosen])
                bar.update()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="no non-zero values")  # the title says what a blank map is
        figure = comparison(
            torch.cat([part.images for part in pictures]),
            {name.replace(" (control)", ""): torch.stack(maps) for name, maps in shown_maps.items()},
            masks=torch.cat([part.masks for part in pictures]),
            labels=labels,
            title="Red speaks for the class (the outlined digit), blue against it; no colour: nothing positive",
        )
    return Demo(tuple(rows), figure, scenes, pairs)


def measure(method: Any, arguments: dict[str, Any], single: Scenes, double: Pairs) -> tuple[Row, Tensor]:
    """One method on scenes with one and with two digits.

    Args:
        method: the method, with its model.
        arguments: keyword arguments of its `attribute`.
        single: scenes with one digit.
        double: scenes with two digits.

    Returns:
        The numbers (without names), and the maps of the scenes with one digit, `[n, 1, 24, 24]`.
    """
    explain: Callable[..., Tensor] = lambda images, target: method.attribute(images, target=target, **arguments)
    maps = explain(single.images, single.labels)
    first, second = (explain(double.images, double.labels[:, i]) for i in (0, 1))
    cells = double.cells.T
    to_first = class_sensitivity(first, second, cell_masks(cells[0]))
    to_second = class_sensitivity(second, first, cell_masks(cells[1]))
    inside = cell_masks(single.cells)
    cost = cost_in_forwards(
        lambda image: explain(image, single.labels[:1]), lambda image: method.forward_func(image), single.images[:1]
    )
    row = Row(
        model="",
        method="",
        cost=cost,
        blank=int((maps.sum(1).flatten(1).amax(1) <= 0).sum()),
        energy=_mean([energy(maps, single.masks)]),
        cell=_mean([energy(maps, inside)]),
        pointing=_mean([pointing(maps, inside)]),
        sensitivity=_mean([to_first, to_second]),
    )
    return row, maps.detach()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _mean(parts: Iterable[Tensor]) -> float:
    return float(torch.cat(list(parts)).mean())
