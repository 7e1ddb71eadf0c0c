"""A head on any backbone, and how the two are stored."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..trace import InputError
from ..trace.modules import in_evaluation_mode, uncompiled
from .collect import collect
from .explanation import HeadExplanation
from .layers import FeatureLayer, Layers, Pool, example_of, find_layers
from .mixing import LayaHead, MeanHead, MixingHead, ScalarMixHead
from .plain import ConcatHead, LastLayerHead, LastLayerMLPHead, ProbeHead

HEADS: dict[str, Callable[..., nn.Module]] = {
    "laya": LayaHead,
    "laya-paper": LayaHead.paper,
    "last": LastLayerHead,
    "last-mlp": LastLayerMLPHead,
    "probe": ProbeHead,
    "concat": ConcatHead,
    "scalar-mix": ScalarMixHead,
    "mean": MeanHead,
}
"""Heads by name; each is called with the widths of the layers and the number of classes."""


class LayaModel(nn.Module):
    """An unmodified backbone with a head on all of its layers; returns logits `[B, C]`.

    The backbone stays as it is: its layers are read by hooks that exist for the length of one forward. With `freeze` it
    runs in evaluation mode without gradients, whatever mode this module is in, and its flags are not touched.

    Args:
        backbone: any module, its own classifier included or not.
        num_classes: number of classes.
        layers: "blocks" (each transformer or residual block), "stages" (the last block of each resolution), or a list
            of modules or of their names. The embedding is not among them, and no final norm is applied.
        pool: how a layer's output becomes one vector: "cls" (first token) or "mean" (all tokens; only those that
            `attention_mask` keeps) for sequences, "gap" for feature maps, or a callable. `None` where the shape
            decides: vectors and feature maps.
        head: a name in `HEADS`, or a head, or a function of widths and number of classes.
        freeze: whether the backbone is left as it is; otherwise gradients reach it.
        example: inputs for one call, from which the layers are found; `None` asks the backbone for its size.
        include_embedding: whether what the first block takes is a layer, too.
        **options: passed on to the head.

    Raises:
        InputError: layers were not found, a shape does not say how to pool, or the backbone does not take the example.

    Example:
        >>> import torch
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> from xattr.heads import LayaModel
        >>> model = LayaModel(embedded_model("class-token"), num_classes=10, pool="cls", width=16)
        >>> x = digit_scenes("report", n=3).images
        >>> model(x).shape, model.explain(x).alpha.shape
        (torch.Size([3, 10]), torch.Size([3, 8]))
    """

    def __init__(
        self,
        backbone: nn.Module,
        num_classes: int,
        *,
        layers: Layers = "blocks",
        pool: Pool = None,
        head: str | nn.Module | Callable[..., nn.Module] = "laya",
        freeze: bool = True,
        example: Any = None,
        include_embedding: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        if not isinstance(backbone, nn.Module):
            raise InputError(f"backbone is a {type(backbone).__name__}; expected a torch.nn.Module.")
        self.backbone = backbone
        self.freeze = bool(freeze)
        plain = uncompiled(backbone)
        example = example_of(plain) if example is None else example
        first = next(plain.parameters(), None)
        if first is not None:
            example = _moved(example, first)
        self.layers = find_layers(plain, example, layers, pool, include_embedding)
        self._pool = pool if callable(pool) else None
        self.head = _head(head, [layer.width for layer in self.layers], num_classes, options)
        _like(self.head, first)
        self._settings = {"head": head if isinstance(head, str) else None, "num_classes": num_classes, **options}

    def features(self, *inputs: Any, **named: Any) -> list[Tensor]:
        """Pooled features of all layers, `[B, d_i]` each; takes what the backbone takes."""
        given: Any = named or inputs
        if named and inputs:
            raise InputError("pass the backbone's arguments all by position, or all by name.")
        with contextlib.ExitStack() as stack:
            if self.freeze:
                stack.enter_context(torch.no_grad())
                stack.enter_context(in_evaluation_mode(self.backbone))
            return collect(self.backbone, self.layers, given[0] if len(given) == 1 and not named else given, self._pool)

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Logits `[B, C]`; takes what the backbone takes."""
        logits: Tensor = self.head(self.features(*inputs, **named))
        return logits

    def explain(self, *inputs: Any, **named: Any) -> HeadExplanation:
        """The logits taken apart by layer; takes what the backbone takes.

        Raises:
            InputError: the decision of this head does not come apart by layer.
        """
        if not isinstance(self.head, MixingHead):
            raise InputError(f"{type(self.head).__name__} has no weights of layers; LayaHead, ScalarMixHead have.")
        return self.head.explain(self.features(*inputs, **named))

    def save(self, folder: str | Path) -> Path:
        """Write the head (and a trained backbone) as safetensors, and what they are as JSON.

        A frozen backbone is not stored: `load` takes it, and checks that it is the same.

        Returns:
            The folder.

        Raises:
            InputError: the head was given as an object, so that its making is not known.
        """
        from safetensors.torch import save_file

        if self._settings["head"] is None:
            raise InputError("only heads made by name can be stored; pass head='laya' or another name in HEADS.")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        card = {
            "settings": self._settings,
            "freeze": self.freeze,
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
            "backbone": {"class": type(uncompiled(self.backbone)).__name__, "fingerprint": fingerprint(self.backbone)},
        }
        text = json.dumps(card, indent=2) + "\n"
        copied = lambda v: v.detach().clone(memory_format=torch.contiguous_format)
        stored = {f"head.{k}": copied(v) for k, v in self.head.state_dict().items()}
        if not self.freeze:
            stored |= {f"backbone.{k}": copied(v) for k, v in uncompiled(self.backbone).state_dict().items()}
        weights = folder / "model.safetensors.partial"
        save_file(stored, weights)
        weights.replace(folder / "model.safetensors")
        (folder / "model.json").write_text(text, encoding="utf-8")
        return folder

    @classmethod
    def load(cls, folder: str | Path, backbone: nn.Module, *, pool: Pool = None) -> LayaModel:
        """A stored model on a backbone of the same kind.

        Args:
            folder: what `save` was given.
            backbone: the same frozen backbone; of a trained one, the architecture, which gets the stored weights.
            pool: the callable, if the layers were pooled by one.

        Raises:
            InputError: it is another backbone.
        """
        from safetensors.torch import load_file

        folder = Path(folder)
        card = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        stored = load_file(folder / "model.safetensors")
        layers = tuple(FeatureLayer(**layer) for layer in card["layers"])
        if any(layer.pool == "callable" for layer in layers) and not callable(pool):
            raise InputError("the stored layers were pooled by a callable; pass it as pool=.")
        part = lambda name: {k.removeprefix(f"{name}."): v for k, v in stored.items() if k.startswith(f"{name}.")}
        if not card["freeze"]:
            uncompiled(backbone).load_state_dict(part("backbone"))
        elif fingerprint(backbone) != card["backbone"]["fingerprint"]:
            raise InputError(
                f"the head in {str(folder)!r} was trained on a {card['backbone']['class']} with other weights than "
                f"this {type(backbone).__name__} has; its features mean something else here."
            )
        model = cls.__new__(cls)
        nn.Module.__init__(model)
        settings = dict(card["settings"])
        model._settings = dict(settings)
        name, classes = settings.pop("head"), settings.pop("num_classes")
        model.backbone, model.freeze, model.layers = backbone, card["freeze"], layers
        model._pool = pool if callable(pool) else None
        model.head = _head(name, [layer.width for layer in layers], classes, settings)
        model.head.load_state_dict(part("head"))
        _like(model.head, next(backbone.parameters(), None))
        return model


