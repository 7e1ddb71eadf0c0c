"""Running a column transformer on some of its tokens, without knowing the model: a shorter sequence.

The tokens in front of the first block are what a pass has found. In a later forward the same operation is recognised by
its name, the shape of its result and its number, and the tokens that are to go leave its result. Constants that stand
beside tokens, such as rotary tables and position biases, are gathered alike where they meet what was shortened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from .._nested import replace_tensors, tensors_in
from .errors import UnsupportedModelError
from .execution import PLAIN_EXECUTION
from .functions import attention_arguments, in_evaluation
from .inputs import Inputs
from .modules import ModuleWatch
from .observe import observe
from .record import Layout

# What combines entries that stand at the same place; in-place forms included.
_BESIDE = frozenset("add sub mul div true_divide where masked_fill addcmul lerp maximum minimum __setitem__".split())


@dataclass(frozen=True)
class Making:
    """How the tokens come about: by which call of a function, among its calls with a result of this shape.

    Attributes:
        name: of the function.
        shape: of the tokens, behind the axis of images.
        number: of the call.
    """

    name: str
    shape: torch.Size
    number: int

    def counts(self, func: Any, out: Any) -> bool:
        """Whether a call is one of them."""
        alike = isinstance(out, Tensor) and out.shape[1:] == self.shape
        return alike and getattr(func, "__name__", "") == self.name


class _Calls(TorchFunctionMode):
    """Finds the first call that makes given tokens."""

    def __init__(self, tokens: Tensor) -> None:
        super().__init__()
        self._tokens = tokens
        self._counts: dict[str, int] = {}
        self.found: Making | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = in_evaluation(func, args, kwargs or {})
        out = func(*args, **kwargs)
        if self.found is None and isinstance(out, Tensor) and out.shape == self._tokens.shape:
            name = getattr(func, "__name__", "")
            self._counts[name] = self._counts.get(name, 0) + 1
            if out.dtype == self._tokens.dtype and torch.equal(out.detach(), self._tokens):
                self.found = Making(name, out.shape[1:], self._counts[name])
        return out


class Shortened(TorchFunctionMode):
    """One forward on some of the tokens.

    Args:
        making: how the tokens come about.
        layout: of all tokens.
        kept: numbers of the tokens that stay, `[B, n]`, ascending.
    """

    def __init__(self, making: Making, layout: Layout, kept: Tensor) -> None:
        super().__init__()
        self._making, self._layout, self._kept = making, layout, kept
        inside = (kept >= layout.patches.start) & (kept < layout.patches.stop)
        self._patches = kept[inside].view(len(kept), -1) - layout.patches.start
        self._count = 0
        self._derived = WeakTensorKeyDictionary()
        self.ran = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = in_evaluation(func, args, kwargs or {})
        if self.ran and any(t in self._derived for t in tensors_in((args, kwargs))):
            args, kwargs = self._fitting(func, args, kwargs)
            out = func(*args, **kwargs)
            for tensor in tensors_in(out):
                self._derived[tensor] = True
            if getattr(func, "__name__", "") == "__setitem__":
                self._derived[args[0]] = True
            return out
        out = func(*args, **kwargs)
        if self._making.counts(func, out):
            self._count += 1
        if not self.ran and self._count == self._making.number:
            out = self._gathered(out, 1, self._kept)
            self._derived[out] = True
            self.ran = True
        return out

    def _fitting(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments with constants gathered to the tokens that are left."""
        if func is F.scaled_dot_product_attention:
            given = attention_arguments(args, kwargs)
            mask = given.get("attn_mask")
            if isinstance(mask, Tensor) and mask not in self._derived:
                query, key = given["query"], given["key"]
                given["attn_mask"] = self._beside(self._beside(mask, query, -2, -2), key, -1, -2)
            return (), given
        name = getattr(func, "__name__", "")
        if name.strip("_").removeprefix("r").removeprefix("i") not in _BESIDE and name.rstrip("_") not in _BESIDE:
            return args, kwargs
        like = max((t for t in tensors_in((args, kwargs)) if t in self._derived), key=lambda t: t.ndim)

        def fit(tensor: Tensor) -> Tensor:
            if tensor in self._derived:
                return tensor
            for axis in range(-1, -tensor.ndim - 1, -1):
                tensor = self._beside(tensor, like, axis, axis)
            return tensor

        return replace_tensors(args, fit), replace_tensors(kwargs, fit)

    def _beside(self, constant: Tensor, tokens: Tensor, axis: int, at: int) -> Tensor:
        """A constant whose axis counts all tokens, or all patches, where the tokens beside it are fewer."""
        if constant.ndim < -axis or tokens.ndim < -at:
            return constant
        have, want = constant.shape[axis], tokens.shape[at]
        for whole, kept in ((self._layout.tokens, self._kept), (self._layout.size, self._patches)):
            if have == whole and want == kept.shape[1] and have != want:
                missing = tokens.ndim - constant.ndim
                wide = constant.view(*[1] * missing, *constant.shape) if missing > 0 else constant
                wide = wide.expand(len(kept), *wide.shape[1:]) if len(wide) == 1 else wide
                return self._gathered(wide, wide.ndim + axis, kept)
        return constant

    @staticmethod
    def _gathered(tensor: Tensor, axis: int, kept: Tensor) -> Tensor:
        shape = [1] * tensor.ndim
        shape[0], shape[axis] = kept.shape
        size = [*tensor.shape]
        size[axis] = kept.shape[1]
        with torch._C.DisableTorchFunction():
            return tensor.gather(axis, kept.view(shape).expand(size))


