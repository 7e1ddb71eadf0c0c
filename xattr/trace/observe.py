"""Calling a user's model under a trace, safely: the one way in which every method of this package runs a model."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..rules import RuleSet, rule_set
from .errors import InputError, UnseenError
from .inputs import Inputs
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
    """

    scores: Tensor
    roots: tuple[Activation, ...]
    record: Record

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

    Raises:
        UnseenError: a part of the forward could not be observed.
        OutputError: the output holds no tensor of scores.
    """
    if not callable(forward_func):
        raise InputError(f"forward_func is a {type(forward_func).__name__}; expected a module or any other callable.")
    model = forward_func.module if isinstance(forward_func, torch.nn.DataParallel) else forward_func
    with torch.inference_mode(False), torch.enable_grad(), _EAGER:
        roots = tuple(t.detach().clone().requires_grad_() for t in inputs.tensors)
        trace = Trace(roots, rule_set(rules), record)
        args, kwargs = inputs.arguments(trace.stand_ins, extra)
        with trace, _without_checkpoints():
            output = model(*args, **kwargs)
        scores = logits(output, len(roots[0]))
        if not trace.has_seen(scores):
            raise UnseenError(
                f"no chain of observed operations leads from the input to the output {list(scores.shape)} of "
                f"{type(model).__name__}. It is scripted, exported, runs in another thread, or does not use its input. "
                f"Explain the original model."
            )
        if not scores.requires_grad:
            raise UnseenError(
                "the output carries no gradient of the input: the model detaches it, or runs under torch.no_grad()."
            )
        return Pass(scores, tuple(map(Activation.of, roots)), trace.record(scores))


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


_CHECKPOINTED = (
    "a part of the model runs under gradient checkpointing, which would run it again, unobserved, in the backward. "
    "Switch it off for the explanation: model.set_grad_checkpointing(False) or model.gradient_checkpointing_disable()."
)


@contextlib.contextmanager
def _without_checkpoints() -> Iterator[None]:
    """Checkpointing hooks itself into saved tensors; that is refused, unless the caller has such hooks too."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(RuntimeError):
            stack.enter_context(torch.autograd.graph.disable_saved_tensors_hooks(_CHECKPOINTED))
        try:
            yield
        except RuntimeError as error:
            if _CHECKPOINTED in str(error):
                raise UnseenError(_CHECKPOINTED) from None
            raise


class _Eager:
    """Compiled parts of a model run as the Python they were compiled from.

    The compiler's stance and the filter of warnings belong to the process: the first of several threads sets them, the
    last puts them back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entered = 0
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._entered += 1
            # Without dynamo loaded nothing is compiled, and loading it takes seconds.
            if self._entered == 1 and "torch._dynamo" in sys.modules:
                self._undo.enter_context(torch.compiler.set_stance("force_eager"))
                self._undo.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._entered -= 1
            if not self._entered:
                self._undo.close()


_EAGER = _Eager()
