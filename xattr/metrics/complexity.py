"""How concentrated a map is. These numbers describe a map; they do not say that it is good.

One pixel drawn at random is as sparse as a map can be, and a map of everything may be right: read them beside a measure
of faithfulness or localisation, never as a ranking. Channels are summed first, so that a pixel counts once. Each image
gets one number, which depends neither on the rest of the batch nor on a factor of the map, not even on its sign. A map
of zeros has no shares, so it gets NaN, as does one that holds NaN or infinity.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._maps import summed


def gini(maps: Tensor) -> Tensor:
    """Gini index of the absolute values of each map: 0 if all are equal, near 1 if few hold everything (sparse).

    With the `n` absolute values in ascending order, `sum of (2 i - n - 1) a_i over i = 1..n / (n * sum of a_i)`; one
    pixel alone reaches `(n - 1) / n`. Hurley and Rickard, 2009, arXiv:0811.4706; used on maps by Chalasani et al.,
    2020, arXiv:1810.06583.

    Args:
        maps: `[B, C, H, W]`; channels are summed first, then the sign is dropped.

    Returns:
        `[B]`, 0 to 1; NaN for a map of zeros.

    Raises:
        ValueError: maps of another shape.

    Example:
        >>> import torch
        >>> gini(torch.tensor([[[[0.0, 0.0], [0.0, 5.0]]], [[[1.0, -1.0], [1.0, 1.0]]]]))
        tensor([0.7500, 0.0000])
    """
    shares = _shares(maps).sort(1).values
    n = shares.shape[1]
    weights = 2 * torch.arange(1, n + 1, dtype=shares.dtype, device=shares.device) - n - 1
    return (shares * weights).sum(1).div(n).clamp_min(0)


def entropy(maps: Tensor) -> Tensor:
    """Entropy of the shares that the pixels have in the absolute values of each map, in nats.

    `-sum of p log p` with `p = |map| / sum of |map|` and `0 log 0 = 0`: 0 for one pixel alone, `log n` for `n` equal
    ones. It grows with the size of the map, so compare maps of one size, or use `effective_size`. Bhatt, Weller and
    Moura, 2020, arXiv:2005.00631, call it complexity.

    Args:
        maps: `[B, C, H, W]`; channels are summed first, then the sign is dropped.

    Returns:
        `[B]`, 0 to `log(H W)`; NaN for a map of zeros.

    Raises:
        ValueError: maps of another shape.

    Example:
        >>> import torch
        >>> entropy(torch.tensor([[[[1.0, 1.0], [0.0, -2.0]]]]))
        tensor([1.0397])
    """
    return torch.special.entr(_shares(maps)).sum(1).clamp_min(0)


def effective_size(maps: Tensor) -> Tensor:
    """Share of the picture that a map covers: a map with `m` equal values of `n`, the others 0, scores `m / n`.

    `exp(entropy) / n`, the perplexity over the number of pixels.

    Args:
        maps: `[B, C, H, W]`; channels are summed first, then the sign is dropped.

    Returns:
        `[B]`, `1 / (H W)` to 1; NaN for a map of zeros.

    Raises:
        ValueError: maps of another shape.

    Example:
        >>> import torch
        >>> effective_size(torch.tensor([[[[3.0, 0.0], [0.0, -3.0]]]]))
        tensor([0.5000])
    """
    return (entropy(maps).exp() / maps.shape[2:].numel()).clamp_max(1)


def _shares(maps: Tensor) -> Tensor:
    """`|map| / sum of |map|`, `[B, H * W]`."""
    size = summed(maps).abs()
    size = size / size.amax(1, keepdim=True)  # first, since the sum of gradients can be too large or small for float32
    return size / size.sum(1, keepdim=True)
