"""Running a column transformer on some of its tokens, without knowing the model: a shorter sequence.

The tokens in front of the first block are what a pass has found. In a later forward the same operation is recognised by
its name, the shape of its result and its number, and the tokens that are to go leave its result. Constants that stand
beside tokens, such as rotary tables and position biases, are gathered alike where they meet what was shortened.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .._nested import replace_tensors, tensors_in
from .errors import UnsupportedModelError, XattrError
from .functions import attention_arguments, in_evaluation, name_of, overwritten
from .inputs import Inputs
from .observe import observe
from .outputs import logits
from .plain import plain_forward
from .record import Layout, Record
from .watch import Finder, Making, Watch

# What combines entries that stand at the same place; in-place forms included.
_BESIDE = frozenset("add sub mul div true_divide where masked_fill addcmul lerp maximum minimum __setitem__".split())


class Shortened(Watch):
    """One forward on some of the tokens.

    Args:
        making: how the tokens come about.
        layout: of all tokens.
        kept: numbers of the tokens that stay, `[B, n]`, ascending.
        strict: refuse constants that the model has made for this number of tokens: they say that it counts its tokens,
            and gives those that are left the places of the first.
    """

    def __init__(self, making: Making, layout: Layout, kept: Tensor, strict: bool = False) -> None:
        super().__init__()
        self._making, self._layout, self._kept, self._strict = making, layout, kept, strict
        inside = (kept >= layout.patches.start) & (kept < layout.patches.stop)
        self._patches = kept[inside].view(len(kept), -1) - layout.patches.start
        self._derived = WeakTensorKeyDictionary()
        self._ran = False

    def reached(self, tensor: Tensor) -> bool:
        """Whether a result comes from the tokens that are left."""
        return tensor in self._derived

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = in_evaluation(func, args, kwargs or {})
        if self._ran and any(t in self._derived for t in tensors_in((args, kwargs))):
            args, kwargs = self._fitting(func, args, kwargs)
            out = func(*args, **kwargs)
            for tensor in tensors_in((out, overwritten(func, name_of(func), args, kwargs))):
                self._derived[tensor] = True
            return out
        if self._ran:
            return func(*args, **kwargs)
        out, making = self.call(func, args, kwargs)
        if making == self._making:
            out = self._gathered(out, 1, self._kept)
            self._derived[out] = True
            self._ran = True
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
                kept = kept.repeat_interleave(max(1, len(tokens) // len(kept)), 0)  # heads folded into the batch
                wide = wide.expand(len(kept), *wide.shape[1:]) if len(wide) == 1 else wide
                return self._gathered(wide, wide.ndim + axis, kept)
            if self._strict and have == want == kept.shape[1]:
                with torch._C.DisableTorchFunction():
                    if not bool((constant == constant.narrow(axis, 0, 1)).all()):
                        raise UnsupportedModelError(
                            "'drop_tokens': this model makes positions, biases or masks by counting its tokens, so "
                            "that those that are left would stand in the places of the first."
                        )
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
        record: of that example, if it has been observed.

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

    def __init__(self, forward_func: Callable[..., Any], inputs: Inputs, record: Record | None = None) -> None:
        self._forward = forward_func
        one = inputs.rows(slice(0, 1))
        if record is None:
            with torch.no_grad():
                record = observe(forward_func, one).record
        self.layout = record.require_blocks(f"{self.operator!r}")
        self._attentions = len(record.attentions)
        tokens = record.blocks[0].x
        finder = Finder(tokens.value)
        if not tokens.swapped:
            self._run(one, finder)
        if finder.found is None:
            raise UnsupportedModelError("the tokens in front of the first block are made by no single operation.")
        self._making, self._lengths = finder.found, finder.lengths

    def __call__(self, inputs: Inputs, keep: Tensor) -> Any:
        """What the model returns on some patches of each image.

        Args:
            inputs: images, `[B, C, H, W]`.
            keep: boolean, `[B, P]`; as many in each row, if the kind is not ragged.
        """
        return self._run(inputs, self.mode(self._whole(keep)))

    def mode(self, whole: Tensor) -> Watch:
        """A mode in which only some tokens take part, boolean `[B, N]`."""
        raise NotImplementedError

    def _whole(self, keep: Tensor) -> Tensor:
        whole = torch.ones(len(keep), self.layout.tokens, dtype=torch.bool, device=keep.device)
        whole[:, self.layout.patches] = keep
        return whole

    def _run(self, inputs: Inputs, mode: Watch) -> Any:
        tensors = tuple(t.clone() for t in inputs.tensors)
        mode.begin(tensors)
        return plain_forward(self._forward, dataclasses.replace(inputs, tensors=tensors), mode)


class TokenDropper(TokenRunner):
    """The other patches leave the sequence.

    Raises:
        UnsupportedModelError: as `TokenRunner`; or a trial on one image shows that the model does not run on fewer
            tokens, that its scores do not come from them, or that it counts them.
    """

    operator = "drop_tokens"

    def __init__(self, forward_func: Callable[..., Any], inputs: Inputs, record: Record | None = None) -> None:
        super().__init__(forward_func, inputs, record)
        others = self.layout.tokens - self.layout.size
        few = max(1, self.layout.size // 8)  # a cheap trial
        sizes = sorted(range(1, self.layout.size), key=lambda n: abs(n - few))
        # A length that occurs nowhere else, so that what has it has been made for these tokens.
        own = next((n for n in sizes if not {n, n + others} & self._lengths), None)
        keep = torch.arange(self.layout.size, device=inputs.tensors[0].device) % 7 * self.layout.size
        keep = (keep.argsort(stable=True).argsort() < (own or few))[None]
        trial = Shortened(self._making, self.layout, self._kept(self._whole(keep)), strict=own is not None)
        try:
            scores = logits(self._run(inputs.rows(slice(0, 1)), trial), 1)
        except XattrError:
            raise
        except Exception as error:
            raise UnsupportedModelError(
                f"'drop_tokens': this model does not run on fewer tokens ({type(error).__name__}: {error})."
            ) from error
        if not trial.reached(scores):
            raise UnsupportedModelError(
                "'drop_tokens': the scores of this model do not come from the shortened tokens."
            )

    def mode(self, whole: Tensor) -> Watch:
        """A forward on a shorter sequence.

        Raises:
            ValueError: rows keep different numbers of patches.
        """
        counts = whole.sum(1)
        if bool((counts != counts[0]).any()):
            raise ValueError(f"rows keep {sorted(set(counts.tolist()))} tokens; expected as many in each.")
        return Shortened(self._making, self.layout, self._kept(whole))

    @staticmethod
    def _kept(whole: Tensor) -> Tensor:
        return whole.nonzero()[:, 1].view(len(whole), -1)
