"""Controls: maps that know nothing of the model, and a blurred one that knows no more than the method it is made of.

An explainer that does not beat them has shown nothing.
"""

from __future__ import annotations

import zlib
from typing import Any

import scipy.ndimage
import torch
import torch.nn.functional as F
from captum.attr import Attribution
from captum.log import log_usage
from torch import Tensor

from ..trace import Inputs, Target
from ._map import MapAttribution, finish, result_dtype

__all__ = ["BlurredMap", "BrightnessMap", "CentreMap", "EdgeMap", "RandomMap"]


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


class EdgeMap(_Control):
    """An edge detector: length of Sobel's gradient of the image, averaged over channels, per pixel."""

    def _map(self, image: Tensor) -> Tensor:
        grey = F.pad(image.to(result_dtype(image)).mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
        across = torch.tensor([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], dtype=grey.dtype, device=grey.device) / 8
        slopes = F.conv2d(grey, torch.stack([across, across.T])[:, None])
        return slopes.square().sum(1).sqrt()


class BlurredMap(Attribution):  # type: ignore[misc]
    """The map of another method, blurred by a Gaussian: the control to put beside that method.

    Blurring knows nothing of the model, and yet raises what retraining and imputation measure (ROAR and ROAD; Song, Cha
    and Seo, arXiv:2304.13836). Where the blurred map is as good, a metric did not see what the method adds to it. Sums
    are kept.

    Args:
        method: any Captum attribution of images whose result is `[B, C, h, w]`.
        sigma: of the Gaussian, as a share of the shorter side of the map: 11 pixels of 224 by default.

    Raises:
        ValueError: `sigma` is no length.

    Example:
        >>> from xattr.attr import BlurredMap, GradSkip
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> BlurredMap(GradSkip(embedded_model("class-token"))).attribute(digit_scenes("report", n=2).images).shape
        torch.Size([2, 1, 24, 24])
    """

    def __init__(self, method: Attribution, sigma: float = 0.05) -> None:
        if not 0 < sigma < float("inf"):
            raise ValueError(f"sigma={sigma!r}; expected a share of the side of the map above 0, such as 0.05.")
        super().__init__(method.forward_func)
        self.method = method
        self.sigma = sigma

    def get_name(self) -> str:  # type: ignore[override]
        """Name of the method, blurred."""
        return f"blurred {self.method.get_name()}"

    @log_usage()
    def attribute(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The method's result, blurred; takes the arguments of the method.

        Returns:
            Maps in the shape of the method's.

        Raises:
            ValueError: the method's result is no map.
        """
        result = self.method.attribute(inputs, *args, **kwargs)
        heat: Tensor = (result[0] if isinstance(result, tuple) else result).detach()
        if heat.ndim != 4:
            raise ValueError(f"{self.get_name()}: the method returned {list(heat.shape)}; expected maps [B, C, h, w].")
        sigma = self.sigma * min(heat.shape[2:])
        # Mirrored at the border, each value is spread over the picture in shares that sum to 1.
        blurred = scipy.ndimage.gaussian_filter(heat.double().cpu().numpy(), (0, 0, sigma, sigma), mode="reflect")
        return Inputs.of(inputs).like(torch.from_numpy(blurred).to(heat))
