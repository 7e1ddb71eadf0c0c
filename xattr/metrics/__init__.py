"""Numbers about explanations: localisation against a mask, class sensitivity, ranking, and cost."""

from .cost import cost_in_forwards, count_flops
from .localisation import class_sensitivity, energy, pointing
from .ranking import auroc

__all__ = ["auroc", "class_sensitivity", "cost_in_forwards", "count_flops", "energy", "pointing"]
