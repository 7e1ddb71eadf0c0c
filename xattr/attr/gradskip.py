"""GradSkip: relevance propagation for vision transformers with adaptive head weights and skip-connection gates."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

from captum.log import log_usage

from ..trace import Inputs, Target
from ._gradskip_backward import backward
from ._gradskip_walk import GradSkipEvidence, walk
from ._map import MAP_BUDGET, MapAttribution, Upsample
from .gradskip_settings import GradSkipSettings

__all__ = ["GradSkip", "GradSkipEvidence", "GradSkipSettings"]


class GradSkip(MapAttribution):
    """Gradient-skipping relevance propagation (arXiv:2607.10365) on any column of attention blocks.

    From the start vector `R_L` (input times gradient of the last patch tokens that matter) relevance walks to the first
    block:

        R_(l-1) = W_l^T (beta_l * R_l) + (1 - beta_l) * R_l

    where `W` is the attention map weighted by head importance, gradient magnitude and embedding magnitude, with rows
    normalised, and `beta` the share of the attention branch in the residual sum by gradient-weighted activation.

    The paper's text leaves details open. `GradSkip.PAPER` is what it states plus our first reading and never changes.
    On class-token models it discards what lies on the class token. `GradSkip.DEFAULT` changes three things:
    `prefix_tokens="include"` (the walk begins at the tokens that the head reads), `embedding="relevance"`, and
    `gate="token"` with `gate_norm="dot"`. It was chosen among five candidates on tuning data (docs/evidence).

    Where it is worth it: where the map has to follow the class that is asked for. On models with class or distillation
    tokens it beats gradient times token at the same price in class sensitivity and in ranking the right tokens first,
    and is a little behind in insertion less deletion. Under `PAPER` a map is blank where all relevance is negative;
    `signed=True` shows it.

    Cost: one forward, one backward (2 forwards by FLOPs); fused attention stays fused, one layer's maps at a time.

    Args:
        forward_func: a module or any callable that returns scores `[B, C]` (or an object with `.logits`).

    Example:
        >>> from xattr.attr import GradSkip
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> model, scenes = embedded_model("class-token"), digit_scenes("report", n=2)
        >>> GradSkip(model).attribute(scenes.images).shape
        torch.Size([2, 1, 24, 24])
    """

    PAPER: ClassVar[GradSkipSettings] = GradSkipSettings()
    DEFAULT: ClassVar[GradSkipSettings] = GradSkipSettings(
        prefix_tokens="include", embedding="relevance", gate="token", gate_norm="dot"
    )

    @log_usage()
    def attribute(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        alpha: float | None = None,
        flow_threshold: float | Literal["mean"] | None = None,
        gradients: str | None = None,
        gate: Literal["layer", "token"] | None = None,
        prefix_tokens: Literal["exclude", "include"] | None = None,
        settings: GradSkipSettings | None = None,
        signed: bool = False,
        upsample: Upsample = "bilinear",
        map_budget: int = MAP_BUDGET,
        **overrides: Any,
    ) -> Any:
        """Explain one class for each image.

        Args:
            inputs: images `[B, C, H, W]` as the model takes them, or the mapping of a Hugging Face processor.
            target: class index for all images, or a list or tensor with one for each; negative indices count from the
                end. `None` explains the predicted class.
            additional_forward_args: what else the model takes, as in Captum.
            alpha: override of this field of the settings, as are the next four.
            flow_threshold: see `GradSkipSettings`.
            gradients: see `GradSkipSettings`.
            gate: see `GradSkipSettings`.
            prefix_tokens: see `GradSkipSettings`.
            settings: every choice; `None` is `GradSkip.DEFAULT`.
            signed: keep negative relevance (evidence against the class).
            upsample: resize to the image, or `None` for the token grid `[B, 1, h, w]`.
            map_budget: bytes of attention maps computed at once; more images go in chunks.
            **overrides: any other field of the settings by name.

        Returns:
            Map `[B, 1, H, W]`, not normalised, float32 (float64 for float64 images); a tuple for a tuple.

        Raises:
            TargetError: the target names no output.
            UnsupportedModelError: no column of attention blocks over one token sequence.
            UnseenError: a part of the model could not be observed.
        """
        evidence = self.explain(
            inputs,
            target,
            additional_forward_args,
            alpha=alpha,
            flow_threshold=flow_threshold,
            gradients=gradients,
            gate=gate,
            prefix_tokens=prefix_tokens,
            settings=settings,
            signed=signed,
            upsample=upsample,
            map_budget=map_budget,
            **overrides,
        )
        return (evidence.map,) if isinstance(inputs, tuple) else evidence.map

    def explain(
        self,
        inputs: Any,
        target: Target = None,
        additional_forward_args: Any = None,
        *,
        settings: GradSkipSettings | None = None,
        signed: bool = False,
        upsample: Upsample = "bilinear",
        map_budget: int = MAP_BUDGET,
        **overrides: Any,
    ) -> GradSkipEvidence:
        """The map together with everything it was made from; takes the arguments of `attribute`.

        Args:
            inputs: as in `attribute`.
            target: as in `attribute`.
            additional_forward_args: as in `attribute`.
            settings: as in `attribute`.
            signed: as in `attribute`.
            upsample: as in `attribute`.
            map_budget: as in `attribute`.
            **overrides: fields of the settings by name; `None` leaves one as it is.

        Returns:
            Map, head weights, gates and start of each walked block.

        Example:
            >>> from xattr.attr import GradSkip
            >>> from xattr.datasets import digit_scenes, embedded_model
            >>> seen = GradSkip(embedded_model("mean-pool")).explain(digit_scenes("report", n=2).images)
            >>> seen.omega.shape, seen.layers[-1], seen.left_out
            (torch.Size([8, 2, 6]), 'blocks.7.attn', {})
        """
        settings = self.DEFAULT if settings is None else settings
        if not isinstance(settings, GradSkipSettings):
            raise ValueError(f"settings={settings!r}; expected a GradSkipSettings, such as GradSkip.PAPER.")
        fields = [field.name for field in dataclasses.fields(GradSkipSettings)]
        if unknown := [name for name in overrides if name not in fields]:
            raise TypeError(f"GradSkip got the unknown argument(s) {unknown}; its settings are {fields}.")
        changes = {name: value for name, value in overrides.items() if value is not None}
        chosen = dataclasses.replace(settings, **changes)
        found = backward(
            self.forward_func,
            Inputs.of(inputs),
            target,
            additional_forward_args,
            rules=chosen.gradients,
            output=chosen.target_output,
            all_x=chosen.embedding == "relevance",
        )
        return walk(found, chosen, signed, upsample, map_budget)
