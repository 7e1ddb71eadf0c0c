"""What a user hands over as `inputs`: one image tensor, a tuple of tensors, or the dictionary of a processor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .errors import InputError


@dataclass(frozen=True)
class Inputs:
    """Checked inputs, and how to call a model with stand-ins for them.

    Attributes:
        tensors: the floating-point tensors that are explained, `[B, ...]` each.
        is_tuple: whether the caller gave a tuple (and gets one back).
        key: name of the image in the mapping the caller gave, or `None`.
        others: the remaining entries of that mapping.
        extra: what else the model takes by position, Captum's `additional_forward_args`.
    """

    tensors: tuple[Tensor, ...]
    is_tuple: bool = False
    key: str | None = None
    others: dict[str, Any] = field(default_factory=dict)
    extra: tuple[Any, ...] = ()

    @classmethod
    def of(cls, inputs: Tensor | tuple[Tensor, ...] | Mapping[str, Any]) -> Inputs:
        """Check what the caller gave.

        Raises:
            InputError: not a tensor, empty, integer, NaN or infinite, or batch sizes that differ.
        """
        if isinstance(inputs, Mapping):
            images = {
                k: v for k, v in inputs.items() if isinstance(v, Tensor) and v.ndim == 4 and v.is_floating_point()
            }
            if len(images) != 1:
                raise InputError(
                    f"inputs is a mapping with the entries {sorted(inputs)}, of which {sorted(images)} are "
                    f"floating-point image tensors [B, C, H, W]; expected exactly one. Pass the image itself, and ask "
                    f"a processor for tensors with return_tensors='pt'."
                )
            ((key, image),) = images.items()
            result = cls((image,), key=key, others={k: v for k, v in inputs.items() if k != key})
        else:
            result = cls(inputs if isinstance(inputs, tuple) else (inputs,), is_tuple=isinstance(inputs, tuple))
        for tensor in result.tensors:
            _check(tensor)
        sizes = {len(tensor) for tensor in result.tensors}
        if len(sizes) != 1:
            raise InputError(f"the input tensors hold {sorted(sizes)} examples; expected the same number in each.")
        return result

    @property
    def image(self) -> Tensor:
        """The one image tensor `[B, C, H, W]` that a map method explains.

        Raises:
            InputError: several tensors, or not four axes.
        """
        if len(self.tensors) != 1 or self.tensors[0].ndim != 4:
            raise InputError(
                f"inputs has the shapes {[list(t.shape) for t in self.tensors]}; a map method expects one image tensor "
                f"[B, C, H, W] (a single picture needs [None] in front). Pass what else the model takes as "
                f"additional_forward_args."
            )
        return self.tensors[0]

    def beside(self, extra: Any) -> Inputs:
        """With `additional_forward_args`: `None`, a tuple, or one argument."""
        return dataclasses.replace(self, extra=as_tuple(extra))

    def rows(self, rows: Tensor | slice) -> Inputs:
        """Of some examples, repeated as asked; what has one entry for each example is taken along."""
        count = len(self.tensors[0])

        def take(value: Any) -> Any:
            return value[rows] if isinstance(value, Tensor) and value.ndim and len(value) == count else value

        tensors, extra = tuple(map(take, self.tensors)), tuple(map(take, self.extra))
        others = {name: take(value) for name, value in self.others.items()}
        return dataclasses.replace(self, tensors=tensors, others=others, extra=extra)

    def arguments(self, stand_ins: tuple[Tensor, ...], extra: Any = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of the model, with `stand_ins` in place of the tensors."""
        extra = (*self.extra, *as_tuple(extra))
        if self.key is None:
            return (*stand_ins, *extra), {}
        return extra, {self.key: stand_ins[0], **self.others}

    def like(self, result: Tensor) -> Any:
        """One result in the form of the inputs: a tuple for a tuple."""
        return (result,) if self.is_tuple else result


def as_tuple(extra: Any) -> tuple[Any, ...]:
    """`additional_forward_args`, which may be `None`, a tuple, or one argument."""
    return () if extra is None else extra if isinstance(extra, tuple) else (extra,)


def _check(tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise InputError(
            f"inputs holds a {type(tensor).__name__}; expected a torch.Tensor [B, C, H, W], for instance from "
            f"torch.from_numpy or the model's own transform."
        )
    if tensor.ndim == 0 or tensor.numel() == 0:
        raise InputError(f"inputs has the shape {list(tensor.shape)}: there is nothing to explain in an empty batch.")
    if not tensor.is_floating_point():
        raise InputError(
            f"inputs is of {tensor.dtype}; expected floating point, as the model takes it. Convert and normalise the "
            f"image first, for instance (image / 255 - mean) / std."
        )
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise InputError(
            f"inputs holds {bad} value(s) that are NaN or infinite; an explanation of them has no meaning."
        )
