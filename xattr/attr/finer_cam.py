"""Finer-CAM: Grad-CAM of what tells a class from those most like it."""

from __future__ import annotations

from typing import Any

import torch
from captum.log import log_usage
from torch import Tensor

from ..trace import OutputError, Pass, Target
from ..trace.outputs import resolve, select
from ._map import Upsample
from .grad_cam import GradCam

__all__ = ["FinerCam"]


class FinerCam(GradCam):
    """Finer-CAM (Zhang et al., CVPR 2025, arXiv:2501.11309): Grad-CAM of a difference of logits.

        score = sum_d p_d (y_c - alpha y_d) / sum_d p_d

    over the classes `d` whose logits are closest to that of the explained class `c`; their probabilities `p` are
    weights, held constant. Layers as in `GradCam`. Our reimplementation.

    Cost: that of `GradCam`.

    Args:
        forward_func: a module or any callable that returns scores `[B, C]`.
        layer: as in `GradCam`.
        device_ids: ignored; there for Captum.

    Example:
        >>> from xattr.attr import FinerCam
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> FinerCam(embedded_model("class-token")).attribute(digit_scenes("report", n=2).images).shape
        torch.Size([2, 1, 24, 24])
    """

    @log_usage()
    def attribute(  # type: ignore[override]
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        attribute_to_layer_input: bool = False,
        relu_attributions: bool = True,
        attr_dim_summation: bool = True,
        *,
        alpha: float = 1.0,
        comparisons: int = 3,
        upsample: Upsample = "bilinear",
    ) -> Any:
        """Explain what tells one class from others.

        Args:
            inputs: images `[B, C, H, W]`.
            target: class index, or one for each image; `None` explains the predicted class.
            additional_forward_args: what else the model takes.
            attribute_to_layer_input: read what the layer takes in place of what it returns.
            relu_attributions: set negative values to 0.
            attr_dim_summation: sum over channels; else the products are returned in the layer's shape.
            alpha: how much the other classes count; 0 is `GradCam`.
            comparisons: how many other classes; as many as there are, if these are fewer.
            upsample: resize to the image, or `None` for the layer's grid.

        Returns:
            Map `[B, 1, H, W]`, or the layer's shape with `attr_dim_summation=False`.

        Raises:
            OutputError: the model has fewer than two classes.
            ValueError: `comparisons` is no number of classes.
            UnsupportedModelError: as in `GradCam`.
        """
        if isinstance(comparisons, bool) or not isinstance(comparisons, int) or comparisons < 1:
            raise ValueError(f"comparisons={comparisons!r}; expected a whole number of classes, 1 or more.")
        return self._map(
            inputs,
            lambda observed: _difference(observed, target, alpha, comparisons),
            additional_forward_args,
            attribute_to_layer_input,
            relu_attributions,
            attr_dim_summation,
            upsample,
        )


def _difference(observed: Pass, target: Target, alpha: float, comparisons: int) -> Tensor:
    scores = observed.scores
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise OutputError(
            f"FinerCam compares classes; found scores {list(scores.shape)}, expected [B, classes], 2 or more."
        )
    with torch.inference_mode(False), torch.enable_grad():
        resolved = resolve(target, scores)
        own = select(scores, resolved)
        with torch.no_grad():
            index = select(torch.arange(scores.shape[1], device=scores.device).expand(scores.shape), resolved)[:, None]
            distance = (scores - own[:, None]).abs().scatter(1, index, torch.inf)
            others = distance.topk(min(comparisons, scores.shape[1] - 1), 1, largest=False).indices
            weights = scores.gather(1, others).softmax(1)  # their probabilities over the sum of these
        return (weights * (own[:, None] - alpha * scores.gather(1, others))).sum(1)
