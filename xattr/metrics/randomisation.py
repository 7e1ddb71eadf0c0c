"""Parameter randomisation (Adebayo et al., arXiv:1810.03292): does a map change with the weights of the model?

A parameter is randomised by moving each of its values to another place of the tensor. Mean, spread and range stay, so
activations keep their scale through a deep network, and nothing need be known of how a library initialises a layer. A
single value, or values that are all the same (gains of a fresh LayerNorm), stay. The places depend on the seed and the
name of the parameter alone: they are the same in both modes and for any order of layers. A weight that layers share
changes in all of them; of a parametrised weight (weight norm, pruning) what it is computed from is randomised; buffers,
such as the statistics of BatchNorm, are no parameters and stay.
"""

from __future__ import annotations

import copy
import difflib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from tqdm import tqdm

from ..trace import Inputs, Target
from ..trace.execution import PLAIN_EXECUTION
from ..trace.modules import ModuleWatch, unwrapped
from ..trace.outputs import logits, resolve
from .complexity import entropy
from .ranking import rank_correlation

Explain = Callable[[nn.Module, Any, Any], Tensor]
WINDOW = 11  # pixels; what a Gaussian of sigma 1.5 covers in scikit-image


@dataclass(frozen=True)
class Randomisation:
    """How much the maps of randomised models resemble those of the model; lower is better.

    Attributes:
        layers: what was randomised, in that order: modules, or parameters that the model itself owns; L of them.
        spearman: correlation of ranks of each map with that of the model, `[L, B]` in float64.
        ssim: structural similarity of the two, each divided by its largest absolute value, `[L, B]` in float64.
        mode: "cascade" or "independent".
        seed: of the new places of values.
        higher_is_better: `False`.
    """

    layers: tuple[str, ...]
    spearman: Tensor
    ssim: Tensor
    mode: str
    seed: int
    higher_is_better: bool = False

    @property
    def undefined(self) -> Tensor:
        """How many images have no value for a layer, `[L]`: a map is constant, or holds NaN or infinity."""
        return self.spearman.isnan().sum(1)


def randomisation(
    explain: Explain,
    model: nn.Module,
    inputs: Any,
    target: Target = None,
    *,
    mode: Literal["cascade", "independent"] = "cascade",
    layers: Sequence[str] | None = None,
    seed: int = 0,
    additional_forward_args: Any = None,
    show_progress: bool = False,
) -> Randomisation:
    """Compare maps of a model with those of the same model with randomised weights, layer by layer; lower is better.

    A method whose maps stay as they are does not explain what the model learnt. The weights of the user's model are
    never written: `explain` gets a copy in evaluation mode.

    Args:
        explain: a function of a model, images and the class that returns maps `[B, C, h, w]`, of `11 x 11` or more;
            channels are summed, signs count. What it draws at random is the same each time.
        model: the trained model.
        inputs: images `[B, C, H, W]`.
        target: class index, or one for each image; `None` is the class that the trained model predicts.
        mode: "cascade" randomises from the head down and keeps what is randomised, "independent" one layer at a time.
        layers: modules (with all that is in them) or parameters, in the order in which they are randomised; `None` for
            every module that owns parameters, from the last that runs to the first.
        seed: of the new places of values.
        additional_forward_args: what else the model takes, to find the class; `explain` has to know it too.
        show_progress: whether to draw a progress bar.

    Raises:
        ValueError: no such layer or mode, a model without parameters, or maps that do not fit.
        ModuleNotFoundError: scikit-image is missing; the message names the extra that holds it.

    Cost: an explanation for each layer and one more, and one forward.

    Example:
        >>> from xattr.attr import GradSkip
        >>> from xattr.datasets import digit_scenes, embedded_model
        >>> from xattr.metrics.randomisation import randomisation
        >>> explain = lambda model, images, target: GradSkip(model).attribute(images, target=target)
        >>> model, x = embedded_model("class-token"), digit_scenes("report", n=2).images
        >>> found = randomisation(explain, model, x, layers=["head", "blocks.7"])
        >>> found.layers, found.spearman.shape, bool((found.spearman < 0.9).all())
        (('head', 'blocks.7'), torch.Size([2, 2]), True)
    """
    if mode not in ("cascade", "independent"):
        raise ValueError(f'mode={mode!r}; expected "cascade" or "independent".')
    similarity = _structural_similarity()
    trial = _Trial.of(explain, model, inputs, target, seed, additional_forward_args)
    groups = _given(trial.names, layers) if layers is not None else _all(trial.names, trial.order)
    wanted, found = trial.maps(), []
    if min(wanted.shape[2:]) < WINDOW:
        raise ValueError(
            f"found maps {list(wanted.shape)}; structural similarity compares windows of {WINDOW} x {WINDOW} pixels: "
            f"let explain return maps of the size of the picture."
        )
    for names in tqdm(groups.values(), disable=not show_progress):
        trial.write(names, randomised=True)
        maps = trial.maps()
        if maps.shape != wanted.shape:
            raise ValueError(f"found maps {list(maps.shape)} after maps {list(wanted.shape)}; expected one shape.")
        found.append(_compared(wanted, maps, similarity))
        if mode == "independent":
            trial.write(names, randomised=False)
    spearman, ssim = (torch.stack(part) for part in zip(*found, strict=True))
    return Randomisation(tuple(groups), spearman, ssim, mode, seed)


