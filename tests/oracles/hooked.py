"""A pass recorded from a model's own eager code by hooks, for models that no oracle re-implements."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from .vit import Block, Record

FIRST_NORMS, SECOND_NORMS = ("norm1", "layernorm_before", "layer_norm1"), ("norm2", "layernorm_after", "layer_norm2")


def observe_by_hooks(model: nn.Module, blocks: str, x: Tensor, target: int) -> Record:
    """Run a pre-norm transformer and differentiate the target's logit.

    What enters a block's first norm is its input, what enters its second norm is the residual sum of attention, and the
    map is whatever a part of the block returns that is square and whose rows sum to 1. Fused attention has to be off.

    Args:
        model: the model; a copy is run.
        blocks: dotted path of its list of blocks.
        x: images.
        target: the class.
    """
    model = copy.deepcopy(model)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    layers = list(model.get_submodule(blocks))
    seen: list[dict[str, Tensor]] = [{} for _ in layers]
    for layer, kept in zip(layers, seen, strict=True):
        _keep_input(layer, FIRST_NORMS, kept, "x")
        _keep_input(layer, SECOND_NORMS, kept, "z")
        for part in layer.modules():
            part.register_forward_hook(_map_keeper(kept))
    last: dict[str, Tensor] = {}
    layers[-1].register_forward_hook(lambda module, args, output: last.update(y=_tensors(output)[0]))

    image = x.detach().clone().requires_grad_()
    output = model(image)
    logits = getattr(output, "logits", output)
    sources = [last["y"], image] + [kept[name] for kept in seen for name in ("x", "z", "A")]
    found = torch.autograd.grad(logits[:, target].sum(), sources, allow_unused=True)
    gradients = [torch.zeros_like(s) if g is None else g for s, g in zip(sources, found, strict=True)]
    record = []
    for index, kept in enumerate(seen):
        values = {name: kept[name].detach() for name in ("x", "z", "A")}
        # No value vectors: the settings that are compared here do not ask for them.
        heads, width = values["A"].shape[1], values["x"].shape[2]
        none = {"v": torch.zeros(*values["A"].shape[:3], 1), "W_O": torch.zeros(heads, width, 1)}
        dx, dz, dA = gradients[2 + 3 * index :][:3]
        record.append(Block(**values, **none, a=values["z"] - values["x"], dx=dx, dz=dz, dA=dA))
    return Record(
        logits=logits.detach(),
        target=torch.full((len(x),), target),
        score=logits[:, target].detach(),
        blocks=tuple(record),
        x_last=last["y"].detach(),
        dx_last=gradients[0],
        image=image.detach(),
        d_image=gradients[1],
        state={},
        d_state={},
    )


def _tensors(output: Any) -> list[Tensor]:
    return [part for part in (output if isinstance(output, tuple) else (output,)) if isinstance(part, Tensor)]


def _keep_input(layer: nn.Module, names: tuple[str, ...], kept: dict[str, Tensor], key: str) -> None:
    norm = next(getattr(layer, name) for name in names if hasattr(layer, name))
    norm.register_forward_pre_hook(lambda module, args: kept.update({key: args[0]}))


def _map_keeper(kept: dict[str, Tensor]) -> Any:
    def keep(module: nn.Module, args: Any, output: Any) -> None:
        for tensor in _tensors(output):
            if tensor.ndim == 4 and tensor.shape[-1] == tensor.shape[-2]:
                rows = tensor.detach().sum(-1)
                if torch.allclose(rows, torch.ones_like(rows), atol=1e-5):
                    kept.setdefault("A", tensor)

    return keep
