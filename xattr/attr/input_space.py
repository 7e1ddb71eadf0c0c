"""Map methods in the shape of the input, as Captum's metrics want them."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from captum.attr import Attribution
from captum.log import log_usage
from torch import Tensor

from ..trace import Inputs
from ._map import MapAttribution

__all__ = ["InputSpace"]


class InputSpace(Attribution):  # type: ignore[misc]
    """Gives a map method the input's own shape; sums are kept.

    Each value of the token grid is spread over the entries of the input that its cell covers, divided by their number.

    Args:
        method: a method that returns `[B, 1, h, w]`.

    Example:
        >>> from xattr.attr import GradSkip, InputSpace
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> InputSpace(GradSkip(embedded_model("class-token"))).attribute(digit_scenes("report", n=2).images).shape
        torch.Size([2, 1, 24, 24])
    """

    def __init__(self, method: MapAttribution) -> None:
        super().__init__(method.forward_func)
        self.method = method

    def get_name(self) -> str:  # type: ignore[override]
        """Name of the method that is wrapped."""
        return str(self.method.get_name())

    @log_usage()
    def attribute(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The method's result, spread; takes the arguments of the method.

        Returns:
            Attributions in the shape of the input.
        """
        checked = Inputs.of(inputs)
        if "upsample" in inspect.signature(self.method.attribute).parameters:
            kwargs.setdefault("upsample", None)
        result = self.method.attribute(inputs, *args, **kwargs)
        heat: Tensor = result[0] if isinstance(result, tuple) else result
        channels, *size = checked.image.shape[1:]
        spread = heat / channels
        for axis, target in zip((2, 3), size, strict=True):
            cells = torch.arange(target, device=heat.device) * heat.shape[axis] // target
            count = torch.bincount(cells, minlength=heat.shape[axis])
            shape = [1, 1, 1, 1]
            shape[axis] = target
            spread = spread.index_select(axis, cells) / count[cells].view(shape)
        return checked.like(spread.expand(-1, channels, -1, -1).contiguous())
