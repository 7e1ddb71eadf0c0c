"""Running a column transformer on some of its tokens, without knowing the model: no attention sees the others."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import UnsupportedModelError
from .functions import COMPOSITES, attention_arguments, in_evaluation, is_softmax_over_keys, name_of, names_operands
from .inputs import Inputs
from .outputs import logits
from .record import Record
from .shortened import TokenRunner
from .watch import Making, Watch


class Masked(Watch):
    """One forward in which the keys of some tokens are masked in every attention over all tokens.

    Args:
        whole: which tokens are seen, boolean `[B, N]`.
        spoil: how the tokens come about, if those that are not seen are to be overwritten there: a check that nothing
            reads them.
    """

    def __init__(self, whole: Tensor, spoil: Making | None = None) -> None:
        super().__init__()
        self._whole, self._spoil = whole, spoil
        self.masked = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = names_operands(*in_evaluation(func, args, kwargs or {}))
        if func in COMPOSITES:
            with self:
                return COMPOSITES[func](*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            given = attention_arguments(args, kwargs)
            if given["key"].shape[-2] == self._whole.shape[1]:
                args, kwargs = (), self._unseen(given)
        elif is_softmax_over_keys(name_of(func), args, kwargs) and args[0].shape[-1] == self._whole.shape[1]:
            args = (args[0].masked_fill(~self._beside(args[0]), -torch.inf), *args[1:])
            self.masked += 1
        out, making = self.call(func, args, kwargs)
        if self._spoil is not None and making == self._spoil:
            with torch._C.DisableTorchFunction():
                spoilt = torch.where(self._whole[..., None], out, out.flip(0, 1, 2).neg())
                if args and out is args[0]:  # the model goes on with what it has overwritten
                    return out.copy_(spoilt)
            self.begin((spoilt,))
            return spoilt
        return out

    def _unseen(self, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("is_causal"):
            raise UnsupportedModelError("'mask_tokens': an attention of this model is causal.")
        self.masked += 1
        seen, mask = self._beside(given["query"]), given.get("attn_mask")
        if mask is None:
            mask = seen
        elif mask.dtype == torch.bool:
            mask = mask & seen
        else:
            mask = mask.masked_fill(~seen, -torch.inf)
        return {**given, "attn_mask": mask}

    def _beside(self, scores: Tensor) -> Tensor:
        """Which keys are seen, in the axes of scores `[B, H, N, M]`; heads may be folded into the batch."""
        rows = self._whole.repeat_interleave(len(scores) // len(self._whole), 0)
        return rows.view(len(rows), *[1] * (scores.ndim - 2), -1)


class TokenMasker(TokenRunner):
    """The other patches stay in the sequence, but no token sees them.

    Raises:
        UnsupportedModelError: as `TokenRunner`; an attention could not be masked; or the scores still depend on what
            is masked, as in models that average over the patches.
    """

    operator = "mask_tokens"
    ragged = True

    def __init__(self, forward_func: Any, inputs: Inputs, record: Record | None = None) -> None:
        super().__init__(forward_func, inputs, record)
        one = inputs.rows(slice(0, 1))
        for odd in (0, 1):
            keep = torch.arange(self.layout.size, device=inputs.tensors[0].device)[None] % 2 == odd
            modes = Masked(self._whole(keep)), Masked(self._whole(keep), self._making)
            plain, spoilt = (logits(self._run(one, mode), 1).double() for mode in modes)
            if modes[0].masked < self._attentions:
                found = f"{modes[0].masked} of the {self._attentions} attentions"
                raise UnsupportedModelError(f"'mask_tokens': {found} of this model can be masked.")
            if not torch.allclose(plain, spoilt, rtol=0, atol=1e-3 * float(plain.abs().max())):
                raise UnsupportedModelError(
                    "'mask_tokens': the scores of this model depend on patches that no token sees, as those of models "
                    'do that average over the patches; use "drop_tokens".'
                )

    def mode(self, whole: Tensor) -> Watch:
        """A forward with masked keys."""
        return Masked(whole)
