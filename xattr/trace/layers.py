"""One layer of a pass: a given one is cut out of the graph, or one that a class activation map can read is found."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .._nested import replace_tensors, tensors_in
from . import places
from .marks import Marks
from .places import Geometry
from .record import Activation


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


class LayerWatch:
    """Sees the modules, attentions and residual sums of a pass, and picks layers; this one picks none."""

    needs_graph = True
    """Whether gradients lead to the inputs."""

    def entering(self, marks: Marks, module: nn.Module, path: str, args: Any) -> Any:
        """A module is called; returns other arguments, or `None`."""

    def leaving(self, marks: Marks, module: nn.Module, path: str, output: Any) -> Any:
        """A module has run; returns another output, or `None`."""

    def attention(self, of_map: int, of_values: int) -> None:
        """An attention has run, with these ancestors of its map and of its values."""

    def block(self, x: Tensor) -> None:
        """A residual sum of the last attention has been made, with the skip `x`."""

    def before_write(self, target: Tensor) -> None:
        """A tensor is about to be overwritten."""

    def result(self, marks: Marks, scores: Tensor) -> list[Layer]:
        """The layers, best first."""
        return []


class LayerCut(LayerWatch):
    """Cuts a module out of the graph: behind it the graph begins anew, nothing before it is kept.

    Args:
        module: the layer; where it runs more than once, the last call counts.
        at_input: cut in front of it.
    """

    needs_graph = False

    def __init__(self, module: nn.Module, at_input: bool = False) -> None:
        self._module = module
        self._at_input = at_input
        self._found: list[Layer] = []

    def entering(self, marks: Marks, module: nn.Module, path: str, args: Any) -> Any:
        """The arguments to go on with."""
        return self._cut(marks, path, args) if self._at_input and module is self._module else None

    def leaving(self, marks: Marks, module: nn.Module, path: str, output: Any) -> Any:
        """The output to go on with."""
        return None if self._at_input or module is not self._module else self._cut(marks, path, output)

    def _cut(self, marks: Marks, path: str, value: Any) -> Any:
        varying = [t for t in tensors_in(value) if marks.varies(t) and t.is_floating_point()]
        if not varying:
            return None
        known = {id(t): places.geometry(marks.place(t)) for t in varying}
        chosen = next((t for t in varying if known[id(t)] is not None), varying[0])
        leaf = chosen.detach().requires_grad_()
        self._found = [Layer(path, Activation.of(leaf), known[id(chosen)])]
        stand_in = leaf.clone()  # the model may overwrite it
        marks.put_new(stand_in, marks.of(chosen), marks.place(chosen))
        return replace_tensors(value, lambda t: stand_in if t is chosen else t)

    def result(self, marks: Marks, scores: Tensor) -> list[Layer]:
        """The layer, if it ran."""
        return self._found


@dataclass
class _Candidate:
    path: str
    output: Activation
    place: Tensor | None
    own: int


class LayerFinder(LayerWatch):
    """Finds a layer for class activation maps: what the last attention reads, else the last feature map.

    Behind the last attention of a class-token model no gradient reaches a patch, so the tokens in front of it are
    taken: the output of the block's first norm, as a rule. A network that goes on with feature maps on another grid,
    and one without attention, is read at the last of them.
    """

    _KEPT = 24  # more module calls than lie between a block's first norm and its attention

    def __init__(self) -> None:
        self._recent: deque[_Candidate] = deque(maxlen=self._KEPT)
        self._read: list[_Candidate] = []
        self._chosen: _Candidate | None = None
        self._newest = 0  # ancestors of the last attention's map and values

    def leaving(self, marks: Marks, module: nn.Module, path: str, output: Any) -> Any:
        """The output is remembered."""
        for tensor in tensors_in(output):
            own = marks.own(tensor)
            if own and tensor.ndim > 2 and tensor.is_floating_point():
                if self._recent and self._recent[-1].own == own:
                    self._recent[-1].path = path  # a container that returns what its last part made
                else:
                    self._recent.append(_Candidate(path, Activation.of(tensor), marks.place(tensor), own))
                break
        return None

    def attention(self, of_map: int, of_values: int) -> None:
        """What map and values both come from is read by the attention."""
        self._read = [candidate for candidate in self._recent if candidate.own & of_map & of_values]
        self._newest = of_map | of_values

    def block(self, x: Tensor) -> None:
        """Of what the attention reads, the last that is as wide as the skip is chosen."""
        self._chosen = None
        for candidate in self._read:
            shape = candidate.output.value.shape
            # Queries, keys and values in one are wider; the skip of a class attention has fewer tokens.
            if shape == x.shape or (len(shape) == x.ndim == 3 and shape[-1] == x.shape[-1]):
                self._chosen = candidate

    def before_write(self, target: Tensor) -> None:
        """What was remembered is copied before it is overwritten."""
        memory = target.untyped_storage().data_ptr()
        for candidate in (*self._recent, *self._read, *filter(None, [self._chosen])):
            value = candidate.output.value
            if value.untyped_storage().data_ptr() == memory:
                candidate.output = Activation(value.clone(), candidate.output.edge)

    def result(self, marks: Marks, scores: Tensor) -> list[Layer]:
        """Layers in which the image's cells can be told, best first."""
        reached, own = marks.ancestors(scores), marks.own(scores)
        found: dict[int, Layer] = {}
        for candidate in (*filter(None, [self._chosen]), *self._recent):
            geometry = places.geometry(candidate.place)
            if geometry is not None and candidate.own & reached and candidate.own != own:
                found[candidate.own] = Layer(candidate.path, candidate.output, geometry)
        if not found:
            return []
        ordered = [layer for _, layer in sorted(found.items(), reverse=True)]
        chosen = None if self._chosen is None else found.get(self._chosen.own)
        if chosen is not None and _grid(chosen) == _grid(ordered[0]):
            ordered = [chosen, *(layer for layer in ordered if layer is not chosen)]
        elif max(found) < self._newest:
            return []  # the cells were lost from sight before the last attention
        return ordered


def _grid(layer: Layer) -> tuple[int, int]:
    assert layer.geometry is not None
    return layer.geometry.layout.grid
