"""The biases that a model adds to its tokens, and where their gradients arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from .errors import UnsupportedModelError
from .functions import ADDITIONS
from .geometry import Geometry, geometry_of
from .layers import Layer, LayerWatch
from .marks import Marks
from .record import Activation, Layout

_BIAS_AT = {"linear": 2, "conv1d": 2, "conv2d": 2, "layer_norm": 3, "group_norm": 3}


@dataclass(frozen=True)
class Bias:
    """A bias that was added to tokens.

    Attributes:
        value: what was added, broadcastable to the output.
        edge: where the gradient of the output arrives.
        geometry: how the output is read as tokens; `None` where attention has mixed them.
        shape: of the output.
    """

    value: Tensor
    edge: GradientEdge
    geometry: Geometry | None
    shape: torch.Size

    def times(self, gradient: Tensor, layout: Layout, swapped: bool) -> Tensor | None:
        """Bias times its gradient for each patch, `[B, P]`, in at least float32; `None` if it lies on other cells.

        Args:
            gradient: of the output.
            layout: of the tokens of the model.
            swapped: whether it has tokens first, images second.
        """
        order = (1, 0, 2) if swapped else (0, 1, 2)
        geometry = self.geometry or (Geometry(layout, order, 1) if len(self.shape) == 3 else None)
        if geometry is None or geometry.layout.grid != layout.grid:
            return None
        wide = gradient.double() if gradient.dtype.itemsize == 8 else gradient.float()
        tokens = geometry.as_tokens(wide * self.value.to(wide))
        return tokens.sum(-1)[:, geometry.layout.patches] if tokens.shape[1] == geometry.layout.tokens else None


class Biases(LayerWatch):
    """Keeps biases of linear maps, convolutions and norms, and constants added to tokens (position embeddings)."""

    def __init__(self) -> None:
        # Each residual sum with its own bit, and the biases in front of it, behind the one before.
        self._segments: list[tuple[int, GradientEdge, list[Bias]]] = []
        self._reached = 0
        self._now: list[Bias] = []
        self._sum: Tensor | None = None

    def tokens(self, made: Tensor) -> None:
        """A segment ends."""
        self._sum = made

    def operation(self, marks: Marks, name: str, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Keep the bias of a call, and end the segment with a residual sum."""
        if not isinstance(out, Tensor) or not out.requires_grad or out.ndim < 3:
            return
        if self._sum is not None and out is self._sum:
            self._segments.append((marks.own(out), get_gradient_edge(out), self._now))
            self._now, self._sum = [], None
            return
        value = self._bias(marks, name, args, kwargs)
        if value is not None:
            if name.startswith("conv") or name == "group_norm":
                value = value.view(-1, *(1,) * (out.ndim - 2))
            self._now.append(Bias(value.detach(), get_gradient_edge(out), geometry_of(marks.place(out)), out.shape))

    def chain(self, last: Activation) -> tuple[list[GradientEdge], list[list[Bias]]]:
        """The residual sums up to the last tokens, n of them, and n + 1 groups of biases: in front of each, and behind.

        Raises:
            UnsupportedModelError: the last tokens are none of them.
        """
        assert last.edge is not None
        sums: list[GradientEdge] = []
        between: list[list[Bias]] = [[]]
        for own, made, biases in self._segments:
            between[-1] += biases
            # A sum that the scores do not depend on is no part of the chain.
            if own & self._reached and not (sums and sums[-1].node is last.edge.node):
                sums.append(made)
                between.append([])
        between[-1] += self._now
        if not sums or sums[-1].node is not last.edge.node:
            raise UnsupportedModelError("the last tokens are none of the residual sums of this model.")
        return sums, between

    def result(self, marks: Marks, scores: Tensor) -> list[Layer]:
        """No layers; only what the scores depend on counts."""
        self._reached = marks.ancestors(scores)
        return []

    @staticmethod
    def _bias(marks: Marks, name: str, args: Any, kwargs: Any) -> Tensor | None:
        if name in ADDITIONS:
            if kwargs or len(args) != 2 or not all(isinstance(arg, Tensor) for arg in args):
                return None
            constants = [arg for arg in args if not marks.varies(arg)]
            return constants[0] if len(constants) == 1 and constants[0].ndim <= 3 else None
        at = _BIAS_AT.get(name)
        if at is None:
            return None
        bias = args[at] if len(args) > at else kwargs.get("bias")
        return bias if isinstance(bias, Tensor) and not marks.varies(bias) else None
