"""Attention rollout: how much each patch is attended to, through all layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from captum.log import log_usage
from torch import Tensor

from ..trace import Inputs, Layout, Record, Target, UnsupportedModelError, gradients, observe
from ..trace.record import image_chunks
from ._attention import read_out
from ._map import MAP_BUDGET, MapAttribution, Upsample, finish, result_dtype

__all__ = ["AttentionRollout", "rollout"]

_FUSIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda maps: maps.mean(1),
    "max": lambda maps: maps.amax(1),
    "min": lambda maps: maps.amin(1),
}


def rollout(
    maps: Iterable[Tensor], readout: Tensor, *, head_fusion: str = "mean", discard_ratio: float = 0.0
) -> Tensor:
    """Fold a row vector through attention maps, from the last layer down.

    Each layer is `(fused + I)` with rows renormalised to 1. One vector times one matrix a layer; the product of the
    matrices is never formed.

    Args:
        maps: maps `[B, H, N, N]`, **last layer first**; an iterator is consumed one layer at a time.
        readout: weights of the tokens that are read, `[B, N]`.
        head_fusion: "mean", "max" or "min" over heads.
        discard_ratio: this share of the smallest entries of each fused map is set to 0.

    Returns:
        The folded row, `[B, N]`; its sum is that of `readout`.

    Raises:
        ValueError: an unknown fusion, or a ratio outside 0 to 1.

    Example:
        >>> import torch
        >>> A = torch.full((1, 1, 2, 2), 0.5)
        >>> rollout([A], torch.tensor([[1.0, 0.0]]))
        tensor([[0.7500, 0.2500]])
    """
    if head_fusion not in _FUSIONS:
        raise ValueError(f"head_fusion={head_fusion!r}; expected one of {sorted(_FUSIONS)}.")
    if not 0 <= discard_ratio < 1:
        raise ValueError(f"discard_ratio={discard_ratio!r}; expected 0 <= discard_ratio < 1.")
    row = readout[:, None]
    for A in maps:
        fused = _FUSIONS[head_fusion](A).to(row.dtype)
        count = int(discard_ratio * fused[0].numel())
        if count:
            smallest = fused.flatten(1).topk(count, 1, largest=False).indices
            fused = fused.flatten(1).scatter(1, smallest, 0).view_as(fused)
        # row @ (fused + I) / row sums, without a second matrix
        share = row / (fused.sum(-1) + 1)[:, None]
        row = share @ fused + share
    return row[:, 0]


class AttentionRollout(MapAttribution):
    """Attention rollout (Abnar and Zuidema, arXiv:2005.00928): `A^_L ... A^_1` with `A^ = (mean_h A + I) / 2`.

    The row that is shown belongs to the tokens that the head reads: they are found from the gradient at the last
    tokens (class token, both tokens of a distilled model, the patches under mean pooling), or from the attention pool's
    own map. Class-agnostic: the target matters only for which tokens are read.

    Cost: one forward and a backward through the head; one layer's maps at a time.

    Args:
        forward_func: a module or any callable that returns scores `[B, C]`.

    Example:
        >>> from xattr.attr import AttentionRollout
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> heat = AttentionRollout(embedded_model("mean-pool")).attribute(
        ...     digit_scenes("report", n=1).images, upsample=None)
        >>> heat.shape, round(float(heat.sum()), 3)
        (torch.Size([1, 1, 6, 6]), 1.0)
    """

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        head_fusion: Literal["mean", "max", "min"] = "mean",
        discard_ratio: float = 0.0,
        readout: Tensor | None = None,
        upsample: Upsample = "bilinear",
        map_budget: int = MAP_BUDGET,
    ) -> Any:
        """Roll attention out to the image.

        Args:
            inputs: images `[B, C, H, W]`.
            target: class index; only decides which tokens count as read.
            additional_forward_args: what else the model takes.
            head_fusion: how heads are joined.
            discard_ratio: share of the smallest entries of each map that is set to 0.
            readout: weights `[N]` or `[B, N]` of the tokens read, in place of what is found.
            upsample: resize to the image, or `None` for the token grid.
            map_budget: bytes of attention maps computed at once.

        Returns:
            Map `[B, 1, H, W]`: non-negative; the grid sums to 1 less what stays on prefix tokens.

        Raises:
            UnsupportedModelError: no column of attention blocks over one token sequence, or no read-out found.
        """
        checked = Inputs.of(inputs)
        image = checked.image
        observed = observe(self.forward_func, checked, additional_forward_args)
        layout = observed.record.require_blocks("AttentionRollout")
        with torch.inference_mode(False), torch.no_grad():
            row = self._readout(observed.record, layout, observed.score(target), readout).to(result_dtype(image))
            layers = observed.record.blocks[::-1]
            _, heads, tokens, _ = layers[0].shape
            parts = []
            for images in image_chunks(len(image), 3 * heads * tokens**2 * row.element_size(), map_budget):
                maps = (block.maps(images) for block in layers)
                parts.append(rollout(maps, row[images], head_fusion=head_fusion, discard_ratio=discard_ratio))
            patches = torch.cat(parts)[:, layout.patches]
        return checked.like(finish(patches.unflatten(1, layout.grid), image, upsample))

    @staticmethod
    def _readout(record: Record, layout: Layout, score: Tensor, given: Tensor | None) -> Tensor:
        if given is not None:
            if given.shape[-1] != layout.tokens:
                raise ValueError(
                    f"readout has the shape {list(given.shape)}; expected [{layout.tokens}] or [B, {layout.tokens}]."
                )
            return given.to(score.device).expand(len(score), -1)
        assert record.last is not None
        row = read_out(record, layout, gradients(score, [record.last])[0])
        if not bool((row > 0).any(1).all()):
            raise UnsupportedModelError(
                "AttentionRollout found no token that the score reads (its gradient at the last tokens is 0). "
                "Give the weights of the tokens read as readout=."
            )
        return row
