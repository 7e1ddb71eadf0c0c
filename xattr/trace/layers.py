"""One layer of a pass: a given one is cut out of the graph, or one that a class activation map can read is found."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from .._nested import tensors_in
from .geometry import Geometry, geometry_of
from .marks import Marks
from .record import Activation, Attention


@dataclass(frozen=True)
class Layer:
    """What a layer returned (or took), and how to read it.

    Attributes:
        path: dotted path of the module.
        output: its output, or its input.
        geometry: where the image's cells lie in it; `None` if that is not known.
    """

    path: str
    output: Activation
    geometry: Geometry | None


@dataclass
class _Candidate:
    path: str
    output: Activation
    place: Tensor | None
    own: int


class LayerWatch:
    """Sees the modules, operations, attentions and residual sums of a pass, and picks layers; this one picks none."""

    needs_graph = True
    """Whether gradients lead to the inputs."""
    is_given = False
    """Whether there is one layer, which has to run."""

    @property
    def path(self) -> str | None:
        """Dotted path of the layer, if there is one and it ran."""
        return None

    def entering(self, marks: Marks, module: nn.Module, path: str, args: Any) -> None:
        """A module is called."""

    def leaving(self, marks: Marks, module: nn.Module, path: str, output: Any) -> None:
        """A module has run."""

    def attention(self, attention: Attention, of_map: int, of_values: int) -> None:
        """An attention has run, with these ancestors of its map and of its values."""

    def block(self, x: Tensor) -> None:
        """A residual sum of the last attention has been made, with the skip `x`."""

    def tokens(self, made: Tensor) -> None:
        """These may be the last tokens: a residual sum, of attention or of what comes behind it."""

    def before_write(self, target: Tensor) -> None:
        """A tensor is about to be overwritten."""

    def operation(self, marks: Marks, name: str, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operation on something that depends on the image has run."""

    def result(self, marks: Marks, scores: Tensor) -> list[Layer]:
        """The layers, best first."""
        return []


class LayerKept(LayerWatch):
    """Keeps what a module returned, or took.

    Args:
        module: the layer; where it runs more than once, the last call that the scores depend on counts.
        at_input: keep what it takes.
    """

    is_given = True

    def __init__(self, module: nn.Module, at_input: bool = False) -> None:
        self._module = module
        self._at_input = at_input
        self._kept: list[_Candidate] = []

    @property
    def path(self) -> str | None:
        """Dotted path of the module, if it ran."""
        return self._kept[-1].path if self._kept else None

    def entering(self, marks: Marks, module: nn.Module, path: str, args: Any) -> None:
        """Keep the arguments."""
        if self._at_input and module is self._module:
            self._keep(marks, path, args)

    def leaving(self, marks: Marks, module: nn.Module, path: str, output: Any) -> None:
        """Keep the output."""
        if not self._at_input and module is self._module:
            self._keep(marks, path, output)

    def _keep(self, marks: Marks, path: str, value: Any) -> None:
        for tensor in {id(t): t for t in tensors_in(value)}.values():
            if marks.varies(tensor) and tensor.is_floating_point():
                with torch._C.DisableTorchFunction():  # the pass does not see it
                    output = self._output(marks, tensor)
                self._kept.append(_Candidate(path, output, marks.place(tensor), marks.own(tensor)))

    def _output(self, marks: Marks, tensor: Tensor) -> Activation:
        return Activation.of(tensor)

    def before_write(self, target: Tensor) -> None:
        """What is kept is copied before it is overwritten."""
        _copy_shared(self._kept, target)

    def result(self, marks: Marks, scores: Tensor) -> list[Layer]:
        """The layer, if the scores depend on it: of several tensors the last with known cells."""
        reached = marks.ancestors(scores)
        kept = [candidate for candidate in reversed(self._kept) if candidate.own & reached]
        layers = [Layer(c.path, c.output, geometry_of(c.place)) for c in kept]
        return sorted(layers, key=lambda layer: layer.geometry is None)[:1]


class LayerCut(LayerKept):
    """Cuts a module's output out of the graph: behind it the graph begins anew, nothing before it is kept.

    What the layer returned keeps its place in memory, so that everybody who holds it, or a view of it, goes on from the
    cut.

    Attributes:
        comes_late: it returned something that others may have read before, as an identity does.
    """

    needs_graph = False

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.comes_late = False
        self._newest = 0

    def entering(self, marks: Marks, module: nn.Module, path: str, args: Any) -> None:
        """Note what was there before."""
        if module is self._module:
            self._newest = marks.newest

    def _output(self, marks: Marks, tensor: Tensor) -> Activation:
        self.comes_late |= marks.own(tensor) <= self._newest
        # The values stay the same, so nothing that was saved for a backward is spoilt.
        with _unsafe_preserve_version_counter(tensor):
            leaf = tensor.detach().clone().requires_grad_()
            tensor.copy_(leaf)
        marks.cut(tensor, leaf)
        return Activation.of(leaf)


