"""Metrics by name: those that compare a map with a model or a mask, one value for each image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import complexity, curves, faithfulness, localisation
from .average_drop import average_drop
from .infidelity import infidelity


@dataclass(frozen=True)
class Entry:
    """A metric by its function.

    Attributes:
        function: returns one value for each image, or a result that holds them.
        higher_is_better: `None` for what describes a map and says nothing of its quality.
        unit: of a value.
        field: where in the result the values are; `None` if they are the result.
    """

    function: Callable[..., Any]
    higher_is_better: bool | None
    unit: str
    field: str | None = None


METRICS: dict[str, Entry] = {
    "deletion": Entry(curves.deletion, False, "score", "value"),
    "insertion": Entry(curves.insertion, True, "score", "value"),
    "insertion_deletion": Entry(curves.insertion_deletion, True, "score", "difference"),
    "leave_one_out": Entry(faithfulness.leave_one_out, True, "Spearman's correlation"),
    "violations": Entry(faithfulness.violations, False, "share of images"),
    "sensitivity_n": Entry(faithfulness.sensitivity_n, True, "Pearson's correlation"),
    "saco": Entry(faithfulness.saco, True, "coefficient, -1 to 1"),
    "infidelity": Entry(infidelity, False, "squared score", "value"),
    "average_drop": Entry(average_drop, False, "share of the score", "drop"),
    "pointing": Entry(localisation.pointing, True, "share of images"),
    "energy": Entry(localisation.energy, True, "share of the map"),
    "grid_pointing": Entry(localisation.grid_pointing, True, "share of the map"),
    "top_k_intersection": Entry(localisation.top_k_intersection, True, "share of the mask"),
    "average_precision": Entry(localisation.average_precision, True, "precision"),
    "class_sensitivity": Entry(localisation.class_sensitivity, True, "share of the map"),
    "gini": Entry(complexity.gini, None, "index, 0 to 1"),
    "entropy": Entry(complexity.entropy, None, "nats"),
    "effective_size": Entry(complexity.effective_size, None, "share of the picture"),
}
"""Name of a metric to its function."""