def complexity_rise(explain: Explain, model: nn.Module, inputs: Any, target: Target = None, *, seed: int = 0,
                    additional_forward_args: Any = None) -> Tensor:  # fmt: skip
    """Relative rise of the entropy of maps when all weights of the model are randomised; higher is better.

        value = (entropy of the randomised model's map - entropy of the map) / entropy of the map

    The efficient form of the test (eMPRT, Hedstroem et al., arXiv:2401.06465), with `entropy` as the complexity: what a
    model shows that has learnt nothing should be noise. Arguments as of `randomisation`.

    Returns:
        `[B]`; NaN where a map is 0 everywhere, or the map is a single pixel.

    Cost: 2 explanations, and one forward.
    """
    trial = _Trial.of(explain, model, inputs, target, seed, additional_forward_args)
    before = entropy(trial.maps())
    trial.write(trial.names, randomised=True)
    return entropy(trial.maps()) / torch.where(before > 0, before, torch.nan) - 1


@dataclass(frozen=True)
class _Trial:
    """A copy of a model whose weights may be written.

    Attributes:
        names: of all parameters, with the name under which a shared one is known.
        order: the modules that ran, in that order.
    """

    explain: Explain
    model: nn.Module
    twin: nn.Module
    inputs: Any
    target: Target
    seed: int
    names: dict[str, str]
    order: list[str]

    @classmethod
    def of(cls, explain: Explain, model: nn.Module, inputs: Any, target: Target, seed: int, extra: Any) -> _Trial:
        model = unwrapped(model)
        if not callable(explain):
            raise ValueError(
                f"explain is a {type(explain).__name__}; expected a function of a model, images and the class, such as "
                f"lambda model, images, target: GradSkip(model).attribute(images, target=target)."
            )
        if not isinstance(model, nn.Module) or not any(True for _ in model.parameters()):
            raise ValueError(f"found a {type(model).__name__}; expected a module that has parameters.")
        # Pruning and the older weight norm leave results of computation behind, which torch does not copy; they are
        # computed anew by the next forward.
        results = [v for m in model.modules() for v in vars(m).values() if isinstance(v, Tensor) and not v.is_leaf]
        twin = copy.deepcopy(model, {id(v): v.detach().clone() for v in results}).eval()
        known = {id(p): name for name, p in model.named_parameters()}
        names = {name: known[id(p)] for name, p in model.named_parameters(remove_duplicate=False)}
        ran: list[str] = []
        checked = Inputs.of(inputs)
        args, kwargs = checked.arguments(checked.tensors, extra)
        with torch.no_grad(), PLAIN_EXECUTION, ModuleWatch(entering=lambda module, path, given: ran.append(path)):
            scores = logits(twin(*args, **kwargs), len(checked.tensors[0]))
        return cls(explain, model, twin, inputs, resolve(target, scores), seed, names, list(dict.fromkeys(ran)))

    def maps(self) -> Tensor:
        """Of the copy as it is, `[B, C, h, w]`."""
        image = Inputs.of(self.inputs).image
        with torch.enable_grad(), torch.random.fork_rng(devices=[image.device] if image.is_cuda else []):
            torch.manual_seed(self.seed)
            maps = self.explain(self.twin, self.inputs, self.target)
        if not isinstance(maps, Tensor) or maps.ndim != 4 or len(maps) != len(image):
            shape = list(maps.shape) if isinstance(maps, Tensor) else type(maps).__name__
            raise ValueError(f"explain returned {shape} for {len(image)} images; expected maps [B, C, h, w].")
        return maps.detach()

    def write(self, names: Iterable[str], randomised: bool) -> None:
        """Give some parameters new values, or their own."""
        for name in names:
            value = self.model.get_parameter(name).detach()
            if randomised:
                value = _elsewhere(value, f"{self.seed} {self.names[name]}")
            with torch.no_grad():
                self.twin.get_parameter(name).copy_(value)


