"""ViT-CX: masks from clusters of the last features, weighted by their effect on the score."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from captum.log import log_usage
from scipy.cluster.hierarchy import fcluster, linkage
from torch import Tensor

from ..trace import Inputs, LayerFinder, Target, UnsupportedModelError, observe
from ._map import finish, result_dtype
from ._masks import Forwards, MaskAttribution, checked_count, image_scores

__all__ = ["ViTCX"]


class ViTCX(MaskAttribution):
    """ViT-CX (Xie et al., IJCAI 2023, arXiv:2211.03064).

    The channels of what the last attention reads, resized to the image and scaled to [0, 1] each, are clustered
    (complete linkage, cosine distance below `distance`); the sum of each cluster, scaled to [0, 1], is a mask. With
    noise `n_k = noise N(0, 1) (1 - M_k)`, the same in both passes,

        score_k = p(x M_k + n_k) - p(x + n_k) + p(x),   map = mean_k score_k M_k / sum_k M_k

    All images get the same noise. Channels that are the same everywhere are left out. Works where `GradCam` finds a
    layer. Our reimplementation.

    Cost: two forwards and two for each mask; the number of masks, some tens or hundreds, depends on the image.

    Args:
        forward_func: a module or any callable that returns scores `[B, C]`.

    Example:
        >>> from xattr.attr import ViTCX
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> ViTCX(embedded_model("class-token")).attribute(digit_scenes("report", n=2).images).shape
        torch.Size([2, 1, 24, 24])
    """

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        distance: float = 0.1,
        noise: float = 0.1,
        n_masks: int | None = None,
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
            distance: channels of one cluster are closer than this.
            noise: standard deviation of the noise behind a mask, in units of the model's input.
            n_masks: at most this many masks, those of the largest clusters; `None` for all, as in the paper.
            seed: of the noise.
            budget: bytes that one forward may hold; `None` for 128 MiB on a CPU, 2 GiB elsewhere.
            internal_batch_size: how many examples one forward may hold at most, whatever the budget.
            autocast: `torch.bfloat16` or `torch.float16` runs the masked forwards under it.
            show_progress: whether to draw a progress bar.

        Returns:
            Map `[B, 1, H, W]`.

        Raises:
            ValueError: a setting is none of its choices.
            UnsupportedModelError: no layer in which the image's cells can be told.
        """
        most = None if n_masks is None else checked_count("n_masks", n_masks)
        if not 0 < distance <= 2 or not noise >= 0:
            raise ValueError(f"distance={distance!r}, noise={noise!r}; expected 0 < distance <= 2 and noise >= 0.")
        checked = Inputs.of(inputs)
        image = checked.image
        observed = observe(self.forward_func, checked, additional_forward_args, layer=LayerFinder())
        layer = observed.layers[0] if observed.layers else None
        if layer is None or layer.geometry is None:
            raise UnsupportedModelError("ViTCX found no layer near the output in which the image's cells can be told.")
        forwards = Forwards(budget, internal_batch_size, autocast, show_progress)
        with torch.inference_mode(False), torch.no_grad():
            run = forwards.of(self.forward_func, checked, additional_forward_args).measured()
            run = run.resolved(observed.scores, target)
            rows = torch.arange(len(image), device=image.device)
            plain = run.values(observed.scores.detach(), rows)
            tokens = layer.geometry.as_tokens(layer.output.value)[:, layer.geometry.layout.patches]
            grids = tokens.to(result_dtype(image)).mT.unflatten(2, layer.geometry.layout.grid)
            maps = []
            for b in range(len(image)):
                masks = _masks(grids[b], (image.shape[2], image.shape[3]), distance, most)
                target_b = run.target[b : b + 1] if isinstance(run.target, (list, Tensor)) else run.target
                alone = dataclasses.replace(run, inputs=run.of(rows[b : b + 1]), extra=None, target=target_b)
                maps.append(_map(alone, masks, plain[b], noise, seed, forwards))
            return checked.like(finish(torch.stack(maps), image, None))


def _scaled(maps: Tensor) -> Tensor:
    """Each map from 0 to 1; one that is the same everywhere becomes 0."""
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return (maps - low) / torch.where(high > low, high - low, 1)


def _masks(grids: Tensor, size: tuple[int, int], distance: float, most: int | None) -> Tensor:
    """Masks `[K, H, W]` from the channels of one image, `[D, h, w]`."""
    maps = _scaled(F.interpolate(grids[None], size=size, mode="bilinear")[0])
    maps = maps[maps.amax((1, 2)) > 0]
    if len(maps) < 2:
        return maps
    directions = F.normalize(maps.flatten(1), dim=1)
    apart = (1 - directions @ directions.T).double().clamp_min(0).cpu().numpy()
    pairs = apart[np.triu_indices(len(maps), 1)]
    # Below the distance, not at it.
    numbers = fcluster(linkage(pairs, "complete"), np.nextafter(distance, 0), "distance")
    _, first, own, sizes = np.unique(numbers, return_index=True, return_inverse=True, return_counts=True)
    order = np.lexsort((first, -sizes))[:most]  # the largest first, of equal ones that with the first channel
    sums = torch.zeros(len(sizes), *size, dtype=maps.dtype, device=maps.device)
    sums = sums.index_add(0, torch.from_numpy(own.reshape(-1)).to(maps.device), maps)
    return _scaled(sums[torch.from_numpy(order).to(maps.device)])


def _map(run: Any, masks: Tensor, plain: Tensor, noise: float, seed: int, forwards: Forwards) -> Tensor:
    """The map of one image, `[H, W]`, from its masks."""
    if not len(masks):
        return torch.zeros(run.inputs.image.shape[2:], dtype=plain.dtype, device=plain.device)
    shape = run.inputs.image.shape[1:]

    def change(x: Tensor, numbers: Tensor) -> Tensor:
        which = torch.div(numbers, 2, rounding_mode="floor")
        M = masks[which].to(x)[:, None]
        drawn = [torch.randn(shape, generator=torch.Generator().manual_seed(seed + int(k))) for k in which]
        behind = noise * torch.stack(drawn).to(x) * (1 - M)
        return torch.where((numbers % 2 == 0)[:, None, None, None], x * M, x) + behind

    found = image_scores(run, 2 * len(masks), change, forwards)[0]
    scores = found[0::2] - found[1::2] + plain
    wide = masks.to(scores)
    covered = wide.sum(0)
    return (scores[:, None, None] * wide).sum(0) / len(masks) / torch.where(covered > 0, covered, 1)
