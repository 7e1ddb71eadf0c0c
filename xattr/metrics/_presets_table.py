"""The points on which perturbation protocols differ, and how published ones decide them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..trace.run import Score
from .features import Unit
from .fills import Baseline

_CHOICES = {
    "second": ("insertion", "lerf"),
    "score": ("prob", "logit", "accuracy"),
    "class_": ("predicted", "truth"),
    "resize": ("bilinear", "nearest", "none"),
    "rounding": ("nearest", "down"),
    "ties": ("random", "last"),
    "start": ("measured", "absent", "zero"),
    "area": ("range", "plain", "mean"),
}
_TENS = tuple(range(10, 100, 10))


@dataclass(frozen=True)
class Preset:
    """The points on which protocols differ; `dataclasses.replace` makes a variant of one.

    Attributes:
        source: the paper.
        names: what it calls the first curve, on which the most relevant features go first, and the second, if any.
        unit: what is removed: "pixel", "patch", or labels as in `deletion`.
        steps: percentages of the features, behind 0; or a number of equal steps, at most one a feature; or "row": as
            many pixels a step as the picture is wide.
        deletion: what removed features become on the first curve, a baseline as in `deletion`.
        insertion: the same on the second curve.
        second: on the second curve the most relevant features come first ("insertion", over the share that is shown),
            or the least relevant go first ("lerf", over the share that is gone).
        score: "prob", "logit", or "accuracy": 1 where the class has the largest score, alone, and 0 elsewhere.
        class_: "predicted", unless a target is given; or "truth": a target must be given.
        resize: how a map gets the size of the picture: "bilinear" or "nearest"; with "none" it must fit as it is, or
            have one value for each patch.
        rounding: of the number of features at a percentage: "nearest" or "down".
        ties: the order of equal values: "random", but alike for every image; or "last": the last in the picture first.
        start: the point at 0 % is "measured" or "absent"; "zero" puts (0, 0) in front of the first curve only.
        area: trapezoids, divided by the "range" of the points or "plain", or the "mean" of the points.
        difference: name and factor of the second area less the first.
        complement: whether 100 less 100 times the first value is given, too.
        aopc: whether the drop of the probability is given, too: `f(x) - f(x without the first n features)` on the
            first curve, averaged over its points behind 0 %.

    Raises:
        ValueError: a choice that there is not.
    """

    source: str
    names: tuple[str, ...]
    unit: Unit
    steps: tuple[int, ...] | int | Literal["row"]
    deletion: Baseline
    insertion: Baseline = None
    second: Literal["insertion", "lerf"] = "lerf"
    score: Score = "prob"
    class_: Literal["predicted", "truth"] = "predicted"
    resize: Literal["bilinear", "nearest", "none"] = "bilinear"
    rounding: Literal["nearest", "down"] = "nearest"
    ties: Literal["random", "last"] = "random"
    start: Literal["measured", "absent", "zero"] = "measured"
    area: Literal["range", "plain", "mean"] = "range"
    difference: tuple[str, float] | None = None
    complement: bool = False
    aopc: bool = False

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r}; expected one of {', '.join(choices)}.")
        if not 1 <= len(self.names) <= 2 or (self.difference and len(self.names) == 1):
            raise ValueError(f"names={self.names!r}; expected one or two curves, two for a difference.")
        if isinstance(self.steps, tuple):
            good = 0 < len(self.steps) and set(self.steps) <= set(range(1, 101))
            good = good and sorted(set(self.steps)) == list(self.steps)
        else:
            good = self.steps == "row" or (type(self.steps) is int and self.steps > 0)
        if not good:
            raise ValueError(
                f'steps={self.steps!r}; expected a tuple of rising percentages from 1 to 100, a number, or "row".'
            )


PRESETS: dict[str, Preset] = {
    "rise": Preset(
        source="Petsiuk et al., 2018, arXiv:1806.07421",
        names=("deletion", "insertion"),
        unit="pixel",
        steps="row",
        deletion=0,
        insertion="blur",
        second="insertion",
        ties="last",
    ),
    "tis": Preset(
        source="Englebert et al., 2023, ICCV workshops",
        names=("deletion", "insertion"),
        unit="pixel",
        steps="row",
        deletion="blur",
        insertion="blur",
        second="insertion",
        class_="truth",
        ties="last",
        start="absent",
    ),
    "mutex": Preset(
        source="MUTEX, ViT visual interpretability through a multilayer network, by the authors of GradSkip",
        names=("deletion", "insertion"),
        unit="pixel",
        steps=(1, 5, *_TENS, 100),
        deletion=0,
        insertion=0,
        second="insertion",
        resize="nearest",
        rounding="down",
        ties="last",
        start="zero",
        area="plain",
        difference=("insertion - deletion", 1.0),
    ),
    "chefer": Preset(
        source="Chefer et al., 2021, arXiv:2012.09838",
        names=("positive", "negative"),
        unit="pixel",
        steps=_TENS,
        deletion="black",
        insertion="black",
        score="accuracy",
        rounding="down",
        start="absent",
        area="plain",
    ),
    "libragrad": Preset(
        source="Mehri et al., 2025, arXiv:2411.16760",
        names=("accuracy",),
        unit="patch",
        steps=_TENS,
        deletion=None,
        score="accuracy",
        resize="none",
        start="absent",
        area="mean",
        complement=True,
        aopc=True,
    ),
    "abpc": Preset(
        source="Leem and Seo, 2024, arXiv:2402.04563",
        names=("morf", "lerf"),
        unit="pixel",
        steps=(*_TENS, 100),
        deletion="mean",
        insertion="mean",
        difference=("abpc", 1.0),
    ),
    "srg": Preset(
        source="Bluecher et al., 2024, arXiv:2401.06654",
        names=("mif", "lif"),
        unit="patch",
        steps=100,
        deletion="mean",
        insertion="mean",
        score="logit",
        resize="none",
        difference=("srg", 1.0),
    ),
    "road": Preset(
        source="Rong et al., 2022, arXiv:2202.00449",
        names=("morf", "lerf"),
        unit="pixel",
        steps=_TENS,
        deletion="road",
        insertion="road",
        start="absent",
        area="mean",
        difference=("combined", 0.5),
    ),
}
"""Protocols of papers, with the values that they give and the forwards that an image of height H costs.

