"""Backward rules as data: a rule set maps an operation to its other backward and leaves every value as it is.

A rule belongs to a *function* of torch, never to a module. `RULE_SETS` lists what there is:

* `plain`: the ordinary gradient.
* `libra`: LibraGrad (arXiv:2411.16760), under which a network of the covered operations is FullGrad-complete: input
  times gradient plus the same over all biases is the logit.
"""

from .operation import Operation, Rule, RuleSet
from .sets import LIBRA, PLAIN, RULE_SETS, rule_set

__all__ = ["LIBRA", "PLAIN", "RULE_SETS", "Operation", "Rule", "RuleSet", "rule_set"]
