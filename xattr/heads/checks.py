"""Does the attention of a head mean anything? Checks that can say no."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..metrics.ranking import rank_correlation
from ..trace.modules import in_evaluation_mode
from .explanation import HeadExplanation
from .mixing import LayaHead, MixingHead


@dataclass(frozen=True)
class Conditioning:
    """Accuracy of a head with other weights of its layers than its own.

    If `permuted` or `mean` are as good as `own`, it is idle that the weights depend on the input.

    Attributes:
        own: with its own weights.
        permuted: with those of another example.
        mean: with the mean of all examples, for every one of them.
        uniform: with equal weights.
    """

    own: float
    permuted: float
    mean: float
    uniform: float


@torch.no_grad()
def conditioning(head: MixingHead, features: Sequence[Tensor], labels: Tensor, seed: int = 0) -> Conditioning:
    """Swap the weights of the layers between examples, or replace them by one for all.

    Args:
        head: a trained head, such as `model.head`.
        features: of all layers, `[n, d_i]` each, such as `model.features(images)`.
        labels: `[n]`.
        seed: of the permutation, in which no example keeps its own.

    Raises:
        TypeError: the head does not mix layers.

    Example:
        >>> import torch
        >>> from xattr.heads import LayaHead, conditioning
        >>> conditioning(LayaHead([4, 4], 2), [torch.randn(8, 4)] * 2, torch.zeros(8, dtype=torch.long)).own <= 1
        True
    """
    _mixes(head, MixingHead)
    with in_evaluation_mode(head):
        seen = head.explain(features)
    mean = seen.alpha.mean(0).expand_as(seen.alpha)

    def right(alpha: Tensor) -> float:
        with in_evaluation_mode(head):
            logits = head._explained(seen.z, seen.scores, alpha).logits
        return float((logits.argmax(1) == labels.to(logits.device)).double().mean())

    uniform = torch.full_like(mean, 1 / mean.shape[1])
    return Conditioning(right(seen.alpha), right(seen.alpha[_others(len(labels), seed)]), right(mean), right(uniform))


def _mixes(head: object, kind: type[nn.Module]) -> None:
    if not isinstance(head, kind):
        raise TypeError(
            f"found a {type(head).__name__}; expected a {kind.__name__} and the features of all layers, for instance "
            f"model.head and model.features(images) of a LayaModel."
        )


def _others(n: int, seed: int) -> Tensor:
    """For each of n examples the number of another one."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    other = torch.empty_like(order)
    other[order] = order.roll(1)
    return other


@torch.no_grad()
def scorer_randomisation(head: LayaHead, features: Sequence[Tensor], seeds: Sequence[int] = range(5)) -> Tensor:
    """Rank correlation of the weights with those of the same head whose scorer was drawn anew, one for each seed.

    Near 1: the weights do not depend on what the scorer learnt. The head is left as it is.

    Args:
        head: a trained head.
        features: of all layers, `[n, d_i]` each.
        seeds: of the new scorers.

    Returns:
        Spearman's correlation over layers, averaged over examples, `[seeds]`; NaN with one layer.
    """
    _mixes(head, LayaHead)
    with in_evaluation_mode(head):
        wanted = head.explain(features).alpha
    found = []
    for seed in seeds:
        other = copy.deepcopy(head).eval()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for part in other.scorer:
                if isinstance(part, nn.Linear):
                    nn.init.xavier_uniform_(part.weight)
                    assert part.bias is not None
                    nn.init.normal_(part.bias, std=0.1)
        found.append(rank_correlation(other.explain(features).alpha, wanted).nanmean())
    return torch.stack(found)


def stability(alphas: Sequence[Tensor]) -> Tensor:
    """Do trainings with other seeds look at the same layers? Rank correlation of each pair of runs.

    Args:
        alphas: weights of the same examples in each run, `[n, L]` each.

    Returns:
        Spearman's correlation over layers, averaged over examples, for each pair of runs in order.

    Raises:
        ValueError: fewer than two runs.

    Example:
        >>> import torch
        >>> from xattr.heads import stability
        >>> one = torch.tensor([[0.1, 0.2, 0.7]])
        >>> stability([one, one, one.flip(1)]).tolist()
        [1.0, -1.0, -1.0]
    """
    if len(alphas) < 2:
        raise ValueError(f"stability compares at least two runs; found {len(alphas)}.")
    return torch.stack([rank_correlation(a, b).nanmean() for a, b in itertools.combinations(alphas, 2)])


def effective_weights(explanation: HeadExplanation) -> Tensor:
    """`alpha_i |z_i|` with rows that sum to 1, `[B, L]`: weights that rescaling a feature cannot change.

    A head may hold a short feature with a large weight or a long one with a small weight; `alpha` alone does not say.
    """
    lengths = explanation.alpha * torch.linalg.vector_norm(explanation.z, dim=-1)
    return lengths / lengths.sum(1, keepdim=True)
