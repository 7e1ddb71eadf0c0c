"""One observed pass of an unmodified model."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .._nested import replace_tensors, tensors_in
from ..rules import Operation, Rule, RuleSet, linear_maps
from ..rules.names import BY_FIRST
from ..rules.operation import scaled
from . import places
from .einsum import as_product
from .errors import UnseenError
from .functions import (
    ADDITIONS,
    COMPOSITES,
    CONSTANTS,
    KEEPS_GATE,
    KEEPS_SOFT,
    MATRIX_PRODUCTS,
    attention_arguments,
    gate_of,
    in_evaluation,
    is_softmax_over_keys,
    name_of,
    names_operands,
    overwritten,
    rule_name,
    without_overwriting,
)
from .layers import Layer, LayerWatch
from .liveness import Liveness
from .marks import Mark, Marks
from .modules import ModuleWatch
from .record import Record
from .recorder import Recorder
from .stand_ins import StandIns, graph_behind


def _without_rule(op: Operation) -> Any:
    """A linear map in a rule set that does not name it."""
    return op.run()


class Trace(TorchFunctionMode):
    """Stands between a model and torch for the length of one forward.

    It applies backward rules, keeps a record, and leaves the user's model untouched: parameters are detached and
    training behaviour is switched off on the *arguments* of operations; what the model writes into a tensor that is
    older than the pass goes to a private copy.

    Args:
        roots: leaves that stand for the inputs, `[B, ...]` each.
        rules: another backward for some operations.
        record: whether to keep attentions, blocks and the token layout.
        layer: a layer to cut, or to find.

    Attributes:
        stand_ins: copies of the roots, to call the model with; it may overwrite them.
    """

    def __init__(
        self, roots: tuple[Tensor, ...], rules: RuleSet, record: bool = True, layer: LayerWatch | None = None
    ) -> None:
        super().__init__()
        self._rules = rules
        self._marks = Marks()
        self._layer = layer
        self._modules = ModuleWatch()
        if layer is not None:
            self._modules = ModuleWatch(partial(layer.entering, self._marks), partial(layer.leaving, self._marks))
        self._live = Liveness(self._marks) if record else None
        self._recorder = Recorder(self._marks, len(roots[0]), self._modules.path, layer) if record else None
        self._tensors = StandIns(self._marks, roots, self._modules.where)
        # Name, module and node of each operation that the rules do not cover.
        self._uncovered: list[tuple[str, str, Any]] = []
        self.stand_ins = tuple(root.clone() for root in roots)
        for copy in self.stand_ins:
            self._marks.put_new(copy, place=places.of_picture(copy) if record else None)

    def __enter__(self) -> Trace:
        self._modules.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            self._modules.__exit__(*error)

    def has_seen(self, tensor: Tensor) -> bool:
        """Whether a chain of seen operations leads from the inputs to this tensor."""
        self._tensors.of(tensor)
        return self._marks.varies(tensor)

    def record(self, scores: Tensor) -> Record:
        """What was kept of the operations that the scores depend on."""
        return self._recorder.record(scores) if self._recorder is not None else Record([], [])

    def layers(self, scores: Tensor) -> list[Layer]:
        """The layer that was cut, or those that were found."""
        return self._layer.result(self._marks, scores) if self._layer is not None else []

    def finish(self, scores: Tensor) -> None:
        """The forward is over."""
        if self._live is not None:
            self._live.finish(scores)

    def uncovered(self, scores: Tensor) -> list[str]:
        """Operations that the rules do not cover and through which a gradient of the scores would pass."""
        if not self._uncovered:
            return []
        reached = graph_behind(scores)
        found = (f"{name} in {path!r}" if path else name for name, path, node in self._uncovered if node in reached)
        return list(dict.fromkeys(found))

    # -- one operation ---------------------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in COMPOSITES:
            # Python code around torch functions: its body runs under observation.
            super().__enter__()
            try:
                return COMPOSITES[func](*args, **(kwargs or {}))
            finally:
                super().__exit__(None, None, None)
        name = name_of(func)
        args, kwargs = names_operands(args, kwargs)
        original = overwritten(func, name, args, kwargs)
        for tensor in tensors_in(original):
            self._tensors.own(tensor)
            if self._layer is not None:
                self._layer.before_write(tensor)
        target = replace_tensors(original, self._tensors.of)
        args, kwargs = in_evaluation(
            func, replace_tensors(args, self._tensors.of), replace_tensors(kwargs, self._tensors.of)
        )
        sources = list(tensors_in((args, kwargs)))
        counted = [] if name in CONSTANTS else sources[:1] if name in BY_FIRST else sources
        origins = [mark for mark in map(self._marks.of, counted) if mark is not None and mark.ancestors]
        if origins:
            out = self._observed(func, name, args, kwargs, origins, target, sources)
        else:
            out = func(*args, **kwargs)
            for tensor in tensors_in(out):
                if self._marks.of(tensor) is None and not self._tensors.are_shared(name, tensor, sources):
                    self._mark(tensor, None)
        # `self.counter += 1` must store the model's own tensor again, not our copy.
        return original if target is not None and out is target else out

    def _observed(
        self, func: Any, name: str, args: Any, kwargs: Any, origins: list[Mark], target: Any, sources: list[Tensor]
    ) -> Any:
        """An operation on something that depends on the image."""
        if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            raise UnseenError(
                f"{self._modules.where()} calls {func} directly, as an exported or lowered graph does; the rules "
                f"cannot follow that. Explain the original model."
            )
        result, recorder = Mark(), self._recorder
        for mark in origins:
            result.ancestors |= mark.ancestors
            result.open |= mark.open
        ancestors = [mark.ancestors for mark in origins]
        residual = recorder.residual(args, kwargs, target) if recorder is not None and name in ADDITIONS else None
        # Places hold until something is written.
        known = {id(t): self._marks.place(t) for t in sources} if recorder is not None else {}
        origins_before = {id(t): self._marks.origins(t) for t in sources} if self._live is not None else {}
        out = self._run(func, name, args, kwargs, result, target)
        outputs = list(tensors_in(out if target is None else target))
        # Places are carried before an in-place operation gives its target another mark.
        carried = (
            places.carried(func, name, args, kwargs, outputs, lambda t: known.get(id(t)), self._marks.varies)
            if recorder is not None
            else [None] * len(outputs)
        )
        for tensor, place in zip(outputs, carried, strict=True):
            if self._tensors.are_shared(name, tensor, sources):
                continue  # a constant of the model seen through the shape of an activation
            if target is None and any(tensor is source for source in sources) and self._marks.varies(tensor):
                continue  # dropout in evaluation, `contiguous`: nothing has happened
            before = known.get(id(tensor))
            if target is not None and before is not None and (place is None or not torch.equal(place, before)):
                self._marks.move(tensor)
            self._mark(tensor, result, place)
            written = self._marks.of(tensor._base) if target is not None and tensor._is_view() else None
            if written is not None:
                written.ancestors |= result.ancestors
                written.has_gradient, written.place = True, None
        if self._live is not None and any(t.requires_grad for t in outputs):
            made = outputs if target is None else []
            self._live.follow(name, func, args, kwargs, made, origins_before, self._unread(func, args, kwargs))
            if func is F.scaled_dot_product_attention:
                self._live.begin(outputs[0], outputs[0].ndim - 2)
        if recorder is not None and outputs:
            recorder.follow(name, args, kwargs, outputs[0], result)
            if residual is not None:
                recorder.close(residual, outputs[0])
                if self._live is not None and target is None:
                    self._live.begin(outputs[0], 0 if residual.x.swapped else 1)
            elif len(ancestors) > 1:
                recorder.meeting(outputs[0], ancestors)
        if self._layer is not None:
            self._layer.operation(self._marks, name, func, args, kwargs, out)
        return out

    def _unread(self, func: Any, args: Any, kwargs: Any) -> set[int]:
        """Operands through which no gradient passes: queries and keys where attention is constant."""
        if func is not F.scaled_dot_product_attention or self._rules.attention[0] != 0:
            return set()
        given = attention_arguments(args, kwargs)
        if not self._carries(given["value"]):
            return set()
        return {id(given["query"]), id(given["key"])} - {id(given["value"]), id(given.get("attn_mask"))}

    def _run(self, func: Any, name: str, args: Any, kwargs: Any, result: Mark, target: Any) -> Any:
        first = (self._marks.of(args[0]) if args else None) or Mark()
        if func is F.scaled_dot_product_attention:
            return self._fused_attention(func, args, kwargs, result)
        result.soft = is_softmax_over_keys(name, args, kwargs) or (first.soft and name in KEEPS_SOFT)
        counted = args[:1] if name in BY_FIRST else args[:2] if name in ("linear", "conv1d", "conv2d") else args
        varying = [t for t in tensors_in((counted, kwargs)) if self._carries(t)]
        result.gate = gate_of(name, args, kwargs, self._marks.varies)
        if not result.gate and varying and rule_name(name) in KEEPS_GATE:
            result.gate = min(map(self._marks.gate, varying))
        product = as_product(args, self._is_soft) if name == "einsum" else None
        if product is not None and self._recorder is not None:
            out = self._by_rule(func, name, (product.equation, *args[1:]), kwargs, target)
            self._recorder.explicit_attention(product.weights, product.values, out, result, *product.operands)
            return out.permute(product.order)
        meets_values = first.soft and name in MATRIX_PRODUCTS and self._marks.varies(args[1])
        out = self._by_rule(func, name, args, kwargs, target)
        if meets_values and self._recorder is not None and out.ndim > 2:
            self._recorder.explicit_attention(args[0], args[1], out, result)
        return out

    def _is_soft(self, value: Any) -> bool:
        mark = self._marks.of(value)
        return mark is not None and mark.soft

    def _by_rule(self, func: Any, name: str, args: Any, kwargs: Any, target: Any) -> Any:
        """The operation by its rule; one without a rule that should have one is remembered."""
        rule = self._rules.operations.get(rule_name(name))
        if rule is None and name == "linear" and self._live is not None:
            rule = _without_rule
        if rule is not None:
            given = func, args, kwargs
            if target is not None:
                # The rule may need what is overwritten.
                aside, first = target.clone(), self._marks.of(target) or Mark()
                self._marks.put(aside, Mark(first.ancestors, gate=first.gate))
                kept = replace_tensors([args, kwargs], lambda t: aside if t is target else t)
                given = without_overwriting(func, name, *kept)
            op = Operation(*given, self._carries, self._marks.gate)
            out = self._planned(op, rule) if self._live is not None and name == "linear" else rule(op)
            if out is not NotImplemented:
                return out if target is None else target.copy_(out)
        out = func(*args, **kwargs)
        if not self._rules.covers(rule_name(name)):
            self._remember_uncovered(name, out if target is None else target)
        return out

    def _planned(self, op: Operation, rule: Rule) -> Any:
        """A linear map, by its rule or, if that is the ordinary gradient, with a plan of what to leave out."""
        x, weight, bias = op.args[0], op.argument(1, "weight"), op.argument(2, "bias")
        if rule not in (linear_maps.ordinary, _without_rule) or op.varies(weight) or weight.ndim != 2:
            return rule(op)
        assert self._live is not None
        return self._live.linear(x, weight, bias)

    def _remember_uncovered(self, name: str, made: Any) -> None:
        for tensor in tensors_in(made):
            # What is written through a view gets its node in the tensor that the view shows.
            shown = tensor._base if tensor._is_view() and tensor._base is not None else tensor
            nodes = {tensor.grad_fn, shown.grad_fn} - {None}
            self._uncovered += [(name, self._modules.path(), node) for node in nodes]

    def _carries(self, value: Any) -> bool:
        """Whether a value depends on the image and carries a gradient."""
        return self._marks.varies(value) and bool(value.requires_grad)

    # -- attention -----------------------------------------------------------------------------------------------------

    def _fused_attention(self, func: Any, args: Any, kwargs: Any, result: Mark) -> Any:
        given = attention_arguments(args, kwargs)
        rule = self._rules.operations.get("scaled_dot_product_attention")
        ruled = NotImplemented if rule is None else rule(Operation(func, (), given, self._carries, self._marks.gate))
        if ruled is not NotImplemented:
            if self._recorder is not None:
                self._recorder.fused_attention(given, ruled, result)
            return ruled
        on_scores, on_value = self._rules.attention
        missed = on_scores == 0 and not self._carries(given["value"])
        if missed:
            on_scores = 1.0  # nothing would be left
        held = {part: scaled(given[part], on_scores) for part in ("query", "key")}
        if self._carries(given.get("attn_mask")):
            held["attn_mask"] = scaled(given["attn_mask"], on_scores)
        out = func(**{**given, **held, "value": scaled(given["value"], on_value)})
        if missed:
            self._remember_uncovered("scaled_dot_product_attention of constant values", out)
        if self._recorder is not None:
            self._recorder.fused_attention(given, out, result)
        return out

    # -- results -------------------------------------------------------------------------------------------------------

    def _mark(self, tensor: Tensor, result: Mark | None, place: Tensor | None = None) -> None:
        """Mark what an operation made; some return a view of a tensor that nobody else sees."""
        if tensor._is_view() and self._marks.of(tensor._base) is None:
            assert tensor._base is not None
            self._marks.put(tensor._base, Mark(result.ancestors if result is not None else 0))
        if result is None:
            self._marks.put(tensor, Mark())
        else:
            self._marks.put_new(tensor, result, place)
