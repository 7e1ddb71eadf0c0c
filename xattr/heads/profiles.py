"""Depth profiles: where a head looks on the whole, and for each class, with how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import scipy.stats
import torch
from torch import Tensor

from ..trace import InputError

Which = Literal["all", "correct", "wrong"]


@dataclass(frozen=True)
class Profile:
    """Mean layer attribution of groups of images, row 0 of all of them, then one row for each class. L counts layers.

    Attributes:
        names: of the rows.
        counts: images in each row, `[R]`.
        mean: `[R, L]`; NaN for a row without images.
        std: standard deviation over images, `[R, L]`; NaN below two images.
        half_width: of the 95 % t interval of the mean, `[R, L]`; NaN below two images.
        by: the label that makes the classes, "label" or "predicted".
        which: the images that count.
    """

    names: tuple[str, ...]
    counts: Tensor
    mean: Tensor
    std: Tensor
    half_width: Tensor
    by: str
    which: Which


def profile(
    attribution: Tensor,
    labels: Tensor,
    predicted: Tensor,
    *,
    by: Literal["label", "predicted"] = "label",
    which: Which = "all",
    classes: Sequence[str] | None = None,
) -> Profile:
    """Mean layer attribution over all images and by class.

    Args:
        attribution: of each image and layer, `[n, L]`, such as `LayaLayerAttribution` returns.
        labels: true classes, `[n]`.
        predicted: predicted classes, `[n]`.
        by: whether a row is a true or a predicted class.
        which: "all" images, those predicted "correct"ly, or "wrong"ly.
        classes: names of the classes; `None` for their numbers.

    Raises:
        InputError: lengths differ, or there are more classes than names.

    Example:
        >>> import torch
        >>> from xattr.heads import profile
        >>> seen = profile(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]), torch.tensor([0, 0]))
        >>> seen.names, seen.mean.tolist()
        (('all', '0', '1'), [[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
    """
    if attribution.ndim != 2 or not len(attribution) == len(labels) == len(predicted):
        raise InputError(
            f"found attribution {list(attribution.shape)}, {len(labels)} labels and {len(predicted)} predictions; "
            f"expected [n, layers] and n of both."
        )
    if not len(labels):
        raise InputError("there are no images to make a profile of.")
    if by not in ("label", "predicted") or which not in ("all", "correct", "wrong"):
        raise InputError(
            f'by={by!r}, which={which!r}; expected "label" or "predicted", and "all", "correct" or "wrong".'
        )
    highest = int(torch.cat([labels, predicted]).max())
    count = len(classes) if classes is not None else highest + 1
    if highest >= count:
        raise InputError(f"{count} names were given for classes up to {highest}.")
    values, right = attribution.detach().double().cpu(), (labels == predicted).cpu()
    counted = torch.ones_like(right) if which == "all" else right if which == "correct" else ~right
    group = (labels if by == "label" else predicted).cpu()
    rows = [values[counted], *(values[counted & (group == c)] for c in range(count))]
    nothing = values.new_full((values.shape[1],), torch.nan)
    sizes = [len(row) for row in rows]
    std = torch.stack([row.std(0) if len(row) > 1 else nothing for row in rows])
    t = torch.tensor([scipy.stats.t.ppf(0.975, n - 1) / n**0.5 if n > 1 else torch.nan for n in sizes])
    return Profile(
        names=("all", *(classes if classes is not None else map(str, range(count)))),
        counts=torch.tensor(sizes),
        mean=torch.stack([row.mean(0) if len(row) else nothing for row in rows]),
        std=std,
        half_width=std * t[:, None],
        by=by,
        which=which,
    )
