"""One observed pass of an unmodified model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..rules import Operation, RuleSet
from ..rules.operation import scaled
from . import marks
from .errors import UnseenError
from .marks import Mark, mark_of, replace_tensors, set_mark, tensors_in
from .modules import ModuleWatch
from .record import Activation, Attention, Block, Record

_NUMBERS = itertools.count(1)


class Trace(TorchFunctionMode):
    """Stands between a model and torch for the length of one forward.

    It applies backward rules, keeps a record, and leaves the user's model untouched: parameters are detached and
    training behaviour is switched off on the *arguments* of operations; what the model writes into a tensor that is
    older than the pass goes to a private copy.

    Args:
        rules: another backward for some operations.
        record: whether to keep attentions, blocks and the token layout.
    """

    def __init__(self, rules: RuleSet, record: bool = True) -> None:
        super().__init__()
        self.record = Record([], [])
        self._rules = rules
        self._keeps = record
        self._owner = next(_NUMBERS)
        self._made = 0
        self._modules = ModuleWatch()
        self._roots: tuple[Tensor, ...] = ()
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        # Of each attention: ancestors of its map and of its values, for the parting test.
        self._ancestry: list[tuple[int, int]] = []
        self._projections: dict[int, Tensor] = {}
        self._stream = 0
        self._grid_ancestor = 0

    def __enter__(self) -> Trace:
        self._modules.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            self._modules.__exit__(*error)

    def admit(self, roots: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Begin with these leaves; returns tensors that the model may overwrite."""
        self._roots = roots
        copies = tuple(root.clone() for root in roots)
        for copy in copies:
            set_mark(copy, self._new(True))
        return copies

    def has_seen(self, tensor: Tensor) -> bool:
        """Whether a chain of seen operations leads from the inputs to this tensor."""
        self._still(tensor)
        mark = mark_of(tensor, self._owner)
        return mark is not None and mark.ancestors != 0

    # -- one operation ---------------------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(func.__self__, "__name__", name)
        in_place = marks.writes_in_place(name) and bool(args) and isinstance(args[0], Tensor)
        original = args[0] if in_place else None
        if in_place:
            self._own(args[0])
        args = replace_tensors(tuple(args), self._still)
        kwargs = replace_tensors(kwargs, self._still)
        known = [
            m for m in (mark_of(t, self._owner) for t in tensors_in((args, kwargs))) if m is not None and m.ancestors
        ]
        if not known:
            out = func(*args, **self._in_evaluation(func, args, kwargs)[1])
            for tensor in tensors_in(out):
                # What shares memory with an older tensor stays unmarked, so that a write to it is caught.
                if mark_of(tensor, self._owner) is None and name != "data" and not self._is_old(tensor):
                    set_mark(tensor, Mark(self._owner))
            return original if in_place and out is args[0] else out
        if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            raise UnseenError(
                f"{self._where()} calls {func} directly, as an exported or lowered graph does; the rules cannot follow "
                f"that. Explain the original model."
            )
        args, kwargs = self._in_evaluation(func, args, kwargs)
        result = Mark(self._owner, 0, frozenset().union(*(m.open for m in known)))
        for mark in known:
            result.ancestors |= mark.ancestors
        block = self._residual(name, args, in_place) if self._keeps and name in marks.ADDITIONS else None
        out = self._run(func, name, args, kwargs, result)
        outputs = [args[0]] if in_place else list(tensors_in(out))
        for tensor in outputs:
            set_mark(tensor, self._child(result))
            base = tensor._base if tensor._is_view() else None
            written = mark_of(base, self._owner) if in_place and base is not None else None
            if written is not None:
                written.ancestors |= result.ancestors
        if self._keeps and outputs:
            self._follow(name, args, kwargs, outputs[0], result)
            if block is not None:
                self._close(block, outputs[0])
        return original if in_place and out is args[0] else out

    def _run(self, func: Any, name: str, args: Any, kwargs: Any, result: Mark) -> Any:
        first = mark_of(args[0], self._owner) if args else None
        soft, gate = first is not None and first.soft, first is not None and first.gate
        if func is F.scaled_dot_product_attention:
            return self._fused_attention(func, args, kwargs, result)
        if soft and name in marks.MATRIX_PRODUCTS and self._varies(args[1]):
            return self._explicit_attention(func, args, kwargs, result)
        result.soft = name == "softmax" or (soft and name in marks.KEEPS_SOFT)
        result.gate = name in marks.GATES or (
            gate and name in marks.KEEPS_GATE and not any(map(self._varies, args[1:]))
        )
        plain_name = name.rstrip("_") if not name.startswith("__i") else f"__{name[3:]}"
        rule = self._rules.operations.get(name)
        operation = Operation(func, args, kwargs, self._varies, self._is_gate)
        if rule is not None:
            return rule(operation)
        if marks.writes_in_place(name) and plain_name in self._rules.operations:
            aside = (args[0].clone(), *args[1:])
            set_mark(aside[0], first or Mark(self._owner))
            func = getattr(torch.Tensor, plain_name)
            operation = Operation(func, aside, kwargs, self._varies, self._is_gate)
            return args[0].copy_(self._rules.operations[plain_name](operation))
        return func(*args, **kwargs)

    # -- nothing of the user's is written ------------------------------------------------------------------------------

    def _still(self, tensor: Tensor) -> Tensor:
        """The stand-in for an argument: parameters detached, private copies of what was written to."""
        mark = mark_of(tensor, self._owner)
        if mark is not None:
            if tensor.grad_fn is not None and not mark.has_gradient:
                raise self._unseen(tensor)
            return tensor
        if self._copies and id(tensor) in self._copies:
            return self._copies[id(tensor)][1]
        if tensor.requires_grad:
            if not tensor.is_leaf and _reaches(tensor, self._roots):
                raise self._unseen(tensor)
            tensor = tensor.detach()
        return tensor.clone() if tensor.is_inference() else tensor

    def _unseen(self, tensor: Tensor) -> UnseenError:
        return UnseenError(
            f"{self._where()} made a tensor {list(tensor.shape)} from the image by an operation that cannot be observed "
            f"(it ends in {type(tensor.grad_fn).__name__}): a custom autograd function, a scripted module, or a forward in "
            f"another thread. Explain the original, unscripted model."
        )

    def _is_old(self, tensor: Tensor) -> bool:
        """Whether a tensor shares its memory with one that is older than the pass."""
        base = tensor._base if tensor._is_view() else None
        return base is not None and mark_of(base, self._owner) is None

    def _own(self, tensor: Tensor) -> None:
        """Before an in-place write: a private copy of what is older than the pass."""
        if self._is_old(tensor):
            raise UnseenError(
                f"{self._where()} writes through a view into a tensor {list(tensor.shape)} older than this pass; "
                f"observing it would change the model."
            )
        if mark_of(tensor, self._owner) is None and id(tensor) not in self._copies:
            copy = tensor.detach().clone()
            set_mark(copy, Mark(self._owner))
            self._copies[id(tensor)] = (tensor, copy)

    def _in_evaluation(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if func not in marks.EVALUATION:
            return args, kwargs
        position, name, value = marks.EVALUATION[func]
        if len(args) > position:
            return (*args[:position], value, *args[position + 1 :]), kwargs
        return args, {**kwargs, name: value}

    # -- attention -----------------------------------------------------------------------------------------------------

    def _fused_attention(self, func: Any, args: Any, kwargs: Any, result: Mark) -> Any:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        query, key, value = given["query"], given["key"], given["value"]
        on_map, on_value = self._rules.attention
        query, key, value = scaled(query, on_map), scaled(key, on_map), scaled(value, on_value)
        out = func(query, key, value, **{k: v for k, v in given.items() if k not in names[:3]})
        if self._keeps:
            if given.get("enable_gqa"):
                repeats = query.shape[-3] // key.shape[-3]
                key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
            scale = given.get("scale")
            self._attention(
                out,
                given["value"],
                result,
                self._ancestors(given["query"]) | self._ancestors(given["key"]),
                values=value.detach(),
                query=query.detach(),
                key=key.detach(),
                mask=given.get("attn_mask"),
                scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
                causal=bool(given.get("is_causal")),
            )
        return out

    def _explicit_attention(self, func: Any, args: Any, kwargs: Any, result: Mark) -> Any:
        weights, value = args[0], args[1]
        on_map, on_value = self._rules.attention
        out = func(scaled(weights, on_map), scaled(value, on_value), **kwargs)
        if self._keeps:
            self._attention(
                out, value, result, self._ancestors(weights), values=value.detach(), weights=weights.detach()
            )
        return out

    def _attention(self, out: Tensor, value: Tensor, result: Mark, of_map: int, **parts: Any) -> None:
        heads = Activation.of(out)
        if out.ndim == 3:  # [B H, N, d]: heads folded into the batch
            batch = len(self._roots[0])
            fold: Callable[[Tensor], Tensor] = lambda t: t.unflatten(0, (batch, -1)) if len(t) % batch == 0 else t[None]
            parts = {k: fold(v) if isinstance(v, Tensor) and v.ndim == 3 else v for k, v in parts.items()}
            heads = Activation(fold(heads.value), heads.edge)
        self._ancestry.append((of_map, self._ancestors(value)))
        result.open = result.open | {len(self.record.attentions)}
        self.record.attentions.append(Attention(self._modules.path(), heads, **parts))

    # -- residual sums, last tokens, layout ----------------------------------------------------------------------------

    def _residual(self, name: str, args: Any, in_place: bool) -> dict[str, Any] | None:
        """The parting test.

        `p + a` is the residual sum of the attentions that are open in `a` iff `p` shares the same ancestors with their
        maps as with their values, and shares some.
        """
        if len(args) != 2 or not (self._varies(args[0]) and self._varies(args[1])) or args[0].shape != args[1].shape:
            return None
        for p, a in (args, args[::-1]):
            skip, branch = mark_of(p, self._owner), mark_of(a, self._owner)
            assert skip is not None and branch is not None
            opened = branch.open - skip.open
            if not opened or skip.open & branch.open:
                continue
            shared = skip.ancestors
            for i in opened:
                of_map, of_values = self._ancestry[i]
                shared = shared & of_values if shared & of_map == shared & of_values else 0
            if shared:
                x = Activation.of(p, copy=in_place and p is args[0])
                branch_value = a.detach().clone() if in_place and a is args[0] else a.detach()
                return {"x": x, "a": branch_value, "opened": sorted(opened)}
        return None

    def _close(self, found: dict[str, Any], z: Tensor) -> None:
        attentions = tuple(self.record.attentions[i] for i in found["opened"])
        mark = mark_of(z, self._owner)
        assert mark is not None
        mark.open = mark.open - set(found["opened"])
        self._stream = mark.ancestors
        self.record.last = Activation.of(z)
        projection = self._projections.get(found["opened"][0])
        self.record.blocks.append(
            Block(attentions[0].path, attentions, found["x"], found["a"], self.record.last, projection)
        )

    def _follow(self, name: str, args: Any, kwargs: Any, out: Tensor, result: Mark) -> None:
        record = self.record
        if not record.attentions:
            if name == "conv2d" and out.ndim == 4:
                record.grid, record.offset, self._grid_ancestor = (
                    (out.shape[2], out.shape[3]),
                    None,
                    self._ancestors(out),
                )
            elif name in ("cat", "concat", "concatenate") and record.grid is not None and out.ndim == 3:
                self._find_offset(args[0] if args else kwargs["tensors"], record.grid[0] * record.grid[1])
        elif name == "linear":
            for i in result.open - self._projections.keys():
                _, heads, _, width = record.attentions[i].out.value.shape
                if args[1].shape[-1] == heads * width:
                    self._projections[i] = args[1].detach()
        elif name in marks.ADDITIONS and record.last is not None and out.shape == record.last.value.shape:
            # Both operands come from the current tokens: a residual sum of an MLP, so these are the tokens from now on.
            newest = 1 << (self._stream.bit_length() - 1)
            if all(self._ancestors(t) & newest for t in args[:2]):
                self._stream = self._ancestors(out)
                record.last = Activation.of(out)

    def _find_offset(self, parts: Any, patches: int) -> None:
        before = 0
        for part in parts:
            if part.ndim == 3 and part.shape[1] == patches and self._ancestors(part) & self._grid_ancestor:
                self.record.offset = before
            before += part.shape[1] if part.ndim == 3 else 0

    # -- marks ---------------------------------------------------------------------------------------------------------

    def _new(self, varies: bool) -> Mark:
        self._made += 1
        return Mark(self._owner, 1 << self._made if varies else 0)

    def _child(self, of: Mark) -> Mark:
        mark = self._new(True)
        mark.ancestors |= of.ancestors
        mark.open, mark.soft, mark.gate = of.open, of.soft, of.gate
        return mark

    def _ancestors(self, tensor: Any) -> int:
        mark = mark_of(tensor, self._owner)
        return mark.ancestors if mark is not None else 0

    def _varies(self, value: Any) -> bool:
        return self._ancestors(value) != 0

    def _is_gate(self, value: Any) -> bool:
        mark = mark_of(value, self._owner)
        return mark is not None and mark.gate

    def _where(self) -> str:
        return f"the module {self._modules.path()!r}" if self._modules.path() else "the model"


def _reaches(tensor: Tensor, roots: tuple[Tensor, ...]) -> bool:
    """Whether the autograd graph of a tensor leads back to one of the roots."""
    stack, seen = [tensor.grad_fn], set()
    while stack:
        node: Any = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if any(getattr(node, "variable", None) is root for root in roots):
            return True
        stack.extend(parent for parent, _ in node.next_functions)
    return False
