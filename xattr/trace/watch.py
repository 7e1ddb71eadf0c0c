"""Following what comes from the images through the calls of a forward, and finding one of these calls again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from .._nested import tensors_in
from .functions import in_evaluation, name_of, overwritten


@dataclass(frozen=True)
class Making:
    """A call by which something comes about: which one of a function, of those on images with a result of this shape.

    Attributes:
        name: of the function.
        shape: of the result, behind the axis of images.
        number: of the call.
    """

    name: str
    shape: torch.Size
    number: int


class Watch(TorchFunctionMode):
    """Follows through the calls of a forward what comes from the images; constants do not count."""

    def __init__(self) -> None:
        super().__init__()
        self._images = WeakTensorKeyDictionary()
        self._counts: dict[tuple[str, torch.Size], int] = {}

    def begin(self, tensors: tuple[Tensor, ...]) -> None:
        """Before the forward: what it is called with."""
        self._images.update(dict.fromkeys(tensors, True))

    def call(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Making | None]:
        """What a call returns, and which call it was, if it returns one tensor from images."""
        out = func(*args, **kwargs)
        if not any(t in self._images for t in tensors_in((args, kwargs))):
            return out, None
        name = name_of(func)
        for tensor in tensors_in((out, overwritten(func, name, args, kwargs))):
            self._images[tensor] = True
        if not isinstance(out, Tensor) or not out.ndim:
            return out, None
        key = name, out.shape[1:]
        self._counts[key] = self._counts.get(key, 0) + 1
        return out, Making(*key, self._counts[key])


class Finder(Watch):
    """Finds the first call that makes given tokens, and the lengths of all axes that occur."""

    def __init__(self, tokens: Tensor) -> None:
        super().__init__()
        self._tokens = tokens
        self.found: Making | None = None
        self.lengths: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = in_evaluation(func, args, kwargs or {})
        out, making = self.call(func, args, kwargs)
        self.lengths.update(length for tensor in tensors_in(out) for length in tensor.shape)
        like = self.found is None and making is not None and out.shape == self._tokens.shape
        if like and out.dtype == self._tokens.dtype and self._close(out.detach()):
            self.found = making
        return out

    def _close(self, made: Tensor) -> bool:
        """Whether these are the tokens: a pass runs batch norm as an affine map, which rounds another way."""
        if torch.equal(made, self._tokens):
            return True
        largest = float(self._tokens.abs().max())
        return torch.allclose(made, self._tokens, rtol=0, atol=64 * torch.finfo(made.dtype).eps * largest)
