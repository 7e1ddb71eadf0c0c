"""What all methods share that return one map for each image."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from captum.attr import GradientAttribution
from torch import Tensor

from ..trace import Activation, Layout, Record

Upsample: TypeAlias = Literal["bilinear", "nearest"] | None
MAP_BUDGET = 2**30


class NamedAttribution(GradientAttribution):  # type: ignore[misc]
    """A Captum attribution of this package."""

    @classmethod
    def get_name(cls) -> str:
        """Readable name of the method."""
        return f"xattr {cls.__name__}"

    def attribute_future(self, *args: Any, **kwargs: Any) -> Any:
        """Not available.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"attribute_future is not implemented for {type(self).__name__}; use attribute.")

    def attribute_targets(self, *args: Any, **kwargs: Any) -> Any:
        """Maps of several classes from one forward, `[T, B, ...]`, where a method shares it.

        Raises:
            NotImplementedError: this method does not.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not share a forward between targets; call attribute for each of them."
        )


class MapAttribution(NamedAttribution):
    """A Captum attribution whose result is a map `[B, 1, H, W]`."""

    def compute_convergence_delta(self, *args: Any, **kwargs: Any) -> Any:
        """Not available: a map is not complete, its sum is no difference of outputs.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"{type(self).__name__} is not complete: its sum has no value to be compared with.")


def checked_targets(targets: Sequence[Any] | Tensor) -> list[Any]:
    """The entries of `targets`.

    Raises:
        ValueError: it is no sequence, or empty.
    """
    if not isinstance(targets, (list, tuple, Tensor)) or (isinstance(targets, Tensor) and not targets.ndim):
        raise ValueError(f"targets={targets!r}; expected a sequence of targets, or a tensor [T] or [T, B].")
    if not len(targets):
        raise ValueError("targets is empty; expected at least one class.")
    return list(targets)


def result_dtype(image: Tensor) -> torch.dtype:
    """`float64` for float64 images, else `float32`, also for models in half precision."""
    return torch.float64 if image.dtype == torch.float64 else torch.float32


def finish(grid: Tensor, image: Tensor, upsample: Upsample) -> Tensor:
    """A map on the token grid `[B, h, w]` as `[B, 1, H, W]`, or `[B, 1, h, w]` with `upsample=None`; not normalised."""
    result = grid.detach().to(result_dtype(image))[:, None]
    if upsample is None:
        return result
    if upsample not in ("bilinear", "nearest"):
        raise ValueError(f'upsample={upsample!r}; expected "bilinear", "nearest" or None.')
    return F.interpolate(result, size=image.shape[-2:], mode=upsample)


def dot(x: Activation, gradient: Tensor) -> Tensor:
    """Gradient times activation of each token, `[B, N]`, summed over channels in at least float32."""
    wide = torch.promote_types(x.value.dtype, torch.float32)
    return (x.value.to(wide) * gradient.to(wide)).sum(-1)


def tokens_read(last_gradient: Tensor) -> Tensor:
    """Which of the last tokens the head reads: those that the gradient reaches, boolean `[B, N]`."""
    return (last_gradient != 0).any(-1)


def warn_if_zero(gradient: Tensor) -> None:
    """Say that a map is 0 because nothing is read, not because nothing was found."""
    _warn_unless(bool(gradient.any()))


def _warn_unless(read: bool) -> None:
    if not read:
        warnings.warn(
            "the gradient of the score is 0 at every token, so the map is 0: the score does not depend on them (a "
            "classifier that is still zero, or saturated?)",
            UserWarning,
            stacklevel=3,
        )


def walk_start(record: Record, layout: Layout, last_gradient: Tensor, skip_prefix: bool) -> tuple[int, Activation]:
    """Where a walk over patch tokens begins: the number of blocks it passes, and the tokens in front of it.

    Behind the last block of a class-token model no gradient reaches a patch; the walk then begins one block earlier, at
    the tokens that the last block reads. That is read off the gradient and not off the forward, where a mean that
    gives the class token the weight 0 cannot be told from one that reads it; it is all that a pass asks the device for.
    """
    assert record.last is not None
    read = tokens_read(last_gradient).any(0)
    prefix = torch.zeros_like(read)
    prefix[: layout.patches.start] = prefix[layout.patches.stop :] = True
    anything, something_else = torch.stack([read.any(), (read & prefix).any()]).tolist()
    _warn_unless(anything)
    if skip_prefix and something_else:
        return len(record.blocks) - 1, record.blocks[-1].x
    return len(record.blocks), record.last
