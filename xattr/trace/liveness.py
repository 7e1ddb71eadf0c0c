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

from .._nested import tensors_in
from ..rules.names import MOVES
from .functions import BY_ENTRY, JOINS, rule_name
from .marks import Marks
from .places import NOWHERE, nowhere, replayed


@dataclass(eq=False)
class Origin:
    """Rows of a base, or columns of a linear map.

    Attributes:
        size: how many there are.
        by_row: whether they are rows.
        read: which of them are read, boolean.
        parents: bases whose rows these are too, in the same order.
    """

    size: int
    by_row: bool
    read: Tensor = field(init=False)
    parents: list[Origin] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.read = torch.zeros(self.size, dtype=torch.bool, device="cpu")


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
        out = torch.nn.functional.linear(x, weight, bias)
        # A view may not be overwritten when it comes from here; the tensor that it shows is nobody else's.
        return torch.ops.aten._unsafe_view(out, out.shape) if out._is_view() else out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Only what the plan does not leave out."""
        weight = ctx.saved_tensors[0].conj().to(grad.dtype)
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
        self._plans: list[tuple[Plan, Origin, torch.device, tuple[Origin, Tensor] | None]] = []

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
        if any(out is operand for out in outputs for operand in tensors_in((args, kwargs))):
            # Dropout in evaluation: nothing has happened. Of several results some may be operands themselves.
            if len(outputs) > 1:
                for tensor in tensors_in((args, kwargs)):
                    for origin, index in before.get(id(tensor), ()):
                        _read(origin, index)
            return
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
                self._plans.append((plan, columns, tensor.device, rows))
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
        shape = [1] * tensor.ndim
        shape[axis] = -1
        own = torch.arange(base.size, device="cpu").view(shape)
        for origin, index in mark.origins:
            thin = _thin(index)
            if origin.by_row and origin.size == base.size and thin.shape == own.shape and torch.equal(thin, own):
                base.parents.append(origin)
            else:
                _read(origin, index)
        self._bases.append(base)
        mark.origins = ((base, own.expand(tensor.shape)),)

    def finish(self, scores: Tensor) -> None:
        """The forward is over: fill in the plans."""
        for origin, index in self._marks.origins(scores):
            _read(origin, index)
        for base in reversed(self._bases):
            for parent in base.parents:
                parent.read |= base.read
        for plan, columns, device, rows in self._plans:
            if not bool(columns.read.all()):
                plan.columns = columns.read.nonzero()[:, 0].to(device)
            if rows is not None and not bool(rows[0].read.all()):
                thin = _thin(rows[1])
                axis = max(range(thin.ndim), key=lambda axis: thin.shape[axis])
                plan.rows = axis, rows[0].read.nonzero()[:, 0].to(device)

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
            joins = name in JOINS or "stack" in name

            def stand_in(other: Tensor) -> Tensor:
                if other is tensor:
                    return index
                # Indices stay what they are; what is joined comes from nowhere.
                return nowhere(other.shape) if joins or other.is_floating_point() else other.cpu()

            moved = replayed(func, args, kwargs, stand_in, outputs)
            return None if moved is None or any(m.dtype != torch.long for m in moved) else list(map(_lighter, moved))
        if not origin.by_row or len(outputs) != 1 or (name == "linear" and tensor is not args[0]):
            return None
        if not (name == "linear" or rule_name(name) in BY_ENTRY) or _mixes_rows(name, args, kwargs):
            return None
        (out,) = outputs
        if tensor.ndim != out.ndim or tensor.shape[:-1] != out.shape[:-1] or index.stride(-1):
            return None
        return [index[..., :1].expand(out.shape)]


def _mixes_rows(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a normalisation takes its mean over more than the last axis."""
    if name in ("group_norm", "instance_norm", "batch_norm"):
        return True
    shape = args[1] if len(args) > 1 else kwargs.get("normalized_shape", ())
    return name in ("layer_norm", "rms_norm") and len(shape) > 1


def _lighter(index: Tensor) -> Tensor:
    """The same without memory along images and channels, where they agree."""
    if index.untyped_storage().size() < index.numel() * index.element_size():
        return index  # it is light already
    for axis in (0, -1):
        if index.ndim and index.stride(axis) and index.shape[axis] > 1:
            first = index.narrow(axis, 0, 1)
            if bool((index == first).all()):
                index = first.clone().expand(index.shape)
    return index


def _thin(index: Tensor) -> Tensor:
    for axis in range(index.ndim):
        if index.stride(axis) == 0:
            index = index.narrow(axis, 0, 1)
    return index


def _read(origin: Origin, index: Tensor) -> None:
    thin = _thin(index)
    origin.read[thin[thin != NOWHERE]] = True


def _is_whole(origin: Origin, index: Tensor) -> bool:
    """Whether all rows are there in order, along one axis."""
    thin = _thin(index)
    return thin.numel() == origin.size == max(thin.shape) and thin.flatten().tolist() == list(range(origin.size))
