"""Grad-CAM at a convolution layer or a layer of tokens."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from captum.attr import LayerAttribution
from captum.log import log_usage
from torch import Tensor, nn

from ..trace import (
    Inputs,
    Layer,
    LayerCut,
    LayerFinder,
    LayerKept,
    Pass,
    Target,
    UnsupportedModelError,
    gradients,
    observe,
)
from ..trace.modules import unwrapped
from ._map import MapAttribution, Upsample, finish, result_dtype

__all__ = ["GradCam"]


class GradCam(MapAttribution, LayerAttribution):
    """Grad-CAM (Selvaraju et al., arXiv:1610.02391): channels weighted by their mean gradient.

        w_c = mean over cells of df/dT,   map = ReLU(sum_c w_c T_c)

    `T` is what a layer returns: feature maps `[B, C, h, w]` or `[B, h, w, C]`, or tokens `[B, N, D]`, of which the
    patches count. Which axis holds channels, and where the patches lie, is known from the pass. Without a layer the
    method takes what the last attention reads (the output of its block's first norm, as a rule), in a network without
    attention the last feature map; `found_layer` names it.

    Cost: one forward, and a backward from the score to the layer. With a layer given nothing in front of it is kept
    (but for a layer that returns its own input, and for `attribute_to_layer_input`).

    Args:
        forward_func: a module or any callable that returns scores `[B, C]`.
        layer: a module, or its dotted path; `None` to have one chosen. Where it runs more than once, the last call
            that the scores depend on counts; of several tensors that it returns, the last with known cells.
        device_ids: ignored; there for Captum.

    Example:
        >>> from xattr.attr import GradCam
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> model, images = embedded_model("class-token"), digit_scenes("report", n=2).images
        >>> GradCam(model, "blocks.4.norm1").attribute(images).shape
        torch.Size([2, 1, 24, 24])
        >>> GradCam(model).found_layer(images)
        'blocks.7.norm1'
    """

    def __init__(
        self, forward_func: Callable[..., Any], layer: nn.Module | str | None = None, device_ids: Any = None
    ) -> None:
        MapAttribution.__init__(self, forward_func)  # type: ignore[call-arg]
        self.layer = layer
        self.device_ids = device_ids

    @property
    def multiplies_by_inputs(self) -> bool:
        """The layer's gradient is multiplied by its value."""
        return True

    def found_layer(self, inputs: Any, additional_forward_args: Any = None) -> str:
        """Dotted path of the layer that `attribute` reads.

        Args:
            inputs: images `[B, C, H, W]`.
            additional_forward_args: what else the model takes.

        Raises:
            UnsupportedModelError: the model has no layer in which the image's cells can be told.
        """
        score = lambda observed: observed.score(None)
        return self._layer(Inputs.of(inputs), score, additional_forward_args, at_input=False)[0].path

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        attribute_to_layer_input: bool = False,
        relu_attributions: bool = True,
        attr_dim_summation: bool = True,
        *,
        upsample: Upsample = "bilinear",
    ) -> Any:
        """Explain one class for each image.

        Args:
            inputs: images `[B, C, H, W]`.
            target: class index, or one for each image; `None` explains the predicted class.
            additional_forward_args: what else the model takes.
            attribute_to_layer_input: read what the layer takes in place of what it returns.
            relu_attributions: set negative values to 0.
            attr_dim_summation: sum over channels; else the products `w_c T_c` are returned in the layer's shape.
            upsample: resize to the image, or `None` for the layer's grid.

        Returns:
            Map `[B, 1, H, W]`, or the layer's shape with `attr_dim_summation=False`.

        Raises:
            UnsupportedModelError: no gradient reaches the patches at this layer, or where the image's cells lie in it
                is not known; the message names a layer that works.
            InputError: the layer did not run.
        """
        return self._map(
            inputs,
            lambda observed: observed.score(target),
            additional_forward_args,
            attribute_to_layer_input,
            relu_attributions,
            attr_dim_summation,
            upsample,
        )

    def _map(
        self,
        inputs: Any,
        score: Callable[[Pass], Tensor],
        extra: Any,
        at_input: bool,
        relu_attributions: bool,
        attr_dim_summation: bool,
        upsample: Upsample,
    ) -> Any:
        checked = Inputs.of(inputs)
        image = checked.image
        layer, gradient = self._layer(checked, score, extra, at_input)
        geometry, value = layer.geometry, layer.output.value
        assert geometry is not None
        with torch.inference_mode(False), torch.no_grad():
            cells = geometry.layout.patches
            weights = geometry.as_tokens(gradient)[:, cells].to(result_dtype(image)).mean(1, keepdim=True)
            products = weights * geometry.as_tokens(value)
            if not attr_dim_summation:
                products = products.relu() if relu_attributions else products
                products = products.view([value.shape[axis] for axis in geometry.order])
                return checked.like(products.permute([geometry.order.index(axis) for axis in range(value.ndim)]))
            grid = products[:, cells].sum(-1).unflatten(1, geometry.layout.grid)
        return checked.like(finish(grid.relu() if relu_attributions else grid, image, upsample))

    def _layer(
        self, inputs: Inputs, score: Callable[[Pass], Tensor], extra: Any, at_input: bool
    ) -> tuple[Layer, Tensor]:
        """The layer that is read, and the gradient there."""
        if self.layer is None:
            if at_input:
                raise ValueError("attribute_to_layer_input=True needs a layer; this GradCam was made without one.")
            observed = self._found(inputs, extra)
        else:
            observed = self._given(inputs, extra, at_input)
        layer = observed.layers[0]
        if layer.geometry is None:
            shape, advice = list(layer.output.value.shape), self._advice(layer, inputs, score, extra)
            raise UnsupportedModelError(
                f"where the image's cells lie in the layer {layer.path!r} {shape} is not known (windows, one token, "
                f"another order){advice}."
            )
        (gradient,) = gradients(score(observed), [layer.output])
        reached = _reached(layer, gradient)
        if reached == "others":
            found = self._reached_layers(inputs, score, extra) if self.layer is None else []
            if found:
                return found[0]
            raise UnsupportedModelError(
                f"no gradient reaches the patch tokens at the layer {layer.path!r}: behind it the score reads other "
                f"tokens only{self._advice(layer, inputs, score, extra)}."
            )
        if reached == "nothing":
            warnings.warn(
                f"the gradient of the score is 0 at the layer {layer.path!r}, so the map is 0 (a classifier that is "
                f"still zero, or saturated?)",
                UserWarning,
                stacklevel=5,
            )
        return layer, gradient

    def _given(self, inputs: Inputs, extra: Any, at_input: bool) -> Pass:
        module = _module(self.forward_func, self.layer)
        if not at_input:
            cut = LayerCut(module)
            observed = observe(self.forward_func, inputs, extra, layer=cut)
            if not cut.comes_late:
                return observed
        return observe(self.forward_func, inputs, extra, layer=LayerKept(module, at_input))

    def _found(self, inputs: Inputs, extra: Any) -> Pass:
        observed = observe(self.forward_func, inputs, extra, layer=LayerFinder())
        if not observed.layers:
            raise UnsupportedModelError(
                "GradCam found no layer near the output in which the image's cells can be told; give one as layer=. "
                "IntegratedGradients explains any differentiable model."
            )
        return observed

    def _reached_layers(
        self, inputs: Inputs, score: Callable[[Pass], Tensor], extra: Any
    ) -> list[tuple[Layer, Tensor]]:
        """The layers at which a gradient reaches the patches, best first."""
        observed = observe(self.forward_func, inputs, extra, layer=LayerFinder())
        found = gradients(score(observed), [layer.output for layer in observed.layers])
        pairs = zip(observed.layers, found, strict=True)
        return [(layer, gradient) for layer, gradient in pairs if _reached(layer, gradient) == "patches"]

    def _advice(self, layer: Layer, inputs: Inputs, score: Callable[[Pass], Tensor], extra: Any) -> str:
        found = [other.path for other, _ in self._reached_layers(inputs, score, extra) if other.path != layer.path]
        return f"; try {found[0]!r}, or give no layer" if found else ""


def _reached(layer: Layer, gradient: Tensor) -> Literal["patches", "others", "nothing"]:
    """What the gradient reaches."""
    assert layer.geometry is not None
    tokens = layer.geometry.as_tokens(gradient)
    if bool(tokens[:, layer.geometry.layout.patches].any()):
        return "patches"
    return "others" if bool(tokens.any()) else "nothing"


def _module(forward_func: Any, layer: nn.Module | str | None) -> nn.Module:
    if isinstance(layer, nn.Module):
        return layer
    model = unwrapped(forward_func)
    if not isinstance(layer, str) or not isinstance(model, nn.Module):
        raise ValueError(f"layer={layer!r} of a {type(model).__name__}; expected a module, or a path in a module.")
    layer = layer.removeprefix("_orig_mod.").removeprefix("module.")
    try:
        return model.get_submodule(layer)
    except AttributeError:
        names = [name for name, _ in model.named_modules() if name]
        close = difflib.get_close_matches(layer, names, 4, 0.5) or names[:4]
        raise ValueError(f"the model has no layer {layer!r}; it has {', '.join(close)} ...") from None
