"""Do scores of a head's layers say what happens without them? Every answer names the protocol it was measured by.

A layer loses its path to the head here; the backbone stays whole. Compare attributions of the *same* trained head only:
values follow how sharp its mixture is. L counts layers. All is computed in float64 on the head's device, which must
have it (MPS has not), by a copy of the head; results are on the CPU.

Example:
    >>> import torch
    >>> from xattr.heads import ScalarMixHead
    >>> head, features = ScalarMixHead([4, 4, 4], num_classes=3), [torch.randn(5, 4) for _ in range(3)]
    >>> effects = leave_one_layer_out(head, features)
    >>> layer_faithfulness(head, features, effects).mean, f"{layer_deletion(head, features, effects).normalised:.3f}"
    (1.0, '1.000')
    >>> print(layer_table(head, features, {"effects": effects}, [LayerProtocol()]).splitlines()[0])
    | attribution | drop/prob/predicted/signed: faithfulness | drop/prob/predicted/signed: deletion@1 |
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..heads.mixing import MixingHead
from .layer_ablation import DEFAULT, Ablation, LayerProtocol
from .ranking import rank_correlation
from .statistics import bootstrap_interval

_TIE = 1e-9  # scores that differ by less, relative to the largest size in their row, are one score
_SUBSETS, _DRAWS = 500, 200


@dataclass(frozen=True)
class LayerFaithfulness:
    """Rank agreement of scores with effects.

    Attributes:
        value: Spearman's correlation over layers, -1 to 1, `[B]`; NaN where scores or effects are constant.
        mean: over the samples where `value` is defined; `low` to `high` is its 95 % percentile bootstrap interval.
        undefined: number of the other samples.
        top1: share of all samples whose highest-scored layer has the largest effect; ties by expectation.
    """

    value: Tensor
    mean: float
    low: float
    high: float
    undefined: int
    top1: float
    protocol: LayerProtocol


@dataclass(frozen=True)
class LayerDeletion:
    """Signed drop of the target, in its unit, when k layers are left out together.

    Attributes:
        value: without the k highest-scored layers, `[B]`; `mean` is over samples, as are the others.
        random: without k at random; exact up to 500 subsets and for k = 1, else from 200 seeded draws.
        oracle: without each sample's best k, found by trying all; NaN for k > 1 and more than 500 subsets.
        depth_prior: without the last k.
        normalised: `(mean - random) / (oracle - random)`, at most 1; NaN where nothing tells layers apart.
    """

    value: Tensor
    mean: float
    random: float
    oracle: float
    depth_prior: float
    normalised: float
    k: int
    protocol: LayerProtocol


def leave_one_layer_out(head: MixingHead, features: Sequence[Tensor], *, protocol: LayerProtocol = DEFAULT,
                        labels: Tensor | None = None, reference: Sequence[Tensor] | None = None,
                        seed: int = 0) -> Tensor:  # fmt: skip
    """Effects `f(x) - f(x without layer i)`, `[B, L]`, with the logits `W sum_i alpha_i z_i + b`.

    Under "drop" the logit loses exactly `alpha_i w_c . z_i`. Cost: one pass of the head, and L of its mixture.

    Args:
        head: trained; it stays as it is.
        features: of all layers, `[B, d_i]` each.
        protocol: what is done and measured.
        labels: class of each sample, `[B]`; not read where the class is the predicted one.
        reference: features, `[n, d_i]` each, that means and other samples are taken from; `None` for the given ones,
            of which "resample" never gives a sample its own.
        seed: of "resample".

    Raises:
        TypeError: the head does not mix layers.
        ValueError: features, labels or logits do not fit the head or the protocol.
    """
    effects = Ablation.of(head, features, protocol, labels, reference, seed).each()
    return effects.abs() if protocol.sign == "abs" else effects


def layer_faithfulness(head: MixingHead, features: Sequence[Tensor], scores: Tensor, *,
                       protocol: LayerProtocol = DEFAULT, labels: Tensor | None = None,
                       reference: Sequence[Tensor] | None = None, seed: int = 0) -> LayerFaithfulness:  # fmt: skip
    """Spearman's correlation of `scores`, `[B, L]`, with the effects of `leave_one_layer_out`, at the same cost.

    The other arguments are of that function; `seed` is of the bootstrap too. With L = 3 and no ties each value is one
    of 1, 0.5, -0.5 and -1; below that a warning says how little it can be.
    """
    ablation = Ablation.of(head, features, protocol, labels, reference, seed)
    _warn_of_few(head)
    return _faithfulness(ablation.each(), ablation.checked(scores), protocol, seed)


def layer_deletion(head: MixingHead, features: Sequence[Tensor], scores: Tensor, *, k: int = 1,
                   protocol: LayerProtocol = DEFAULT, labels: Tensor | None = None,
                   reference: Sequence[Tensor] | None = None, seed: int = 0) -> LayerDeletion:  # fmt: skip
    """Leave the `k` layers with the highest `scores`, `[B, L]`, out together; beside chance, an oracle and depth alone.

    Scores tie within 1e-9 of the largest size in their row: for k = 1 the value is the mean over the tied layers, for
    more a random order decides. The other arguments are those of `leave_one_layer_out`; `seed` is of that order and of
    random draws too. Cost: a mixture for each of up to 500 subsets. A k outside 1 to L is a `ValueError`.
    """
    ablation = Ablation.of(head, features, protocol, labels, reference, seed)
    given, layers, rng = ablation.checked(scores), len(head.widths), np.random.RandomState(seed)
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= layers:
        raise ValueError(f"k={k!r}; expected a whole number of layers, 1 to {layers}.")
    value, oracle = ablation.effect(_first(given, k, rng)), math.nan
    if k == 1 or math.comb(layers, k) <= _SUBSETS:
        drops = ablation.each(k)
        value = _of_top(drops, given) if k == 1 else value
        random, oracle = float(drops.mean()), float(drops.amax(1).mean())
    else:
        draws = [ablation.effect(_first(torch.zeros_like(given), k, rng)).mean() for _ in range(_DRAWS)]
        random = float(torch.stack(draws).mean())
    mean, last = float(value.mean()), float(ablation.effect(torch.arange(layers) >= layers - k).mean())
    apart = oracle - random > _TIE * max(abs(oracle), abs(random))
    normalised = (mean - random) / (oracle - random) if apart else math.nan
    return LayerDeletion(value, mean, random, oracle, last, normalised, k, protocol)


def layer_table(head: MixingHead, features: Sequence[Tensor], attributions: Mapping[str, Tensor],
                protocols: Sequence[LayerProtocol], *, labels: Tensor | None = None,
                reference: Sequence[Tensor] | None = None, seed: int = 0) -> str:  # fmt: skip
    """Markdown: faithfulness with its interval, and deletion of one layer, of named scores `[B, L]` by each protocol.

    Below them stand random scores in expectation, the effects themselves ("oracle"), and "depth prior": the later the
    layer, the higher its score. The other arguments are those of `leave_one_layer_out`, run once for each protocol.
    """
    _warn_of_few(head)
    rows = [["attribution"], ["---"], *([name.replace("|", "\\|")] for name in attributions)]
    rows += [["random"], ["oracle"], ["depth prior"]]
    for protocol in protocols:
        ablation = Ablation.of(head, features, protocol, labels, reference, seed)
        effects = ablation.each()
        depth = torch.arange(effects.shape[1]).double().expand_as(effects)
        ranked = effects.abs() if protocol.sign == "abs" else effects
        given = [ablation.checked(scores, f"attributions[{name!r}]") for name, scores in attributions.items()]
        cells = [[f"{protocol}: faithfulness", f"{protocol}: deletion@1"], ["---"] * 2]
        for by, top in (*zip(given, given, strict=True), (ranked, effects), (depth, depth)):
            found = _faithfulness(effects, by, protocol, seed)
            missing = f" ({found.undefined} undefined)" if found.undefined else ""
            shown = f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]{missing}"
            cells.append([shown, f"{float(_of_top(effects, top).mean()):#.3g}"])
        cells.insert(-2, ["0.000", f"{float(effects.mean()):#.3g}"])
        rows = [row + more for row, more in zip(rows, cells, strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _faithfulness(effects: Tensor, scores: Tensor, protocol: LayerProtocol, seed: int) -> LayerFaithfulness:
    ranked = effects.abs() if protocol.sign == "abs" else effects
    value = rank_correlation(scores, ranked)
    found = bootstrap_interval(value, seed=seed)
    top1 = float(_of_top(_top(ranked).double(), scores).mean())
    return LayerFaithfulness(value, found.mean, found.low, found.high, found.undefined, top1, protocol)


def _top(values: Tensor, gone: Tensor | None = None) -> Tensor:
    """Which layers of each row are the highest of those not gone, up to rounding, boolean `[B, L]`."""
    left = values if gone is None else values.masked_fill(gone, -torch.inf)
    return left >= left.amax(1, keepdim=True) - _TIE * values.abs().amax(1, keepdim=True)


def _of_top(values: Tensor, scores: Tensor) -> Tensor:
    """Mean of the values at the highest-scored layers, `[B]`."""
    top = _top(scores)
    return (values * top).sum(1) / top.sum(1)


def _first(scores: Tensor, k: int, rng: np.random.RandomState) -> Tensor:
    """The k highest-scored layers of each row, boolean `[B, L]`; tied ones in random order."""
    key, gone = torch.from_numpy(rng.rand(*scores.shape)), torch.zeros(scores.shape, dtype=torch.bool)
    for _ in range(k):
        tied = _top(scores, gone)
        gone |= F.one_hot(key.masked_fill(~tied, -1).argmax(1), scores.shape[1]).bool()
    return gone


def _warn_of_few(head: MixingHead) -> None:
    if len(head.widths) < 3:
        warnings.warn(f"{len(head.widths)} layers: each value can only be 1 or -1, or undefined.", UserWarning, 3)
