"""A map cut into foreground and background, compared with a mask. Higher is better in all of them.

The result depends on how the map is cut, so the threshold is part of it. `average_precision` needs none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ._maps import paired

Threshold = Literal["mean", "otsu"] | float
_BINS = 256


@dataclass(frozen=True)
class SegmentationScores:
    """Scores of images; `+` puts those of several batches together.

    What is undefined is NaN, left out of means, and counted. The intersection over union (IoU) of a class is undefined
    in an image where neither map nor mask has a pixel of it.

    Attributes:
        counts: int64 `[B, 2, 2]`, labelled pixels by class of the mask, then class of the map; 0 is background.
        threshold: how the maps were cut.
    """

    counts: Tensor
    threshold: Threshold

    @property
    def pixel_accuracy(self) -> Tensor:
        """Share of the labelled pixels that the map gets right, `[B]`, 0 to 1; NaN if none is labelled."""
        return self.counts.diagonal(dim1=1, dim2=2).sum(1) / self.counts.sum((1, 2))

    @property
    def iou_foreground(self) -> Tensor:
        """Pixels in both mask and map over pixels in either, `[B]`, 0 to 1; NaN where there are none."""
        return _iou(self.counts)[:, 1]

    @property
    def iou_background(self) -> Tensor:
        """The same for the pixels outside, `[B]`, 0 to 1."""
        return _iou(self.counts)[:, 0]

    @property
    def miou(self) -> Tensor:
        """Mean of the two IoU of each image, `[B]`, 0 to 1; the other alone where one is undefined."""
        return _iou(self.counts).nanmean(1)

    @property
    def dataset_miou(self) -> float:
        """Mean of the two IoU of all images together: intersections and unions are added up over images first.

        Large objects weigh more than in the mean of `miou`.
        """
        return float(_iou(self.counts.cpu().double().sum(0, keepdim=True)).nanmean())

    @property
    def undefined(self) -> dict[str, int]:
        """Number of images in which each score is NaN."""
        names = ("pixel_accuracy", "iou_foreground", "iou_background", "miou")
        return {name: int(getattr(self, name).isnan().sum()) for name in names}

    def __add__(self, other: SegmentationScores) -> SegmentationScores:
        """The scores of the images of both.

        Raises:
            ValueError: the maps were cut differently.
        """
        if self.threshold != other.threshold:
            raise ValueError(f"thresholds are {self.threshold!r} and {other.threshold!r}; expected the same.")
        return SegmentationScores(torch.cat([self.counts, other.counts]), self.threshold)


def segmentation_scores(
    maps: Tensor, masks: Tensor, threshold: Threshold = "mean", valid: Tensor | None = None
) -> SegmentationScores:
    """Cut each map at a threshold and compare its foreground with the mask.

    Each map is brought to 0..1 by its own minimum and maximum; foreground is what lies *above* the threshold. A
    constant map has no foreground, whatever the threshold. The threshold is found on the whole map, labelled or not:
    where labels are missing must not decide how the map is cut.

    `"mean"` with `pixel_accuracy` and `dataset_miou` is the protocol of Chefer, Gur and Wolf, 2021, arXiv:2012.09838,
    on ImageNet-Segmentation. `"otsu"` is the threshold between two classes of values that lie furthest apart, by the
    variance between them (Otsu, 1979), on 256 bins.

    Args:
        maps: `[B, C, H, W]`; channels are summed first.
        masks: boolean, `[B, 1, H, W]`, true in the foreground.
        threshold: `"mean"`, `"otsu"`, or a number from 0 to 1 on the scale of the map brought to 0..1.
        valid: boolean, `[B, 1, H, W]`, true where a pixel is labelled; the others are not counted. `None` for all.

    Returns:
        the scores of each image and of all together.

    Raises:
        ValueError: shapes that do not fit, masks that are not boolean, an unknown threshold, or a map that holds NaN or
            infinity.

    Example:
        >>> import torch
        >>> heat = torch.tensor([[[[0.9, 0.8], [0.2, 0.1]]]])
        >>> scores = segmentation_scores(heat, torch.tensor([[[[True, False], [False, False]]]]))
        >>> scores.pixel_accuracy, scores.iou_foreground, scores.iou_background, round(scores.dataset_miou, 4)
        (tensor([0.7500]), tensor([0.5000]), tensor([0.6667]), 0.5833)
    """
    if isinstance(threshold, str):
        known = threshold in ("mean", "otsu")
    else:
        known = 0 <= threshold <= 1
    if not known:
        raise ValueError(f'threshold is {threshold!r}; expected "mean", "otsu" or a number from 0 to 1.')
    values, inside = paired(maps, masks)
    counted = torch.ones_like(inside) if valid is None else paired(maps, valid, "valid")[1]
    broken = (~values.isfinite()).any(1).nonzero().flatten().tolist()
    if broken:
        raise ValueError(f"maps {broken[:8]} hold NaN or infinity; expected finite values, which can be cut.")

    low, high = values.aminmax(dim=1, keepdim=True)
    scaled = (values - low) / (high - low).where(high > low, 1)
    if threshold == "mean":
        cut = scaled.mean(1, keepdim=True)
    elif threshold == "otsu":
        cut = _otsu(scaled)
    else:
        cut = scaled.new_full((len(scaled), 1), float(threshold))
    kind = 2 * inside.long() + (scaled > cut).long()
    counts = torch.stack([(counted & (kind == i)).sum(1) for i in range(4)], 1)
    return SegmentationScores(counts.view(-1, 2, 2), threshold)


def _otsu(scaled: Tensor) -> Tensor:
    """Threshold of each row of values in 0..1, `[B, 1]`: the centre of the bin that ends the lower class."""
    bins = (scaled * _BINS).long().clamp_max(_BINS - 1)
    counts = torch.zeros(len(scaled), _BINS, dtype=torch.long, device=scaled.device)
    # Sums of 256 products decide between bins that differ little, hence double, which not every accelerator has.
    counts = counts.scatter_add_(1, bins, torch.ones_like(bins)).cpu().double()
    centres = (torch.arange(_BINS, dtype=torch.double) + 0.5) / _BINS
    mass = counts * centres
    below, above = counts.cumsum(1)[:, :-1], counts.flip(1).cumsum(1).flip(1)[:, 1:]
    mean_below = mass.cumsum(1)[:, :-1] / below
    mean_above = mass.flip(1).cumsum(1).flip(1)[:, 1:] / above
    between = below * above * (mean_below - mean_above).square()
    # The first of equal bins, as elsewhere. All are NaN for a constant map, of zeros by now: any centre is above it.
    return centres[between.argmax(1)][:, None].to(scaled)


def _iou(counts: Tensor) -> Tensor:
    """Of background and foreground, `[B, 2]`."""
    both = counts.diagonal(dim1=1, dim2=2)
    return both / (counts.sum(1) + counts.sum(2) - both)
