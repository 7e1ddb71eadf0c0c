"""How a map becomes numbers within -1..1: the sign that is shown, the limit, and what has to be said about it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ._array import warn

Sign = Literal["all", "positive", "negative", "absolute"]

_SIGNS = ("all", "positive", "negative", "absolute")


@dataclass(frozen=True)
class Scale:
    """One scale for one or several maps.

    Attributes:
        sign: what is shown.
        limit: the magnitude that gets the strongest colour; 0 where nothing of this sign is there.
        signed: whether both signs are shown, so that the colours must run both ways from zero.
    """

    sign: Sign
    limit: float
    signed: bool

    @classmethod
    def of(
        cls,
        maps: Sequence[NDArray[np.float64]],
        sign: Sign,
        limit: float | None = None,
        percentile: float | None = None,
    ) -> Scale:
        """The scale that ``maps`` (each ``[H, W]``) share; see `colour` for the arguments.

        Raises:
            ValueError: for an unknown sign, a limit that is not positive and finite, a percentile outside 0..100, or
                both of these.
        """
        if sign not in _SIGNS:
            raise ValueError(f"found sign {sign!r}: expected one of {', '.join(map(repr, _SIGNS))}")
        if limit is not None and percentile is not None:
            raise ValueError("found both limit and percentile: the second would compute the first; leave one out")
        if limit is not None and not (0 < limit < math.inf):
            raise ValueError(f"found limit {limit}: expected a positive finite number")
        if percentile is not None and not 0 < percentile <= 100:
            raise ValueError(f"found percentile {percentile}: expected more than 0 and at most 100")
        shown = np.concatenate([select(m[np.isfinite(m)], sign) for m in maps] or [np.zeros(0)])
        signed = sign == "all" and bool((shown < 0).any())
        if limit is None:
            size = np.abs(shown)
            limit = float(size.max()) if size.size else 0.0
            if percentile is not None and limit > 0:
                # "higher" takes a value of the map. Of a map that is mostly zero it may be 0; the largest stays then.
                limit = float(np.percentile(size, percentile, method="higher")) or limit
        return cls(sign, float(limit), signed)

    def unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """``[H, W]`` finite values to -1..1, with 0 exactly at 0; all 0 where the limit is 0."""
        if self.limit == 0:
            return np.zeros_like(values)
        # Dividing (never multiplying by an inverse) keeps limits as small as 5e-324 usable.
        with np.errstate(over="ignore"):
            return np.clip(select(values, self.sign) / self.limit, -1, 1)


def select(values: NDArray[np.float64], sign: Sign) -> NDArray[np.float64]:
    """The part of ``values`` that is shown; the rest becomes 0. Negative values keep their sign."""
    if sign == "positive":
        return np.maximum(values, 0)
    if sign == "negative":
        return np.minimum(values, 0)
    return np.abs(values) if sign == "absolute" else values


def remark(maps: Iterable[tuple[str, NDArray[np.float64]]], sign: Sign) -> None:
    """Says in at most one warning which of the named maps are empty or have entries that are no numbers."""
    empty, broken = [], []
    for name, values in maps:
        finite = np.isfinite(values)
        if not finite.all():
            broken.append(f"{int((~finite).sum())} of {values.size} values in {name}")
        if finite.any() and not select(values[finite], sign).any():
            empty.append(name)
    said = []
    if empty:
        kind = sign if sign in ("positive", "negative") else "non-zero"
        said.append(f"no {kind} values in {_list(empty)}: drawn in the neutral colour")
    if broken:
        said.append(f"NaN or infinite: {_list(broken)}; drawn green, and left out of the scale")
    if said:
        warn("; ".join(said))


def _list(names: Sequence[str], most: int = 6) -> str:
    """The first names, and how many more there are: a grid of a hundred maps needs no hundred names."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
