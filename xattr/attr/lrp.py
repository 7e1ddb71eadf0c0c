"""Layer-wise relevance propagation, for CNNs and transformers alike."""

from __future__ import annotations

from typing import Any

import torch
from captum.log import log_usage
from torch import Tensor

from ..rules import RuleSet
from ..trace import Inputs, Target, gradients, observe
from ._map import NamedAttribution, result_dtype

__all__ = ["LRP"]


class LRP(NamedAttribution):
    """Layer-wise relevance propagation (Bach et al., 2015) as input times gradient under a rule set.

        R = x * df/dx,   with another backward for some operations (`xattr.rules`)

    | rule | what it is | sum of R plus relevance of the biases |
    |---|---|---|
    | `attnlrp` | AttnLRP (arXiv:2402.05602) | the logit, without a softmax (attention) |
    | `cp` | CP-LRP: attention, denominators constant | the logit, with piecewise linear activations, no products |
    | `libra` | LibraGrad (arXiv:2411.16760) | the logit |
    | `epsilon` | epsilon rule in linear layers and convolutions, else `attnlrp` | as `attnlrp`, for eps -> 0 |
    | `gamma` | gamma rule in linear layers and convolutions, else `libra` | the logit |

    `xattr.rules.epsilon`, `gamma` and `cp` make sets with other values; `tune_gamma` chooses gammas by a metric. Biases
    keep their share, so the sum of the result is as a rule not the logit: `return_convergence_delta` says by how much.
    Signed; the sum over channels is the map to look at. On a CNN with ReLUs `attnlrp`, `cp`, `libra` and `epsilon` are
    input times gradient; `gamma` is the one to use there.

    LRP is claimed as patented by its authors; they allow personal and scientific use.

    Cost: one forward and one backward, about 2 forwards; `gamma` twice that.

    Args:
        forward_func: a module or any callable that returns scores.

    Example:
        >>> from xattr.attr import LRP
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> images = digit_scenes("report", n=2).images
        >>> relevance, delta = LRP(embedded_model("class-token")).attribute(
        ...     images, rule="gamma", return_convergence_delta=True)
        >>> relevance.shape, delta.shape
        (torch.Size([2, 1, 24, 24]), torch.Size([2]))
    """

    @property
    def multiplies_by_inputs(self) -> bool:
        """Relevance is gradient times input."""
        return True

    def has_convergence_delta(self) -> bool:
        """The conservation error can be had."""
        return True

    def compute_convergence_delta(self, attributions: Tensor | tuple[Tensor, ...], output: Tensor) -> Tensor:
        """The conservation error: the sum of the relevance less the score.

        Args:
            attributions: relevance, `[B, ...]` each.
            output: the explained score of each image, `[B]`.

        Returns:
            `[B]`; what the biases absorbed, with a minus sign, where the rule conserves relevance.
        """
        parts = attributions if isinstance(attributions, tuple) else (attributions,)
        return torch.stack([part.flatten(1).sum(1) for part in parts]).sum(0) - output

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
        *,
        rule: str | RuleSet = "attnlrp",
    ) -> Any:
        """Explain one class for each image.

        Args:
            inputs: a tensor `[B, ...]`, a tuple of them, or the mapping of a Hugging Face processor.
            target: class index, or one for each image; `None` explains the predicted class.
            additional_forward_args: what else the model takes.
            return_convergence_delta: return the conservation error, `[B]`, as well.
            rule: "attnlrp", "cp", "libra", "epsilon", "gamma", "plain" (input times gradient), or a rule set.

        Returns:
            Relevance in the shape of the inputs, and the error on request.

        Raises:
            UnsupportedModelError: the rule set does not cover some operations; all are named, with their modules.
            TargetError: the target names no output.
            ValueError: there is no such rule set.
        """
        checked = Inputs.of(inputs)
        observed = observe(self.forward_func, checked, additional_forward_args, rules=rule, record=False)
        score = observed.score(target)
        found = gradients(score, list(observed.roots))
        with torch.inference_mode(False), torch.no_grad():
            dtype = result_dtype(checked.tensors[0])
            parts = tuple(x.to(dtype) * g.to(dtype) for x, g in zip(checked.tensors, found, strict=True))
            result = parts if checked.is_tuple else parts[0]
            if not return_convergence_delta:
                return result
            return result, self.compute_convergence_delta(parts, score.detach().to(dtype))
