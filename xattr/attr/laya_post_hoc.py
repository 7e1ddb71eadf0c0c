"""Layer attributions from outside, on the same features that a LAYA head weighs, to compare its own with."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from captum.attr import LayerAttribution
from captum.log import log_usage
from torch import Tensor

from ..heads.mixing import MixingHead
from ..heads.model import LayaModel
from ..trace import Target
from ..trace.outputs import resolve
from .laya import check_model, explained, of_target

__all__ = ["LayaPostHocAttribution"]

Kind = Literal["gradient_x_input", "integrated_gradients", "gradient_norm", "grad_cam"]


class LayaPostHocAttribution(LayerAttribution):  # type: ignore[misc]
    """Gradient methods on the adapted features `z_i [B, L, width]` of a `LayaModel`, `[B, L]`.

    | kind | value of layer i |
    |---|---|
    | `gradient_x_input` | `z_i . df/dz_i` |
    | `integrated_gradients` | `z_i . mean over t of df/dz_i at t z`, midpoints, baseline 0 |
    | `gradient_norm` | length of `df/dz_i` |
    | `grad_cam` | positive part of `z_i . df/dz_i` (a vector has no cells to average over) |

    `f` is the target's logit. With `alpha="frozen"` the weights are constants, and `gradient_x_input` and
    `integrated_gradients` are the exact contributions; with "differentiated" gradients also pass through the scorer.

    Cost: one forward of the backbone; the head is run once, or once for each step.

    Args:
        model: a `LayaModel` whose head mixes layers.
        layer: ignored; there for Captum.
        device_ids: ignored; there for Captum.
    """

    def __init__(self, model: LayaModel, layer: Any = None, device_ids: Any = None) -> None:
        check_model(model, "LayaPostHocAttribution")
        super().__init__(model, layer, device_ids)

    @classmethod
    def get_name(cls) -> str:
        """Readable name of the method."""
        return f"xattr {cls.__name__}"

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        kind: Kind = "gradient_x_input",
        alpha: Literal["frozen", "differentiated"] = "differentiated",
        n_steps: int = 20,
    ) -> Any:
        """Explain one class for each example.

        Args:
            inputs: what the backbone takes.
            target: class index, or one for each example; `None` explains the predicted class.
            additional_forward_args: what else the backbone takes, by position.
            kind: see above.
            alpha: whether gradients pass through the scorer.
            n_steps: midpoints of `integrated_gradients`.

        Returns:
            `[B, L]`.

        Raises:
            ValueError: an argument is not one of its choices.
        """
        if kind not in get_args(Kind) or alpha not in ("frozen", "differentiated") or n_steps < 1:
            raise ValueError(
                f"kind={kind!r}, alpha={alpha!r}, n_steps={n_steps!r}; expected a kind of {list(get_args(Kind))}, "
                f'"frozen" or "differentiated", and at least one step.'
            )
        model: LayaModel = self.forward_func
        seen = explained(model, inputs, additional_forward_args)
        chosen = resolve(target, seen.logits)
        frozen = seen.alpha if alpha == "frozen" else None
        if kind == "integrated_gradients":
            points = [(k + 0.5) / n_steps for k in range(n_steps)]
            gradient = sum(self._gradient(t * seen.z, chosen, frozen) for t in points) / n_steps
        else:
            gradient = self._gradient(seen.z, chosen, frozen)
        if kind == "gradient_norm":
            found = torch.linalg.vector_norm(gradient, dim=-1)
        else:
            found = (gradient * seen.z).sum(-1)
        found = found.clamp_min(0) if kind == "grad_cam" else found
        return (found,) if isinstance(inputs, tuple) else found

    def _gradient(self, z: Tensor, target: Any, frozen: Tensor | None) -> Tensor:
        head: MixingHead = self.forward_func.head
        modes = head.training
        with torch.inference_mode(False), torch.enable_grad():
            z = z.detach().clone().requires_grad_()
            frozen = None if frozen is None else frozen.clone()
            try:
                head.training = False  # no layer is left out
                alpha = head.weigh(head.scores(z)) if frozen is None else frozen
            finally:
                head.training = modes
            contributions = alpha[..., None] * (z @ head.classifier.weight.mT)
            (gradient,) = torch.autograd.grad(of_target(contributions, target).sum(), z)
        return gradient
