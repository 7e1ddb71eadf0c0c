"""Numbers about explanations: faithfulness, localisation, segmentation, complexity, and which differences are real.

`xattr.metrics.layers` has the metrics of heads over layers; `Metric`, over many batches, needs torchmetrics.
"""

from typing import TYPE_CHECKING, Any

from .average_drop import AverageDrop, average_drop
from .complexity import effective_size, entropy, gini
from .cost import cost_in_forwards, count_flops, peak_bytes
from .curves import Curve, CurvePair, Protocol, deletion, insertion, insertion_deletion
from .faithfulness import leave_one_out, saco, sensitivity_n, violations
from .features import Features, patch_labels
from .infidelity import Infidelity, infidelity
from .localisation import (
    average_precision,
    boxes_as_masks,
    class_sensitivity,
    energy,
    grid_pointing,
    pointing,
    top_k_intersection,
)
from .perturber import Binds, Bound, Perturber
from .presets import PRESETS, Preset, PresetResult, evaluate_preset
from .randomisation import Randomisation, complexity_rise, randomisation
from .ranking import auroc
from .registry import METRICS
from .remembered import Remembered
from .segmentation import SegmentationScores, segmentation_scores
from .sensitivity import MaxSensitivity, max_sensitivity
from .statistics import (
    Difference,
    Interval,
    Ranks,
    bootstrap_interval,
    holm,
    paired_differences,
    rank_methods,
    summary_table,
)
from .text import TokenPerturber

if TYPE_CHECKING:
    from .stateful import Metric

__all__ = [
    "METRICS",
    "PRESETS",
    "AverageDrop",
    "Binds",
    "Bound",
    "Curve",
    "CurvePair",
    "Difference",
    "Features",
    "Infidelity",
    "Interval",
    "MaxSensitivity",
    "Metric",
    "Perturber",
    "Preset",
    "PresetResult",
    "Protocol",
    "Randomisation",
    "Ranks",
    "Remembered",
    "SegmentationScores",
    "TokenPerturber",
    "auroc",
    "average_drop",
    "average_precision",
    "bootstrap_interval",
    "boxes_as_masks",
    "class_sensitivity",
    "complexity_rise",
    "cost_in_forwards",
    "count_flops",
    "deletion",
    "effective_size",
    "energy",
    "entropy",
    "evaluate_preset",
    "gini",
    "grid_pointing",
    "holm",
    "infidelity",
    "insertion",
    "insertion_deletion",
    "leave_one_out",
    "max_sensitivity",
    "paired_differences",
    "patch_labels",
    "peak_bytes",
    "pointing",
    "randomisation",
    "rank_methods",
    "saco",
    "segmentation_scores",
    "sensitivity_n",
    "summary_table",
    "top_k_intersection",
    "violations",
]


def __getattr__(name: str) -> Any:
    if name == "Metric":
        from .stateful import Metric

        return Metric
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "Metric"]