def _elsewhere(value: Tensor, key: str) -> Tensor:
    """Each value in another place of the tensor."""
    order = torch.randperm(value.numel(), generator=torch.Generator().manual_seed(zlib.crc32(key.encode())))
    moved = torch.empty_like(value).flatten()
    moved[order] = value.flatten()[order.roll(1)]  # none keeps its place, also where there are few
    return moved.view(value.shape)


def _all(names: Mapping[str, str], order: list[str]) -> dict[str, list[str]]:
    """Names of parameters by the module that owns them, from the last that runs to the first."""
    groups: dict[str, list[str]] = {}
    for name in names:
        owner = name.partition("parametrizations.")[0][:-1] if "parametrizations." in name else name.rpartition(".")[0]
        groups.setdefault(owner or name, []).append(name)

    def when(layer: str) -> int:
        # What is not called itself (the projection inside torch's attention) runs with what it is part of.
        while layer not in order:
            layer = layer.rpartition(".")[0]
        return order.index(layer)

    return {layer: groups[layer] for layer in sorted(groups, key=when)[::-1]}


def _given(names: Mapping[str, str], layers: Sequence[str]) -> dict[str, list[str]]:
    """Names of parameters by the layers that were asked for."""
    groups = {layer: [name for name in names if name == layer or name.startswith(f"{layer}.")] for layer in layers}
    missing = [layer for layer, own in groups.items() if not own]
    if missing or not groups:
        parts = {name.rsplit(".", i)[0] for name in names for i in range(name.count(".") + 1)}
        close = difflib.get_close_matches(" ".join(missing[:1]), sorted(parts), 4, 0.5) or sorted(parts)[:4]
        raise ValueError(f"found layers {list(layers)}; expected modules with parameters, such as {', '.join(close)}.")
    return groups


def _compared(wanted: Tensor, maps: Tensor, similarity: Callable[..., Any]) -> tuple[Tensor, Tensor]:
    """Spearman's correlation and the structural similarity of each pair, `[B]` in float64; NaN where undefined."""
    one, other = (m.double().cpu().sum(1) for m in (wanted, maps))
    spearman = torch.full((len(one),), torch.nan, dtype=torch.float64)
    ssim = spearman.clone()
    for i, pair in enumerate(zip(one, other, strict=True)):
        if all(bool(m.isfinite().all()) and bool(m.min() < m.max()) for m in pair):
            spearman[i] = rank_correlation(*(m.view(1, -1) for m in pair))[0]
            ssim[i] = float(similarity(*((m / m.abs().max()).numpy() for m in pair)))
    return spearman, ssim


def _structural_similarity() -> Callable[..., Any]:
    try:
        from skimage.metrics import structural_similarity
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "randomisation needs scikit-image: pip install 'captum-xattr[metrics]'. complexity_rise does not.",
            name=error.name,
        ) from error
    return partial(structural_similarity, data_range=2, gaussian_weights=True, sigma=1.5, use_sample_covariance=False)
