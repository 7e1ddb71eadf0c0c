"""The rule sets by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from . import elementwise, linear_maps, normalisation, products, relevance, sums
from .linear_maps import Around
from .names import ACTIVATIONS, HOMOGENEOUS
from .operation import Rule, RuleSet

_CONVOLUTIONS = tuple(f"conv{way}{size}d" for way in ("", "_transpose") for size in "123")
_MULTIPLY = ("mul", "__mul__", "__rmul__", "multiply")
_SUMS = ("add", "__add__", "__radd__")
_MATRIX_PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "einsum")

_NORMALISATION: dict[str, Rule] = {
    "batch_norm": normalisation.batch_norm,
    "layer_norm": normalisation.layer_norm,
    "rms_norm": normalisation.rms_norm,
    "group_norm": normalisation.group_norm,
    "instance_norm": normalisation.instance_norm,
    "normalize": normalisation.normalize,
    "local_response_norm": elementwise.by_ratio(1.0),
    **dict.fromkeys(("grid_sample", "prelu"), products.first_only),
    "lerp": products.interpolated,
    **dict.fromkeys(("threshold", "_threshold"), products.threshold),
    **dict.fromkeys(("norm", "linalg_norm", "linalg_vector_norm", "vector_norm"), products.norm),
    **dict.fromkeys(("div", "__truediv__", "divide", "true_divide"), products.divide),
}
_BOUNDED: dict[str, Rule] = dict.fromkeys(
    ("relu6", "hardtanh", "clamp", "clip", "clamp_min", "clamp_max"), elementwise.bounded
)
_GATED: dict[str, Rule] = {
    "gelu": elementwise.gelu,
    "glu": elementwise.glu,
    "silu": elementwise.silu,
    "mish": elementwise.mish,
    "hardswish": elementwise.hardswish,
    **_BOUNDED,
    **dict.fromkeys(("elu", "selu", "celu", "tanh", "softsign"), elementwise.by_ratio(1.0)),
    **dict.fromkeys(("tanhshrink", "softshrink"), elementwise.by_ratio(0.0)),
}
_HALVED: dict[str, Rule] = {
    **dict.fromkeys(("linear", *_CONVOLUTIONS), linear_maps.ordinary),
    **dict.fromkeys(
        (*_MULTIPLY, *_MATRIX_PRODUCTS, "dot", "inner", "outer", "ger", "kron", "bilinear"), products.product
    ),
    **dict.fromkeys(("addmm", "baddbmm", "addcmul"), products.added_product),
    **dict.fromkeys(("pow", "__pow__"), products.power),
    "square": products.square,
    "sqrt": products.square_root,
}


def _around_linear(convolution: Around, linear: Around) -> dict[str, Rule]:
    return {
        **dict.fromkeys(_CONVOLUTIONS, linear_maps.linear_map(convolution)),
        "linear": linear_maps.linear_map(linear),
        "batch_norm": linear_maps.batch_norm(convolution, linear),
    }


def _frozen(*parts: Mapping[str, Rule]) -> Mapping[str, Rule]:
    return MappingProxyType({name: rule for part in parts for name, rule in part.items()})


PLAIN = RuleSet("plain", _frozen({"batch_norm": normalisation.batch_norm}))
"""The ordinary gradient."""

_CONSTANT_ATTENTION = (0.0, 1.0)
_LIBRA = _frozen(_NORMALISATION, _GATED, _HALVED)
LIBRA = RuleSet("libra", _LIBRA, _CONSTANT_ATTENTION, HOMOGENEOUS)
"""LibraGrad (arXiv:2411.16760): complete wherever it applies."""

_ATTNLRP = _frozen(_LIBRA, dict.fromkeys(_MATRIX_PRODUCTS, products.multilinear))
ATTNLRP = RuleSet("attnlrp", _ATTNLRP, (0.25, 0.5), HOMOGENEOUS | {"softmax"})
"""AttnLRP (arXiv:2402.05602): half of the relevance to each factor of a product, attention included."""


def cp(activation: Literal["ordinary", "gate"] = "ordinary") -> RuleSet:
    """CP-LRP: attention and denominators are constant, products keep their ordinary gradient.

    Args:
        activation: smooth activations with their ordinary gradient (as in AliLRP), or as an input times a constant
            gate, as those that are cut off (ReLU6) are in any case.
    """
    if activation not in ("ordinary", "gate"):
        raise ValueError(f'activation={activation!r}; expected "ordinary" or "gate".')
    gate_only: dict[str, Rule] = dict.fromkeys((*_MULTIPLY, *_MATRIX_PRODUCTS), products.gate_only)
    rules = _frozen(_NORMALISATION, _GATED if activation == "gate" else _BOUNDED, gate_only)
    return RuleSet("cp", rules, _CONSTANT_ATTENTION, HOMOGENEOUS | _HALVED.keys() | ACTIVATIONS)


def epsilon(eps: float = 1e-6) -> RuleSet:
    """The epsilon rule in linear layers and convolutions, AttnLRP's rules elsewhere.

    Args:
        eps: relative to the largest output of an image (for linear layers: of a token), at least 0.
    """
    if not eps >= 0:
        raise ValueError(f"eps={eps!r}; expected a number that is at least 0.")
    around = linear_maps.epsilon(eps)
    return RuleSet("epsilon", _frozen(_ATTNLRP, _around_linear(around, around)), ATTNLRP.attention, ATTNLRP.ordinary)


def gamma(convolution: float = 0.25, linear: float = 0.05) -> RuleSet:
    """The gamma rule in linear layers and convolutions, Libra's rules elsewhere (attention is constant).

    Args:
        convolution: gamma of convolutions, and of batch norms; 0 is the ordinary gradient, large values let only
            contributions of the output's own sign pass.
        linear: gamma of linear layers.
    """
    if not (convolution >= 0 and linear >= 0):
        raise ValueError(f"gamma({convolution!r}, {linear!r}); expected numbers that are at least 0.")
    around = _around_linear(linear_maps.gamma(convolution), linear_maps.gamma(linear))
    return RuleSet("gamma", _frozen(_LIBRA, around), _CONSTANT_ATTENTION, HOMOGENEOUS)


def res_lrp(gamma: float = 1.0) -> RuleSet:
    """AttnLRP with the gamma rule at every sum of two activations, as in ResLRP.

    Args:
        gamma: how much more a branch counts that has the sign of the sum; 0 is `attnlrp`.
    """
    if not gamma >= 0:
        raise ValueError(f"gamma={gamma!r}; expected a number that is at least 0.")
    added = dict.fromkeys(_SUMS, sums.gamma_sum(gamma))
    return RuleSet("res_lrp", _frozen(_ATTNLRP, added), ATTNLRP.attention, ATTNLRP.ordinary)


CP, EPSILON, GAMMA = cp(), epsilon(), gamma()

_ALPHA_ONE = linear_maps.alpha_one()
TRANSFORMER_ATTRIBUTION = RuleSet(
    "transformer_attribution",
    _frozen(
        _ATTNLRP,
        dict.fromkeys((*_GATED, "layer_norm", "rms_norm", "group_norm", "softmax"), relevance.passed_on),
        dict.fromkeys(_SUMS, sums.shared_sum),
        dict.fromkeys(_MATRIX_PRODUCTS, relevance.halved),
        dict.fromkeys(("linear", *_CONVOLUTIONS), linear_maps.linear_map(_ALPHA_ONE)),
        {"scaled_dot_product_attention": relevance.attention},
    ),
    ordinary=HOMOGENEOUS,
)
"""The relevance of Transformer Attribution (arXiv:2012.09838); only that method uses it."""

RULE_SETS: dict[str, RuleSet] = {rules.name: rules for rules in (PLAIN, LIBRA, ATTNLRP, CP, EPSILON, GAMMA)}


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
