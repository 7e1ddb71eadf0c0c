"""A layer-attention classification head written out by hand, one sample and one unit at a time.

Layer ``i`` has features ``h_i``; ``z_i = G_i n_i(h_i) + g_i`` adapts them, ``u_i = psi(z_i)`` is what the scorer sees.
The scores are ``s = V2 gelu(V1 [u_1; ..; u_L] + c1) + c2``, and ``alpha = softmax(s / tau)``. The classifier reads
``h = sum_i alpha_i z_i``, so that layer ``i`` contributes ``alpha_i (w_c . z_i)`` to the logit of class ``c``.
In a causal head ``s_i`` is output ``i`` of the same scorer, run on ``[u_1; ..; u_i; 0; ..; 0]``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

Linear = tuple[np.ndarray, np.ndarray]  # weight [out, in], bias [out]
EPS = 1e-5


@dataclass(frozen=True)
class HeadWeights:
    adapters: list[Linear]  # one per layer, [width, d_i]
    norms: list[Linear | None] | None  # LayerNorm's weight and bias [d_i] per layer; None is the identity
    psi: list[Linear] | None  # two, shared by all layers; None is the identity
    scorer: tuple[Linear, Linear]
    classifier: Linear
    temperature: float
    causal: bool = False


@dataclass(frozen=True)
class Explained:
    logits: np.ndarray  # [C]
    alpha: np.ndarray  # [L]
    scores: np.ndarray  # [L], before the temperature
    contributions: np.ndarray  # [L, C]
    z: np.ndarray  # [L, width]


def _dot(a: np.ndarray, b: np.ndarray) -> float:
    return sum(float(p) * float(q) for p, q in zip(a, b, strict=True))


def _linear(layer: Linear, x: np.ndarray) -> np.ndarray:
    return np.array([_dot(row, x) + float(c) for row, c in zip(*layer, strict=True)], dtype=np.float64)


def _gelu(x: np.ndarray) -> np.ndarray:
    return np.array([0.5 * float(v) * (1 + math.erf(float(v) / math.sqrt(2))) for v in x], dtype=np.float64)


def _softmax(x: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    scaled = [float(v) / temperature for v in x]
    powers = [math.exp(v - max(scaled)) for v in scaled]
    return np.array([p / sum(powers) for p in powers], dtype=np.float64)


def _norm(norm: Linear, x: np.ndarray) -> np.ndarray:
    mean = sum(float(v) for v in x) / len(x)
    variance = sum((float(v) - mean) ** 2 for v in x) / len(x)
    terms = zip(x, *norm, strict=True)
    return np.array([(float(v) - mean) / math.sqrt(variance + EPS) * float(w) + float(b) for v, w, b in terms])


def _scores(z: np.ndarray, weights: HeadWeights) -> np.ndarray:
    u = list(z)
    for layer in weights.psi or []:
        u = [_gelu(_linear(layer, x)) for x in u]
    scores = []
    for i in range(len(u)):
        seen = [u[j] if j <= i or not weights.causal else np.zeros(len(u[j])) for j in range(len(u))]
        scores.append(_linear(weights.scorer[1], _gelu(_linear(weights.scorer[0], np.concatenate(seen))))[i])
    return np.array(scores)


def _mixed_logits(alpha: np.ndarray, z: np.ndarray, layers: list[int], weights: HeadWeights) -> np.ndarray:
    h = [sum(float(alpha[i]) * float(z[i, j]) for i in layers) for j in range(z.shape[1])]
    return _linear(weights.classifier, np.array(h, dtype=np.float64))


def explain(features: list[np.ndarray], weights: HeadWeights) -> Explained:
    """Everything about one sample, given ``h_i [d_i]`` of each layer."""
    if len(features) != len(weights.adapters):
        raise ValueError(f"{len(features)} layers of features for {len(weights.adapters)} adapters")
    z = np.zeros((len(features), len(weights.adapters[0][1])))
    for i in range(len(features)):
        norm = None if weights.norms is None else weights.norms[i]
        z[i] = _linear(weights.adapters[i], features[i] if norm is None else _norm(norm, features[i]))
    scores = _scores(z, weights)
    alpha = _softmax(scores, weights.temperature)
    rows = weights.classifier[0]
    contributions = np.array([[float(alpha[i]) * _dot(w, z[i]) for w in rows] for i in range(len(z))])
    return Explained(_mixed_logits(alpha, z, list(range(len(z))), weights), alpha, scores, contributions, z)


def prefix_logits(features: list[np.ndarray], weights: HeadWeights) -> np.ndarray:
    """Logits ``[L, C]`` of a causal head that stops after each layer: alpha is over the scores so far."""
    if not weights.causal:
        raise ValueError("only a causal head has prefix logits")
    full = explain(features, weights)
    alphas = [_softmax(full.scores[:k], weights.temperature) for k in range(1, len(full.z) + 1)]
    return np.array([_mixed_logits(alpha, full.z, list(range(len(alpha))), weights) for alpha in alphas])


def leave_one_out_drop(features: list[np.ndarray], weights: HeadWeights, c: int) -> np.ndarray:
    """``p_c`` less ``p_c`` without the term ``alpha_i z_i``, for each layer; the other alphas stay as they are."""
    full = explain(features, weights)
    layers = range(len(full.z))
    before = _softmax(full.logits)[c]
    kept = [[j for j in layers if j != i] for i in layers]
    return np.array([before - _softmax(_mixed_logits(full.alpha, full.z, k, weights))[c] for k in kept])


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation, ties at their average rank; nan where either side is constant."""
    ra, rb = ([sum(o < v for o in x) + (sum(o == v for o in x) + 1) / 2 for v in x] for x in (a, b))
    middle = (len(a) + 1) / 2  # the mean rank, ties or not
    cov = sum((p - middle) * (q - middle) for p, q in zip(ra, rb, strict=True))
    va, vb = sum((p - middle) ** 2 for p in ra), sum((q - middle) ** 2 for q in rb)
    return cov / math.sqrt(va * vb) if va > 0 and vb > 0 else math.nan
