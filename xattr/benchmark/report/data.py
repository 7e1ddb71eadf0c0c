"""What a report shows, as plain data: no run folder, no table library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Cell:
    """Mean of one metric for one method over the images.

    Attributes:
        mean: over the images where the metric is defined; NaN without any.
        low: lower end of its 95 % interval; NaN where there is none.
        high: upper end.
        n: images that count.
        undefined: images that do not: the metric has no value there, or the method failed.
        different: whether it differs from the reference after Holm's correction; `None` for the reference itself.
        difference: mean difference from the reference over the images they share; NaN: that of the means is taken.
    """

    mean: float
    low: float
    high: float
    n: int
    undefined: int = 0
    different: bool | None = None
    difference: float = math.nan


@dataclass(frozen=True)
class Column:
    """One metric.

    Attributes:
        name: of the metric.
        higher_is_better: `None` for what says nothing of quality.
        unit: of a value.
        protocol: how it was measured, in words.
    """

    name: str
    higher_is_better: bool | None
    unit: str
    protocol: str = ""


@dataclass(frozen=True)
class Entry:
    """One method in the leaderboard.

    Attributes:
        method: its name.
        control: whether it is a control, which knows nothing of the model.
        cells: by the name of the metric; a metric may be missing.
        errors: images on which it failed.
        seconds: of one explanation, by the clock; NaN where unknown, as all costs.
        forwards: cost of one explanation in forwards of the model.
        flops: floating point operations of one explanation.
        peak_bytes: most memory that one explanation held.
    """

    method: str
    control: bool
    cells: Mapping[str, Cell]
    errors: int = 0
    seconds: float = math.nan
    forwards: float = math.nan
    flops: float = math.nan
    peak_bytes: float = math.nan


@dataclass(frozen=True)
class Curves:
    """Mean score while pixels are removed or shown, for each method.

    Attributes:
        metric: `"deletion"`, `"insertion"` or another name.
        fractions: share of the picture at each step, `[S]`.
        by_method: mean, lower and upper end of its 95 % interval at each step, three times `[S]`; NaN where unknown.

    Raises:
        ValueError: a curve has another length than `fractions`.
    """

    metric: str
    fractions: Sequence[float]
    by_method: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]]

    def __post_init__(self) -> None:
        for name, lines in self.by_method.items():
            if [len(line) for line in lines] != [len(self.fractions)] * 3:
                found = [len(line) for line in lines]
                raise ValueError(
                    f"{self.metric} of {name}: found lengths {found}; expected 3 of {len(self.fractions)}."
                )


@dataclass(frozen=True)
class Tile:
    """One image with the maps of all methods.

    Attributes:
        image: its name.
        label: its true class; empty if unknown.
        explained: the class that is explained.
        picture: bytes, `[H, W, 3]` or `[H, W]`.
        maps: by method, as the method returned them, `[h, w]` of any size; a method that failed is missing.
        scores: by method and metric.
        errors: why a map is missing, by method.
        disagreement: 1 less the mean rank correlation of pairs of maps; NaN for fewer than two maps.

    Raises:
        ValueError: the picture is no picture, or a map has not two axes.
    """

    image: str
    label: str
    explained: str
    picture: NDArray[np.uint8]
    maps: Mapping[str, NDArray[Any]]
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    disagreement: float = math.nan

    def __post_init__(self) -> None:
        shape, kind = np.shape(self.picture), np.asarray(self.picture).dtype
        if kind != np.uint8 or 0 in shape or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))):
            raise ValueError(
                f"picture of {self.image}: found {kind} {list(shape)}; expected bytes [H, W, 3] or [H, W]."
            )
        for name, heat in self.maps.items():
            if np.ndim(heat) != 2 or 0 in np.shape(heat):
                raise ValueError(f"map of {name}, {self.image}: found {list(np.shape(heat))}; expected [h, w].")


@dataclass(frozen=True)
class Layers:
    """What a method says of the layers of the model.

    Attributes:
        method: its name.
        title: what the values are, in words.
        kind: `"gate"`, `"head weights"`, `"attention"` or another word.
        values: `[L]`, or `[L, H]` with one value for each head; NaN where there is none.
        layers: names, `[L]`.

    Raises:
        ValueError: the values do not fit the names.
    """

    method: str
    title: str
    kind: str
    values: NDArray[Any]
    layers: Sequence[str]

    def __post_init__(self) -> None:
        shape = np.shape(self.values)
        if len(shape) not in (1, 2) or shape[0] != len(self.layers):
            raise ValueError(f"{self.method}, {self.kind}: found {list(shape)} for {len(self.layers)} layers.")


@dataclass(frozen=True)
class Section:
    """One model on one data set.

    Attributes:
        model: its name.
        data: name of the data set.
        images: how many there are.
        reference: the method that the others are compared with.
        columns: metrics, in the order shown.
        entries: methods, in the order shown.
        curves: scores while pixels are removed or shown.
        tiles: images with their maps.
        layers: what methods say of layers.
        agreement: names of metrics, Kendall's tau of their orders of the methods `[M, M]`, and Kendall's W of all.
    """

    model: str
    data: str
    images: int
    reference: str
    columns: tuple[Column, ...]
    entries: tuple[Entry, ...]
    curves: tuple[Curves, ...] = ()
    tiles: tuple[Tile, ...] = ()
    layers: tuple[Layers, ...] = ()
    agreement: tuple[Sequence[str], Sequence[Sequence[float]], float] | None = None

    @property
    def methods(self) -> list[str]:
        """All that take part anywhere, in the order of the leaderboard."""
        names = [entry.method for entry in self.entries]
        names += [name for curves in self.curves for name in curves.by_method]
        names += [name for tile in self.tiles for name in (*tile.maps, *tile.errors)]
        return list(dict.fromkeys(names))

    @property
    def controls(self) -> set[str]:
        """Those that are controls."""
        return {entry.method for entry in self.entries if entry.control}


@dataclass(frozen=True)
class Report:
    """All that the page shows.

    Attributes:
        title: of the page.
        sections: one for each model and data set.
        provenance: versions, seeds, hashes, threads, hardware.
        command: that makes the run again.
        notes: what a reader has to know, such as failures.
        overview: method, its mean rank over sections and metrics (1 is best), and whether it is a control.
    """

    title: str
    sections: tuple[Section, ...]
    provenance: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    notes: tuple[str, ...] = ()
    overview: tuple[tuple[str, float, bool], ...] = ()
