"""Which depth and which place: the contribution of each layer of a LAYA head, spread over tokens or cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from captum.log import log_usage
from torch import Tensor

from ..heads.collect import collect
from ..heads.model import LayaModel
from ..trace import Inputs, LayerKept, Target, UnsupportedModelError, observe
from ..trace import gradients as _gradients
from ..trace.outputs import resolve
from ._map import MapAttribution, Upsample, finish, result_dtype
from .laya import check_model, explained, of_target

__all__ = ["LayaEvidence", "LayaTokenAttribution"]


@dataclass(frozen=True)
class LayaEvidence:
    """A decision taken apart by layer and by place. L counts the layers.

    `maps.sum((2, 3)) + elsewhere + biases` are the `contributions`; these and the classifier's bias are the logit.

    Attributes:
        maps: relevance of the cells in front of the first layer, `[B, L, h, w]`.
        elsewhere: relevance of tokens that are no patches, such as the class token, `[B, L]`.
        biases: relevance of everything that does not depend on the image behind that place, `[B, L]`.
        contributions: exact share of each layer in the logit, `[B, L]`.
    """

    maps: Tensor
    elsewhere: Tensor
    biases: Tensor
    contributions: Tensor


class LayaTokenAttribution(MapAttribution):
    """The exact contribution of each layer, spread over the tokens (or cells) in front of the first of them.

    For layer i, with `alpha` held constant, `f_i = alpha_i (w_c . z_i)` is explained by input times gradient of those
    tokens under a rule set. Under `libra` (LibraGrad, arXiv:2411.16760) the values over all tokens and the relevance of
    the biases on the way sum to `f_i`.

    Cost: one forward, and one backward from each layer down to the first.

    Args:
        model: a `LayaModel` whose head mixes layers, on a backbone that takes images.

    Example:
        >>> from xattr.attr import LayaTokenAttribution
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> from xattr.heads import LayaModel
        >>> model = LayaModel(embedded_model("class-token"), num_classes=10, pool="cls")
        >>> LayaTokenAttribution(model).attribute(digit_scenes("report", n=2).images).shape
        torch.Size([2, 8, 24, 24])
    """

    def __init__(self, model: LayaModel) -> None:
        check_model(model, "LayaTokenAttribution")
        super().__init__(model)  # type: ignore[call-arg]

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        gradients: str = "libra",
        upsample: Upsample = "bilinear",
    ) -> Any:
        """Explain one class for each image.

        Args:
            inputs: images `[B, C, H, W]`, or the mapping of a Hugging Face processor.
            target: class index, or one for each image; `None` explains the predicted class.
            additional_forward_args: what else the backbone takes, by position.
            gradients: rule set of the backward.
            upsample: resize to the image, or `None` for the grid of tokens. A map on the grid sums to the layer's
                contribution less what lies on prefix tokens and biases (see `explain`); a resized one to no share.

        Returns:
            Signed maps, one for each layer, `[B, L, H, W]`; their sum over L is the map of the decision.

        Raises:
            UnsupportedModelError: where the image's cells lie in front of the first layer is not known.
        """
        checked = Inputs.of(inputs)
        maps = self.explain(inputs, target, additional_forward_args, gradients=gradients).maps
        sized = finish(maps.flatten(0, 1), checked.image, upsample)[:, 0].unflatten(0, maps.shape[:2])
        return checked.like(sized)

    def explain(
        self, inputs: Any, target: Target = None, additional_forward_args: Any = None, *, gradients: str = "libra"
    ) -> LayaEvidence:
        """The maps on the grid of tokens, and what lies elsewhere; takes the arguments of `attribute`.

        Args:
            inputs: as in `attribute`.
            target: as in `attribute`.
            additional_forward_args: as in `attribute`.
            gradients: as in `attribute`.
        """
        checked = Inputs.of(inputs)
        model: LayaModel = self.forward_func
        seen = explained(model, inputs, additional_forward_args)
        target = resolve(target, seen.logits)
        head: Any = model.head
        first = model.backbone.get_submodule(model.layers[0].path)

        def contributions(*given: Any, **named: Any) -> Tensor:
            z = head.adapters(collect(model.backbone, model.layers, named or given, model._pool))
            return of_target(seen.alpha[..., None] * (z @ head.classifier.weight.mT), target)

        watch = LayerKept(first, at_input=True)
        observed = observe(contributions, checked, additional_forward_args, rules=gradients, layer=watch)
        (layer,) = observed.layers
        if layer.geometry is None:
            raise UnsupportedModelError(
                f"where the image's cells lie in what {layer.path!r} takes is not known; LayaLayerAttribution explains "
                f"the layers without places."
            )
        dtype = result_dtype(checked.image)
        parts = []
        for i in range(len(model.layers)):
            (gradient,) = _gradients(observed.score(i), [layer.output], keep=i + 1 < len(model.layers))
            product = gradient.to(dtype) * layer.output.value.to(dtype)
            parts.append(layer.geometry.as_tokens(product).sum(-1))
        by_token = torch.stack(parts, 1).detach()  # [B, L, N]
        layout = layer.geometry.layout
        maps = by_token[..., layout.patches].unflatten(2, layout.grid)
        elsewhere = by_token[..., layout.prefix].sum(-1)
        exact = of_target(seen.contributions, target).to(dtype)
        return LayaEvidence(maps, elsewhere, exact - by_token.sum(-1), exact)
