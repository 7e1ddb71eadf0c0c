"""Numbers about explanations: localisation against a mask, class sensitivity, and cost."""

from .cost import cost_in_forwards, count_flops
from .localisation import class_sensitivity, energy, pointing

__all__ = ["class_sensitivity", "cost_in_forwards", "count_flops", "energy", "pointing"]
