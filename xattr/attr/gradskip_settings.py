"""Every choice of GradSkip as one frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..rules import RULE_SETS

_CHOICES: dict[str, tuple[str | None, ...]] = {
    "prefix_tokens": ("exclude", "include"),
    "gini_over": ("rows", "columns", "map"),
    "head_norm": ("minmax", "max", "l1"),
    "head_filter": (None, "top25", "bottom25"),
    "embedding": ("input", "relevance", "value", "projected", "ratio", "none"),
    "row_norm": ("row", "mean", "none"),
    "flow_sign": ("abs", "relu"),
    "gate": ("layer", "token"),
    "gate_norm": ("l1", "l2", "signed", "dot"),
    "start": ("gradient_x_input", "uniform", "cls"),
    "target_output": ("logit", "prob"),
}


@dataclass(frozen=True)
class GradSkipSettings:
    """The choices of GradSkip; the defaults are `GradSkip.PAPER`, what the paper states plus our first reading of it.

    Attributes:
        alpha: weight of flow against sparsity in the head weights, 0 to 1.
        flow_threshold: heads whose flow is below this share of the largest are removed; "mean" for below the mean head.
        gradients: rule set of the backward, "libra" or "plain".
        prefix_tokens: whether class, distillation and register tokens take part in the walk.
        gini_over: support of the sparsity: "rows", "columns" (of the mean row), or the whole "map".
        head_norm: scaling of both indicators over the heads of a layer. With two heads "minmax" is "max".
        head_filter: keep only the quarter of heads with the highest ("top25") or lowest ("bottom25") sparsity.
        embedding: magnitude of a key token: norm of the block's "input", positive part of its "relevance" (input times
            gradient), norm of its "value" (each head), of the "projected" value (each head), "ratio" of the projected
            values' norm to the input's, or "none".
        row_norm: rows of the weighted attention sum to 1 ("row"), 1 on average ("mean"), or are left ("none").
        flow_sign: edges weigh by |dA| ("abs") or by its positive part ("relu").
        gate: one skip gate a "layer" or a "token".
        gate_norm: magnitude in the gate: "l1", "l2", "signed" (absolute value of the sum), "dot" (absolute dot product
            of each token, summed over tokens in a layer gate).
        start: relevance at the last tokens: "gradient_x_input", "uniform", or the "cls" token (prefix included).
        reads: add what prefix tokens read from patches at every layer.
        first_layer: the walk ends in front of this block, counted from 1.
        target_output: explain the "logit" or the softmax "prob".
    """

    alpha: float = 0.5
    flow_threshold: float | Literal["mean"] = 0.1
    gradients: str = "libra"
    prefix_tokens: Literal["exclude", "include"] = "exclude"
    gini_over: Literal["rows", "columns", "map"] = "rows"
    head_norm: Literal["minmax", "max", "l1"] = "minmax"
    head_filter: Literal["top25", "bottom25"] | None = None
    embedding: Literal["input", "relevance", "value", "projected", "ratio", "none"] = "input"
    row_norm: Literal["row", "mean", "none"] = "row"
    flow_sign: Literal["abs", "relu"] = "abs"
    gate: Literal["layer", "token"] = "layer"
    gate_norm: Literal["l1", "l2", "signed", "dot"] = "l1"
    start: Literal["gradient_x_input", "uniform", "cls"] = "gradient_x_input"
    reads: bool = False
    first_layer: int = 1
    target_output: Literal["logit", "prob"] = "logit"

    def __post_init__(self) -> None:
        for name, allowed in {**_CHOICES, "gradients": tuple(RULE_SETS)}.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"GradSkip setting {name}={getattr(self, name)!r}; expected one of {list(allowed)}.")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"GradSkip setting alpha={self.alpha!r}; expected a number from 0 to 1.")
        number = not isinstance(self.flow_threshold, str)
        if self.flow_threshold != "mean" and not (number and 0 <= float(self.flow_threshold) <= 1):
            raise ValueError(f'GradSkip setting flow_threshold={self.flow_threshold!r}; expected 0 to 1, or "mean".')
        if self.first_layer < 1:
            raise ValueError(f"GradSkip setting first_layer={self.first_layer!r}; blocks are counted from 1.")
        if self.start == "cls" and self.prefix_tokens == "exclude":
            raise ValueError('GradSkip setting start="cls" needs prefix_tokens="include".')
