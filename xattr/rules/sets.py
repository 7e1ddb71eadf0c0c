"""The rule sets by name."""

from __future__ import annotations

from types import MappingProxyType

from . import elementwise, normalisation
from .operation import Rule, RuleSet

_EVERYWHERE: dict[str, Rule] = {"batch_norm": normalisation.batch_norm}

_LIBRA: dict[str, Rule] = {
    **_EVERYWHERE,
    "layer_norm": normalisation.layer_norm,
    "rms_norm": normalisation.rms_norm,
    "group_norm": normalisation.group_norm,
    "normalize": normalisation.normalize,
    "gelu": elementwise.gelu,
    "glu": elementwise.glu,
    "silu": elementwise.silu,
    "mish": elementwise.mish,
    "hardswish": elementwise.hardswish,
    **dict.fromkeys(("mul", "__mul__", "__rmul__", "multiply"), elementwise.multiply),
    **dict.fromkeys(("div", "__truediv__", "divide", "true_divide"), elementwise.divide),
}

PLAIN = RuleSet("plain", MappingProxyType(_EVERYWHERE))
LIBRA = RuleSet("libra", MappingProxyType(_LIBRA), attention=(0.0, 1.0))
RULE_SETS: dict[str, RuleSet] = {rules.name: rules for rules in (PLAIN, LIBRA)}


def rule_set(rules: str | RuleSet) -> RuleSet:
    """A rule set, given itself or its name.

    Raises:
        ValueError: no rule set has this name.
    """
    if isinstance(rules, RuleSet):
        return rules
    if rules not in RULE_SETS:
        raise ValueError(f"there is no rule set {rules!r}; known are {sorted(RULE_SETS)}.")
    return RULE_SETS[rules]
