"""What the softmax of an attention was taken of, where a model writes its attention out."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .errors import UnsupportedModelError
from .functions import is_softmax_over_keys
from .layers import LayerWatch
from .marks import Marks
from .record import Attention


class SoftmaxInputs(LayerWatch):
    """Keeps the scores in front of each softmax over tokens; those of fused attention are computed from queries."""

    def __init__(self) -> None:
        self._softmaxes: list[tuple[int, Tensor]] = []
        self._of: dict[int, int] = {}

    def operation(self, marks: Marks, name: str, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Keep what a softmax is taken of."""
        if is_softmax_over_keys(name, args, kwargs):
            self._softmaxes.append((marks.own(out), args[0].detach()))

    def attention(self, attention: Attention, of_map: int, of_values: int) -> None:
        """The newest softmax among the ancestors of a map is its own."""
        for i, (bit, _) in enumerate(self._softmaxes):
            if bit & of_map:
                self._of[id(attention)] = i

    def before_write(self, target: Tensor) -> None:
        """What is kept is copied before it is overwritten."""
        memory = target.untyped_storage().data_ptr()
        for i, (bit, kept) in enumerate(self._softmaxes):
            if kept.untyped_storage().data_ptr() == memory:
                self._softmaxes[i] = bit, kept.clone()

    def scores(self, attention: Attention, images: slice) -> Tensor:
        """What the map `[B, H, N, M]` of an attention of the pass is the softmax of, mask included.

        Raises:
            UnsupportedModelError: it is not known which softmax is whose.
        """
        if attention.weights is None:
            return attention.scores(images)
        kept = self._softmaxes[self._of[id(attention)]][1] if id(attention) in self._of else None
        if kept is None or kept.numel() != attention.weights.numel() or kept.shape[-2:] != attention.weights.shape[-2:]:
            raise UnsupportedModelError(f"the scores in front of the softmax of {attention.path!r} are not known.")
        return kept.reshape(attention.weights.shape)[images]