class LayerFinder(LayerWatch):
    """Finds a layer for class activation maps: what the last attention reads, else the last feature map.

    Behind the last attention of a class-token model no gradient reaches a patch, so the tokens in front of it are
    taken: the output of the block's first norm, as a rule. A network that goes on with coarser feature maps, and one
    without attention, is read at the last of them.
    """

    _KEPT = 24  # more module calls than lie between a block's first norm and its attention

    def __init__(self) -> None:
        self._recent: deque[_Candidate] = deque(maxlen=self._KEPT)
        self._read: list[_Candidate] = []
        # Of each attention the ancestors of its map and values; and of those with a block what was chosen there.
        self._attentions: list[int] = []
        self._chosen: dict[int, _Candidate | None] = {}

    def leaving(self, marks: Marks, module: nn.Module, path: str, output: Any) -> None:
        """The output is remembered, if it is one tensor."""
        own = marks.own(output)
        if not own or output.ndim < 3 or not output.is_floating_point():
            return
        path = path or f"a {type(module).__name__}"  # called by itself
        known = [candidate for candidate in self._recent if candidate.own == own]
        if not known:
            self._recent.append(_Candidate(path, Activation.of(output), marks.place(output), own))
        elif known[-1].path.startswith(f"{path}."):
            known[-1].path = path  # a container that returns what its last part made

    def attention(self, attention: Attention, of_map: int, of_values: int) -> None:
        """What map and values both come from is read by the attention."""
        self._read = [candidate for candidate in self._recent if candidate.own & of_map & of_values]
        self._attentions.append(of_map | of_values)

    def block(self, x: Tensor) -> None:
        """Of what the attention reads, the last that is as wide as the skip is chosen."""
        chosen = None
        for candidate in self._read:
            shape = candidate.output.value.shape
            # Queries, keys and values in one are wider; the skip of a class attention has fewer tokens.
            if shape == x.shape or (len(shape) == x.ndim == 3 and shape[-1] == x.shape[-1]):
                chosen = candidate
        if self._attentions:
            self._chosen[self._attentions[-1]] = chosen

    def before_write(self, target: Tensor) -> None:
        """What was remembered is copied before it is overwritten."""
        _copy_shared([*self._recent, *self._read, *filter(None, self._chosen.values())], target)

    def result(self, marks: Marks, scores: Tensor) -> list[Layer]:
        """Layers in which the image's cells can be told, best first."""
        reached, own = marks.ancestors(scores), marks.own(scores)
        # A model may go on after the scores: only attentions that lead to them count.
        attentions = [read for read in self._attentions if read | reached == reached]
        last = next((read for read in reversed(attentions) if read in self._chosen), 0)
        best = self._chosen.get(last)
        found: dict[int, Layer] = {}
        for candidate in (*filter(None, [best]), *self._recent):
            geometry = geometry_of(candidate.place)
            if geometry is not None and candidate.own & reached and candidate.own != own:
                found[candidate.own] = Layer(candidate.path, candidate.output, geometry)
        if not found:
            return []
        ordered = [layer for _, layer in sorted(found.items(), reverse=True)]
        chosen = None if best is None else found.get(best.own)
        if chosen is not None and _cells(chosen) <= _cells(ordered[0]):
            ordered = [chosen, *(layer for layer in ordered if layer is not chosen)]
        elif max(found) < max([self._lost(reached), *attentions[-1:]]):
            return []  # the cells were lost from sight before the last attention, or the last feature map
        return ordered

    def _lost(self, reached: int) -> int:
        """The last feature map in which the cells are not known."""
        lost = (
            candidate.own
            for candidate in self._recent
            if candidate.output.value.ndim == 4
            and min(candidate.output.value.shape[2:]) > 1
            and candidate.own & reached
            and geometry_of(candidate.place) is None
        )
        return max(lost, default=0)


def _copy_shared(candidates: Iterable[_Candidate], target: Tensor) -> None:
    """Give those that share the memory of a tensor one of their own."""
    memory = target.untyped_storage().data_ptr()
    for candidate in candidates:
        value = candidate.output.value
        if value.untyped_storage().data_ptr() == memory:
            candidate.output = Activation(value.clone(), candidate.output.edge)


def _cells(layer: Layer) -> int:
    assert layer.geometry is not None
    return layer.geometry.layout.size
