"""Calling a user's model under a trace, safely: the one way in which every method of this package runs a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..rules import RuleSet, rule_set
from .errors import InputError, UnseenError, UnsupportedModelError, XattrError
from .execution import PLAIN_EXECUTION, without_checkpoints
from .inputs import Inputs
from .layers import Layer, LayerWatch
from .modules import on_one_device
from .outputs import Target, logits, resolve, select
from .record import Activation, Record
from .trace import Trace


@dataclass(frozen=True)
class Pass:
    """The result of one observed forward.

    Attributes:
        scores: what the model returned, `[B, C]` as a rule, with its graph.
        roots: the leaves that stand for the inputs.
        record: attentions, blocks and layout.
        layers: the layer that was cut, or those that were found, best first.
    """

    scores: Tensor
    roots: tuple[Activation, ...]
    record: Record
    layers: list[Layer] = field(default_factory=list)

    def score(self, target: Target = None, output: str = "logit") -> Tensor:
        """The explained number of each image, `[B]`.

        Args:
            target: by Captum's conventions; `None` is the predicted class.
            output: "logit", or "prob" for the softmax over axis 1.
        """
        with torch.inference_mode(False), torch.enable_grad():
            target = resolve(target, self.scores)
            return select(self.scores.softmax(1) if output == "prob" else self.scores, target)


def observe(
    forward_func: Callable[..., Any],
    inputs: Inputs,
    extra: Any = None,
    *,
    rules: str | RuleSet = "plain",
    record: bool = True,
    layer: LayerWatch | None = None,
) -> Pass:
    """Run a model once under a trace.

    Whatever the caller's state (train mode, `no_grad`, `inference_mode`, frozen or trainable parameters), the pass runs
    in evaluation mode with gradients from the inputs only, and nothing of the model or of the inputs is written.

    Args:
        forward_func: a module or any callable.
        inputs: checked inputs.
        extra: Captum's `additional_forward_args`.
        rules: a rule set or its name.
        record: whether to keep attentions, blocks and layout.
        layer: a layer to cut out of the graph, or to find. What is cut takes the place of the inputs: gradients lead to
            it alone.

    Raises:
        InputError: the layer to cut did not run, or the scores do not depend on it.
        UnseenError: a part of the forward could not be observed.
        OutputError: the output holds no tensor of scores.
        UnsupportedModelError: operations that the rule set does not cover; all of them are named.
    """
    if not callable(forward_func):
        raise InputError(f"forward_func is a {type(forward_func).__name__}; expected a module or any other callable.")
    model = on_one_device(forward_func)
    with torch.inference_mode(False), torch.enable_grad(), PLAIN_EXECUTION:
        whole = layer is None or layer.needs_graph
        roots = tuple(t.detach().clone().requires_grad_(whole) for t in inputs.tensors)
        trace = Trace(roots, rule_set(rules), record, layer)
        args, kwargs = inputs.arguments(trace.stand_ins, extra)
        with trace, without_checkpoints():
            try:
                output = model(*args, **kwargs)
            except (RuntimeError, ValueError, TypeError, AssertionError) as error:
                if not isinstance(error, XattrError) and hasattr(error, "add_note"):  # Python 3.11
                    shapes = ", ".join(f"{list(t.shape)} {t.dtype}" for t in roots)
                    error.add_note(f"The model's own forward failed on inputs {shapes}: does it take these?")
                raise
        scores = logits(output, len(roots[0]))
        if not trace.has_seen(scores):
            raise UnseenError(
                f"no chain of observed operations leads from the input to the output {list(scores.shape)} of "
                f"{type(model).__name__}. It is scripted, exported, runs in another thread, or does not use its input. "
                f"Explain the original model."
            )
        if layer is not None and layer.is_given and not trace.layers(scores):
            why = "did not run in this pass, or was called by keywords alone"
            why = why if layer.path is None else f"{layer.path!r} has no influence on the scores"
            raise InputError(f"the layer {why}; expected a module of the model that leads to its output.")
        if not scores.requires_grad:
            raise UnseenError(
                "the output carries no gradient of the input: the model detaches it, or runs under torch.no_grad()."
            )
        trace.finish(scores)
        missing = trace.uncovered(scores)
        if missing:
            raise UnsupportedModelError(
                f"the rule set {rule_set(rules).name!r} has no rule for {len(missing)} operation(s) of this model: "
                f"{', '.join(missing)}. The rule set 'plain' takes any operation, and IntegratedGradients explains any "
                f"differentiable model."
            )
        return Pass(scores, tuple(map(Activation.of, roots)), trace.record(scores), trace.layers(scores))


def attention_maps(forward_func: Callable[..., Any], inputs: Any, additional_forward_args: Any = None) -> list[Tensor]:
    """The attention maps of one pass, with fused attention left on.

    Args:
        forward_func: a module or any callable.
        inputs: images `[B, C, H, W]`, or the mapping of a Hugging Face processor.
        additional_forward_args: what else the model takes.

    Returns:
        One map `[B, H, N, M]` for each attention in order of depth; rows sum to 1.
    """
    with torch.no_grad():
        record = observe(forward_func, Inputs.of(inputs), additional_forward_args).record
        return [attention.map() for attention in record.attentions]