class TokenRunner:
    """Runs a model on some of its patches; a kind says how the others are kept out, in `mode`.

    Args:
        forward_func: a module or any callable.
        inputs: examples, from the first of which the layout and the place of the tokens are learnt.

    Attributes:
        layout: where the patches lie.
        operator: what the kind is called in results.
        ragged: whether rows may keep different numbers of patches.

    Raises:
        UnsupportedModelError: no column of attention blocks on one token sequence, or the tokens in front of the first
            block are made by no single operation.
    """

    operator = ""
    ragged = False

    def __init__(self, forward_func: Callable[..., Any], inputs: Inputs) -> None:
        self._forward = forward_func
        one = inputs.rows(slice(0, 1))
        with torch.no_grad():
            record = observe(forward_func, one).record
        self.layout = record.require_blocks(f"{self.operator!r}")
        self._attentions = len(record.attentions)
        tokens = record.blocks[0].x
        calls = _Calls(tokens.value)
        if not tokens.swapped:
            self._run(one, calls)
        if calls.found is None:
            raise UnsupportedModelError("the tokens in front of the first block are made by no single operation.")
        self._making = calls.found

    def __call__(self, inputs: Inputs, keep: Tensor) -> Any:
        """What the model returns on some patches of each image.

        Args:
            inputs: images, `[B, C, H, W]`.
            keep: boolean, `[B, P]`; as many in each row, if the kind is not ragged.
        """
        whole = torch.ones(len(keep), self.layout.tokens, dtype=torch.bool, device=keep.device)
        whole[:, self.layout.patches] = keep
        return self._run(inputs, self.mode(whole))

    def mode(self, whole: Tensor) -> TorchFunctionMode:
        """A mode in which only some tokens take part, boolean `[B, N]`."""
        raise NotImplementedError

    def _run(self, inputs: Inputs, mode: TorchFunctionMode) -> Any:
        model = self._forward.module if isinstance(self._forward, torch.nn.DataParallel) else self._forward
        args, kwargs = inputs.arguments(tuple(t.clone() for t in inputs.tensors))
        with torch.no_grad(), PLAIN_EXECUTION, ModuleWatch(), mode:
            return model(*args, **kwargs)


class TokenDropper(TokenRunner):
    """The other patches leave the sequence."""

    operator = "drop_tokens"

    def mode(self, whole: Tensor) -> TorchFunctionMode:
        """A forward on a shorter sequence.

        Raises:
            ValueError: rows keep different numbers of patches.
        """
        counts = whole.sum(1)
        if bool((counts != counts[0]).any()):
            raise ValueError(f"rows keep {sorted(set(counts.tolist()))} tokens; expected as many in each.")
        return Shortened(self._making, self.layout, whole.nonzero()[:, 1].view(len(whole), -1))