def fingerprint(module: nn.Module) -> str:
    """A hash of a module: its structure, settings, parameters and buffers, and tensors kept as plain attributes."""
    digest = hashlib.sha256()
    module = uncompiled(module)
    for path, part in module.named_modules():
        settings = {k: v for k, v in vars(part).items() if isinstance(v, (bool, int, float, str, tuple))}
        settings.pop("training", None)
        digest.update(f"{path} {type(part).__qualname__} {sorted(settings.items(), key=str)}".encode())
        tensors = {k: v for k, v in vars(part).items() if isinstance(v, Tensor)}
        tensors |= {k: v for k, v in (*part._parameters.items(), *part._buffers.items()) if v is not None}
        for name, value in sorted(tensors.items()):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _like(module: nn.Module, tensor: Tensor | None) -> None:
    """Bring a module to where a tensor is, and to its precision."""
    if tensor is not None:
        module.to(tensor.device, tensor.dtype if tensor.is_floating_point() else None)


def _head(head: Any, widths: list[int], num_classes: int, options: dict[str, Any]) -> nn.Module:
    if isinstance(head, nn.Module):
        if options:
            raise InputError(f"the head is given, so the options {sorted(options)} have nowhere to go.")
        return head
    if isinstance(head, str):
        if head not in HEADS:
            raise InputError(f"head={head!r}; expected one of {sorted(HEADS)}, a module, or a function that makes one.")
        head = HEADS[head]
    made: nn.Module = head(widths, num_classes, **options)
    return made


def _moved(example: Any, like: Tensor) -> Any:
    from .._nested import replace_tensors

    move = lambda t: t.to(like.device, like.dtype if t.is_floating_point() else t.dtype)
    return replace_tensors(dict(example) if isinstance(example, Mapping) else example, move)
