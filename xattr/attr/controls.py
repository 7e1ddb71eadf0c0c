"""Controls: maps that know nothing of the model. An explainer that does not beat them has shown nothing."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from captum.log import log_usage
from torch import Tensor

from ..trace import Inputs, Target
from ._map import MapAttribution, finish

__all__ = ["BrightnessMap", "CentreMap", "RandomMap"]


class _Control(MapAttribution):
    """A map of the image alone; takes Captum's arguments so that it can stand beside the methods."""

    @log_usage()
    def attribute(self, inputs: Any, target: Target = None, additional_forward_args: Any = None) -> Any:
        """The control map.

        Args:
            inputs: images `[B, C, H, W]`.
            target: ignored.
            additional_forward_args: ignored.

        Returns:
            Map `[B, 1, H, W]`.
        """
        checked = Inputs.of(inputs)
        return checked.like(finish(self._map(checked.image.detach()), checked.image, None))

    def _map(self, image: Tensor) -> Tensor:
        raise NotImplementedError


class RandomMap(_Control):
    """Uniform noise for each pixel, drawn from the image's own content: the same image always gets the same noise."""

    def _map(self, image: Tensor) -> Tensor:
        def noise(one: Tensor) -> Tensor:
            seed = zlib.crc32(one.double().cpu().contiguous().numpy().tobytes())
            return torch.rand(one.shape[-2:], generator=torch.Generator().manual_seed(seed))

        return torch.stack([noise(one) for one in image]).to(image.device)


class CentreMap(_Control):
    """Largest in the centre of the picture and falling with the distance from it, 1 to 0 in the corners."""

    def _map(self, image: Tensor) -> Tensor:
        height, width = image.shape[-2:]
        y = torch.linspace(-1, 1, height, dtype=torch.float64, device=image.device)[:, None]
        x = torch.linspace(-1, 1, width, dtype=torch.float64, device=image.device)
        return (1 - ((x**2 + y**2) / 2).sqrt()).expand(len(image), -1, -1)


class BrightnessMap(_Control):
    """The image itself, averaged over channels."""

    def _map(self, image: Tensor) -> Tensor:
        return image.mean(1)
