"""Which rows and columns of a linear map's gradient can be other than 0, known from the forward alone.

Under rules that hold attention constant no gradient reaches queries and keys: of a linear map that makes queries, keys
and values in one, only the columns of the values count. Behind the last attention of a class-token model only the rows
that the head reads count. Beside a tensor stands where its entries come from: the columns of a linear map, and the rows
of a *base*, which is what an attention returns and what its residual sum makes. Moves are replayed on that, what acts
on each row keeps the rows; every other use counts as reading all of it. Nothing is read off values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._nested import replace_tensors, tensors_in
from ..rules.names import MOVES
from .functions import BY_ENTRY, rule_name
from .marks import Marks

NOWHERE = -1


@dataclass(eq=False)
class Origin:
    """Rows of a base, or columns of a linear map.

    Attributes:
        size: how many there are.
        by_row: whether they are rows.
        read: those that are read.
        parents: bases whose rows these are too, in the same order.
    """

    size: int
    by_row: bool
    read: set[int] = field(default_factory=set)
    parents: list[Origin] = field(default_factory=list)


@dataclass(eq=False)
class Plan:
    """What the backward of a linear map may leave out; filled in when the forward is over.

    Attributes:
        columns: those of its output through which a gradient may come; `None` for all.
        rows: axis and indices of the rows through which a gradient may come; `None` for all.
    """

    columns: Tensor | None = None
    rows: tuple[int, Tensor] | None = None


class PlannedLinear(torch.autograd.Function):
    """A linear map whose backward follows a plan. Weights get no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan) -> Tensor:  # type: ignore[override]
        """The ordinary map."""
        ctx.save_for_backward(weight)
        ctx.plan, ctx.bias_shape = plan, None if bias is None else bias.shape
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Only what the plan does not leave out."""
        (weight,) = ctx.saved_tensors
        on_bias = grad.sum_to_size(ctx.bias_shape) if ctx.needs_input_grad[2] else None
        plan: Plan = ctx.plan
        if plan.columns is not None:
            grad, weight = grad.index_select(-1, plan.columns), weight.index_select(0, plan.columns)
        if plan.rows is None:
            return grad @ weight, None, on_bias, None
        axis, rows = plan.rows
        result = grad.new_zeros(*grad.shape[:-1], weight.shape[1])
        return result.index_copy(axis, rows, grad.index_select(axis, rows) @ weight), None, on_bias, None


class Liveness:
    """Follows rows and columns through a pass.

    Args:
        marks: the marks of the pass.
    """

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._bases: list[Origin] = []
        # Of each planned linear map: its columns, and the rows of its output.
        self._plans: list[tuple[Plan, Origin, Tensor, tuple[Origin, Tensor] | None]] = []

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A linear map with a plan."""
        plan = Plan()
        out: Tensor = PlannedLinear.apply(x, weight, bias, plan)
        out._xattr_plan = plan  # type: ignore[attr-defined]
        return out

    def follow(
        self,
        name: str,
        func: Any,
        args: Any,
        kwargs: Any,
        outputs: list[Tensor],
        before: dict[int, Any],
        unread: set[int],
    ) -> None:
        """An operation: where its results come from, and what it reads.

        Args:
            name: its name.
            func: the function.
            args: its positional arguments.
            kwargs: its keyword arguments.
            outputs: what it made, with their marks; nothing, if it has overwritten something.
            before: origins of its operands, by their ids, before it ran.
            unread: ids of operands through which no gradient passes.
        """
        if any(out is operand for out in outputs for operand in tensors_in(args)):
            return  # dropout in evaluation: nothing has happened
        found: list[list[tuple[Origin, Tensor]]] = [[] for _ in outputs]
        for tensor in {id(t): t for t in tensors_in((args, kwargs))}.values():
            for origin, index in before.get(id(tensor), ()):
                kept = self._kept(name, func, args, kwargs, tensor, origin, index, outputs)
                if kept is not None:
                    for place, one in zip(found, kept, strict=True):
                        place.append((origin, one))
                elif id(tensor) not in unread:
                    _read(origin, index)
        for tensor, origins in zip(outputs, found, strict=True):
            plan = getattr(tensor, "_xattr_plan", None) if name == "linear" else None
            if plan is not None:
                columns = Origin(tensor.shape[-1], by_row=False)
                index = torch.arange(columns.size, device="cpu").expand(tensor.shape)
                rows = next(((o, i) for o, i in origins if _is_whole(o, i)), None)
                self._plans.append((plan, columns, tensor.detach(), rows))
                origins.append((columns, index))
            mark = self._marks.of(tensor)
            if mark is not None:
                mark.origins = tuple(origins)

    def begin(self, tensor: Tensor, axis: int) -> None:
        """A base: what an attention returned, or its residual sum, with rows along an axis."""
        mark = self._marks.of(tensor)
        if mark is None:
            return
        base = Origin(tensor.shape[axis], by_row=True)
        base.parents = [origin for origin, index in mark.origins if origin.by_row and _is_whole(origin, index)]
        for origin, index in mark.origins:
            if origin not in base.parents:
                _read(origin, index)
        shape = [1] * tensor.ndim
        shape[axis] = -1
        self._bases.append(base)
        mark.origins = ((base, torch.arange(base.size, device="cpu").view(shape).expand(tensor.shape)),)

    def finish(self, scores: Tensor) -> None:
        """The forward is over: fill in the plans."""
        for origin, index in self._marks.origins(scores):
            _read(origin, index)
        for base in reversed(self._bases):
            for parent in base.parents:
                parent.read |= base.read
        for plan, columns, out, rows in self._plans:
            if len(columns.read) < columns.size:
                plan.columns = torch.tensor(sorted(columns.read), device=out.device, dtype=torch.long)
            if rows is not None and len(rows[0].read) < rows[0].size:
                axis = max(range(out.ndim), key=lambda axis: _thin(rows[1]).shape[axis])
                plan.rows = axis, torch.tensor(sorted(rows[0].read), device=out.device, dtype=torch.long)

    def _kept(
        self,
        name: str,
        func: Any,
        args: Any,
        kwargs: Any,
        tensor: Tensor,
        origin: Origin,
        index: Tensor,
        outputs: list[Tensor],
    ) -> list[Tensor] | None:
        """The origin's indices in the results, or `None` where they are lost."""
        if name in MOVES:
            stand_in = lambda t: index if t is tensor else t.cpu() if not t.is_floating_point() else _nowhere(t.shape)
            try:
                moved = list(tensors_in(func(*replace_tensors(args, stand_in), **replace_tensors(kwargs, stand_in))))
            except (RuntimeError, TypeError, IndexError):
                return None
            alike = len(moved) == len(outputs) and all(m.shape == o.shape for m, o in zip(moved, outputs, strict=True))
            return moved if alike else None
        if not origin.by_row or len(outputs) != 1 or not (name == "linear" or rule_name(name) in BY_ENTRY):
            return None
        (out,) = outputs
        if tensor.ndim != out.ndim or tensor.shape[:-1] != out.shape[:-1] or index.stride(-1):
            return None
        return [index[..., :1].expand(out.shape)]


def _nowhere(shape: torch.Size) -> Tensor:
    return torch.full((), NOWHERE, device="cpu").expand(shape)


def _thin(index: Tensor) -> Tensor:
    for axis in range(index.ndim):
        if index.stride(axis) == 0:
            index = index.narrow(axis, 0, 1)
    return index


def _read(origin: Origin, index: Tensor) -> None:
    origin.read |= set(_thin(index).flatten().tolist()) - {NOWHERE}


def _is_whole(origin: Origin, index: Tensor) -> bool:
    """Whether all rows are there in order, along one axis."""
    thin = _thin(index)
    return thin.numel() == origin.size == max(thin.shape) and thin.flatten().tolist() == list(range(origin.size))
