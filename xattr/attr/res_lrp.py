"""ResLRP: AttnLRP with a rule for residual connections."""

from __future__ import annotations

from typing import Any

from captum.log import log_usage

from ..rules import res_lrp
from ..trace import Target
from .lrp import LRP

__all__ = ["ResLRP"]


class ResLRP(LRP):
    """ResLRP (Berend, Achtibat et al., preprint, 2026): AttnLRP plus a gamma rule at every residual sum `o = u + v`.

        R_u = c_u u / (c_u u + c_v v) R_o,   c_u = 1 + gamma where u has the sign of o, else 1

    entry by entry. A sum of two activations of one shape counts as a residual sum. Our reimplementation; LRP is claimed
    as patented by its authors, who allow personal and scientific use.

    Cost: one forward and one backward, about 2 forwards.

    Args:
        forward_func: a module or any callable that returns scores.

    Example:
        >>> from xattr.attr import ResLRP
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> ResLRP(embedded_model("class-token")).attribute(digit_scenes("report", n=2).images).shape
        torch.Size([2, 1, 24, 24])
    """

    @log_usage()
    def attribute(  # type: ignore[override]
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
        *,
        gamma: float = 1.0,
    ) -> Any:
        """Explain one class for each image.

        Args:
            inputs: a tensor `[B, ...]`, a tuple of them, or the mapping of a Hugging Face processor.
            target: class index, or one for each image; `None` explains the predicted class.
            additional_forward_args: what else the model takes.
            return_convergence_delta: return the conservation error, `[B]`, as well.
            gamma: how much more a branch counts that has the sign of the sum; 0 is AttnLRP.

        Returns:
            Relevance in the shape of the inputs, and the error on request.

        Raises:
            UnsupportedModelError: operations without a rule; all are named, with their modules.
            ValueError: `gamma` is negative.
        """
        return LRP.attribute.__wrapped__(  # type: ignore[attr-defined]
            self, inputs, target, additional_forward_args, return_convergence_delta, rule=res_lrp(gamma)
        )
