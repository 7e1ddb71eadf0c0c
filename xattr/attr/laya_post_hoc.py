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
from ..trace.modules import in_evaluation_mode
from ..trace.outputs import resolve
from .laya import check_model, explained, of_target

__all__ = ["LayaPostHocAttribution"]

Kind = Literal["gradient_x_input", "integrated_gradients", "gradient_norm", "grad_cam"]
Alpha = Literal["frozen", "differentiated"]
Output = Literal["logit", "prob"]


class LayaPostHocAttribution(LayerAttribution):  # type: ignore[misc]
    """Gradient methods on the adapted features `z_i [B, L, width]` of a `LayaModel`, `[B, L]`.

    | kind | value of layer i |
    |---|---|
    | `gradient_x_input` | `z_i . df/dz_i` |
    | `integrated_gradients` | `z_i . mean over t of df/dz_i at t z`, midpoints, baseline 0 |
    | `gradient_norm` | length of `df/dz_i` |
    | `grad_cam` | positive part of `z_i . df/dz_i` (a vector has no cells to average over) |

    `f` is the target's logit, or its softmax probability. With `alpha="frozen"` the weights are constants, and
    `gradient_x_input` and `integrated_gradients` of the logit are the exact contributions; with "differentiated"
    gradients also pass through the scorer.

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
        alpha: Alpha = "differentiated",
        n_steps: int = 20,
        output: Output = "logit",
    ) -> Any:
        """Explain one class for each example.

        Args:
            inputs: what the backbone takes.
            target: class index, or one for each example; `None` explains the predicted class.
            additional_forward_args: what else the backbone takes, by position.
            kind: see above.
            alpha: whether gradients pass through the scorer.
            n_steps: midpoints of `integrated_gradients`.
            output: what `f` is of the target: its "logit", or its softmax probability, "prob".

        Returns:
            `[B, L]`.

        Raises:
            ValueError: an argument is not one of its choices.
        """
        for name, value, kinds in (("kind", kind, Kind), ("alpha", alpha, Alpha), ("output", output, Output)):
            if value not in get_args(kinds):
                raise ValueError(f"{name}={value!r}; expected one of {list(get_args(kinds))}.")
        if n_steps < 1:
            raise ValueError(f"n_steps={n_steps!r}; expected at least one step.")
        model: LayaModel = self.forward_func
        seen = explained(model, inputs, additional_forward_args)
        chosen = resolve(target, seen.logits)
        assert isinstance(model.head, MixingHead)
        found = post_hoc(model.head, seen.z, chosen, kind, alpha=alpha, n_steps=n_steps, output=output)
        return (found,) if isinstance(inputs, tuple) else found


def post_hoc(
    head: MixingHead,
    z: Tensor,
    target: Any,
    kind: Kind,
    *,
    alpha: Alpha = "differentiated",
    n_steps: int = 20,
    output: Output = "logit",
) -> Tensor:
    """The values of `LayaPostHocAttribution`, `[B, L]`, from the adapted features `z`, `[B, L, width]`."""
    with torch.no_grad(), in_evaluation_mode(head):
        frozen = head.weigh(head.scores(z)) if alpha == "frozen" else None
    points = [(k + 0.5) / n_steps for k in range(n_steps)] if kind == "integrated_gradients" else [1.0]
    gradient = torch.zeros_like(z)
    for t in points:
        gradient += _gradient(head, t * z, target, frozen, output) / len(points)
    if kind == "gradient_norm":
        return torch.linalg.vector_norm(gradient, dim=-1)
    found = (gradient * z).sum(-1)
    return found.clamp_min(0) if kind == "grad_cam" else found


def _gradient(head: MixingHead, z: Tensor, target: Any, frozen: Tensor | None, output: Output) -> Tensor:
    with torch.inference_mode(False), torch.enable_grad(), in_evaluation_mode(head):  # no layer is left out
        z = z.detach().clone().requires_grad_()
        alpha = head.weigh(head.scores(z)) if frozen is None else frozen.clone()
        logits = (alpha[..., None] * (z @ head.classifier.weight.mT)).sum(1) + head.classifier.bias
        outputs = logits.softmax(1) if output == "prob" else logits
        (gradient,) = torch.autograd.grad(of_target(outputs[:, None], target).sum(), z)
    return gradient
