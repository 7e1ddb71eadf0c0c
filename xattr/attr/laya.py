"""The layer attribution that a LAYA head makes while it predicts."""

from __future__ import annotations

from typing import Any, Literal

import torch
from captum.attr import LayerAttribution
from captum.log import log_usage
from torch import Tensor

from ..heads.explanation import HeadExplanation
from ..heads.mixing import MixingHead
from ..heads.model import LayaModel
from ..trace import InputError, Target
from ..trace.inputs import as_tuple
from ..trace.modules import in_evaluation_mode
from ..trace.outputs import resolve

__all__ = ["LayaLayerAttribution"]


class LayaLayerAttribution(LayerAttribution):  # type: ignore[misc]
    """Which layers a `LayaModel` decided by, `[B, L]`, read off its forward.

    `scores="attention"` is the head's `alpha`, as in the paper (arXiv:2511.12723): where it looks, the same for every
    class, and no measure of effect, because the length of what it looks at is free. `scores="contribution"` is the
    exact signed share of each layer in the target's logit,

        c_i = alpha_i * (w_c . z_i),    sum_i c_i + b_c = logit_c

    Cost: one forward, no backward.

    Args:
        model: a `LayaModel` whose head mixes layers (`LayaHead`, `ScalarMixHead`, `MeanHead`).
        layer: ignored; there for Captum.
        device_ids: ignored; there for Captum.

    Raises:
        InputError: another model, or another head.

    Example:
        >>> from xattr.attr import LayaLayerAttribution
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> from xattr.heads import LayaModel
        >>> model = LayaModel(embedded_model("class-token"), num_classes=10, pool="cls")
        >>> x = digit_scenes("report", n=2).images
        >>> LayaLayerAttribution(model).attribute(x, target=3, scores="contribution").shape
        torch.Size([2, 8])
    """

    def __init__(self, model: LayaModel, layer: Any = None, device_ids: Any = None) -> None:
        check_model(model, "LayaLayerAttribution")
        super().__init__(model, layer, device_ids)

    @classmethod
    def get_name(cls) -> str:
        """Readable name of the method."""
        return f"xattr {cls.__name__}"

    @property
    def multiplies_by_inputs(self) -> bool:
        """A contribution holds the feature itself."""
        return True

    def attribute_future(self, *args: Any, **kwargs: Any) -> Any:
        """Not available.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("attribute_future is not implemented for LayaLayerAttribution; use attribute.")

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        scores: Literal["attention", "contribution"] = "attention",
    ) -> Any:
        """Explain one class for each example.

        Args:
            inputs: what the backbone takes: a tensor, a tuple by position, or a mapping by name.
            target: class index, or one for each example; `None` explains the predicted class. The attention does not
                depend on it.
            additional_forward_args: what else the backbone takes, by position.
            scores: "attention" or "contribution".

        Returns:
            `[B, L]`, layers in order of depth; a tuple for a tuple.

        Raises:
            TargetError: the target names no output.
            ValueError: `scores` is neither.
        """
        if scores not in ("attention", "contribution"):
            raise ValueError(f'scores={scores!r}; expected "attention" or "contribution".')
        is_tuple = isinstance(inputs, tuple)
        seen = explained(self.forward_func, inputs, additional_forward_args)
        chosen = resolve(target, seen.logits)
        found = seen.alpha if scores == "attention" else of_target(seen.contributions, chosen)
        return (found,) if is_tuple else found


def check_model(model: Any, method: str) -> None:
    """A `LayaModel` with a head that mixes layers.

    Raises:
        InputError: it is not.
    """
    if not isinstance(model, LayaModel):
        raise InputError(f"{method} explains a LayaModel; found a {type(model).__name__}. Put a head on it: LayaModel.")
    if not isinstance(model.head, MixingHead):
        raise InputError(f"{method} needs a head that mixes layers; {type(model.head).__name__} does not.")


def explained(model: LayaModel, inputs: Any, extra: Any = None) -> HeadExplanation:
    """One forward in evaluation mode without gradients, whatever the mode of the model."""
    with torch.no_grad(), in_evaluation_mode(model):
        return model.explain(*(inputs if isinstance(inputs, tuple) else (inputs,)), *as_tuple(extra))


def of_target(by_class: Tensor, target: Any) -> Tensor:
    """The target's entry of `[B, L, C]`, `[B, L]`."""
    if isinstance(target, int):
        return by_class[..., target]
    index = torch.as_tensor(target, device=by_class.device)
    return by_class[torch.arange(len(by_class), device=by_class.device), :, index]