| name | points, unit | removed become | score, class | map, ties | area | lower; higher is better | cost |
|---|---|---|---|---|---|---|---|
| rise | rows 0..H, pixel | 0; blur | prob, predicted | bilinear, last | range | deletion; insertion | 2 H + 2 |
| tis | rows 1..H, pixel | blur | prob, true | bilinear, last | range | deletion; insertion | 2 H |
| mutex | 1, 5, 10, 20, .., 100 %, pixel | 0 | prob, predicted | nearest, last | plain | deletion; insertion, \
insertion - deletion | 24 |
| chefer | 10, 20, .., 90 %, pixel | black | accuracy, predicted | bilinear, random | plain | positive; negative | 18 |
| libragrad | 10, 20, .., 90 %, patch | dropped | accuracy, predicted | none, random | mean | accuracy; \
100 - accuracy, aopc | 10 |
| abpc | 0, 10, .., 100 %, pixel | mean | prob, predicted | bilinear, random | range | morf; lerf, abpc | 22 |
| srg | at most 100 steps and 0, patch | mean | logit, predicted | none, random | range | mif; lif, srg | 202 |
| road | 10, 20, .., 90 %, pixel | road | prob, predicted | bilinear, random | mean | morf; lerf, combined | 18 |

What papers and their code leave open, and what is decided here:

* rise and tis take rows of 224 pixels from pictures of 224 x 224. Other pictures have H steps of their width.
* rise and mutex put 0 into the normalised picture. The blur of rise and tis is a Gaussian, 11 pixels, sigma 5, its
  weights renormalised at the border; theirs differ there (rise: zeros outside, tis: reflected), and rise folds the
  Gaussian's tails into the 11 pixels.
* "last" is an `argsort` read backwards, as rise, tis and mutex have it, made stable; the ties of the rest are open.
* mutex and chefer cut the number of pixels at a percentage down to a whole one. Percentages are taken at their word
  as abscissa. On a tiny picture 1 % may be no pixel.
* tis wants pictures resized to 256 x 256 and cropped to 224 x 224, and does not say how its area is scaled.
* mutex: the mean difference over images is what GradSkip's authors report.
* chefer: values are shares; 100 times their mean is comparable. The authors add, in public, that the whole picture
  is the first point of the published areas (`replace(PRESETS["chefer"], start="measured")`), and their code counts
  agreement with the label for maps of the predicted class as well (`target=labels`).
* libragrad: most relevant first only. The tables print 100 - accuracy. Where tokens cannot leave, patches become the
  mean, and the result says so.
* abpc: the unit and the trapezoids. srg: the trapezoids, and the mean is that of the data set. For a model without
  patches give labels as `unit`.
* road: the probability, as is usual for the combined score; the paper measures `score="accuracy"`. Averaged over the
  percentages.
"""
