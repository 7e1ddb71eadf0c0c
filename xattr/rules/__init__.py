"""Backward rules as data: a rule set maps an operation to its other backward and leaves every value as it is.

A rule belongs to a *function* of torch, never to a module. `RULE_SETS` lists what there is:

| set | normalisation | activations | products | attention | linear layers, convolutions |
|---|---|---|---|---|---|
| `plain` | ordinary | ordinary | ordinary | ordinary | ordinary |
| `libra` | constant denominator | constant gate | half to each factor | constant map | ordinary |
| `attnlrp` | constant denominator | constant gate | half to each factor | half to each factor | ordinary |
| `cp` | constant denominator | ordinary | ordinary | constant map | ordinary |
| `epsilon` | as `attnlrp` | as `attnlrp` | as `attnlrp` | as `attnlrp` | epsilon rule |
| `gamma` | as `libra` | as `libra` | as `libra` | as `libra` | gamma rule |

In every set but `plain` a factor that only scales (a sigmoid, a softmax over channels, one over a norm) is constant.
Batch norm is the affine map of its running statistics in all of them, with `epsilon` and `gamma` as a part of the map
before it. Input times gradient plus the same over all biases is the logit under `libra` and `gamma`; under `attnlrp`
and `epsilon` (for eps -> 0) where there is no softmax (no attention); under `cp` with piecewise linear activations and
no products of two activations. The functions `cp`, `epsilon` and `gamma` make variants of a set, `res_lrp` adds a rule
at sums to `attnlrp`.

`attnlrp`, `cp`, `epsilon` and `gamma` are layer-wise relevance propagation (LRP), which is claimed as patented by its
authors.
"""

from .operation import Operation, Rule, RuleSet
from .sets import ATTNLRP, CP, EPSILON, GAMMA, LIBRA, PLAIN, RULE_SETS, cp, epsilon, gamma, res_lrp, rule_set

__all__ = [
    "ATTNLRP",
    "CP",
    "EPSILON",
    "GAMMA",
    "LIBRA",
    "PLAIN",
    "RULE_SETS",
    "Operation",
    "Rule",
    "RuleSet",
    "cp",
    "epsilon",
    "gamma",
    "res_lrp",
    "rule_set",
]
