"""RISE: random masks, weighted by the score of what they leave."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from captum.log import log_usage
from torch import Tensor

from ..trace import Inputs, Target
from ._map import finish
from ._masks import Forwards, MaskAttribution, checked_count, image_scores

__all__ = ["RISE"]


class RISE(MaskAttribution):
    """Randomized input sampling (Petsiuk, Das and Saenko, arXiv:1806.07421).

        map = sum_n p(x * M_n) M_n / (n * mean of M)

    A mask is a coarse grid of zeros and ones, resized bilinearly and shifted at random. All images get the same masks;
    a hidden pixel is 0 as the model takes it. Works on any classifier. Our reimplementation.

    Cost: one forward for each mask, and two. `RISE.PAPER` is the authors' number of masks.

    Args:
        forward_func: a module or any callable that returns scores `[B, C]`.

    Example:
        >>> from xattr.attr import RISE
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> images = digit_scenes("report", n=2).images
        >>> RISE(embedded_model("class-token")).attribute(images, n_masks=20).shape
        torch.Size([2, 1, 24, 24])
    """

    PAPER: ClassVar[int] = 4000

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        n_masks: int = PAPER,
        cells: int = 7,
        probability: float = 0.5,
        seed: int = 0,
        budget: int | None = None,
        internal_batch_size: int | None = None,
        autocast: torch.dtype | None = None,
        show_progress: bool = False,
    ) -> Any:
        """Explain one class for each image.

        Args:
            inputs: images `[B, C, H, W]`.
            target: class index, or one for each image; `None` explains the predicted class.
            additional_forward_args: what else the model takes.
            n_masks: how many masks.
            cells: side of their grid.
            probability: that a cell is kept.
            seed: of the masks.
            budget: bytes that one forward may hold; `None` for 128 MiB on a CPU, 2 GiB elsewhere.
            internal_batch_size: how many examples one forward may hold at most, whatever the budget.
            autocast: `torch.bfloat16` or `torch.float16` runs the masked forwards under it.
            show_progress: whether to draw a progress bar.

        Returns:
            Map `[B, 1, H, W]`.

        Raises:
            ValueError: a setting is none of its choices.
        """
        count, side = checked_count("n_masks", n_masks), checked_count("cells", cells)
        if not 0 < probability <= 1:
            raise ValueError(f"probability={probability!r}; expected a number above 0, up to 1.")
        checked = Inputs.of(inputs)
        image = checked.image
        forwards = Forwards(budget, internal_batch_size, autocast, show_progress)
        masks = _Masks(count, side, probability, seed, (image.shape[2], image.shape[3]))
        with torch.inference_mode(False), torch.no_grad():
            run = forwards.of(self.forward_func, checked, additional_forward_args).bound(target)
            scores = image_scores(run, count, lambda x, n: x * masks(n).to(x)[:, None], forwards)
            total, mean = torch.zeros(len(image), image[0, 0].numel(), dtype=scores.dtype, device=scores.device), 0.0
            for part in torch.arange(count).split(64):
                some = masks(part).to(scores).flatten(1)
                total += scores[:, part.to(scores.device)] @ some
                mean += float(some.sum()) / some.shape[1] / count
            return checked.like(finish((total / (count * mean)).view_as(image[:, 0]), image, None))


class _Masks:
    """Masks by number, `[n, H, W]` on the CPU; the first do not depend on how many there are."""

    def __init__(self, count: int, side: int, probability: float, seed: int, size: tuple[int, int]) -> None:
        self._size = size
        self._cell = [math.ceil(length / side) for length in size]
        draw = torch.Generator().manual_seed(seed)
        self._grids = (torch.rand(count, 1, side, side, generator=draw) < probability).double()
        self._shifts = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed + 1))

    def __call__(self, numbers: Tensor) -> Tensor:
        numbers = numbers.cpu()
        large = [(self._grids.shape[-1] + 1) * cell for cell in self._cell]
        whole = F.interpolate(self._grids[numbers], size=large, mode="bilinear")[:, 0]
        shifts = (self._shifts[numbers] * torch.tensor(self._cell)).long().tolist()
        height, width = self._size
        return torch.stack([one[y : y + height, x : x + width] for one, (y, x) in zip(whole, shifts, strict=True)])
