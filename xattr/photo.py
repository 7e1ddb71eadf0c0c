"""One photograph, one model, several methods: the best classes, and a picture of the maps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm import tqdm

from ._methods import Method, find_methods
from ._network import one_line
from ._pictures import save_picture
from .loading import Loaded, find_class, load
from .trace import Inputs, observe
from .trace.errors import InputError, LoadError, MethodError, OutputError, TargetError, XattrError
from .trace.outputs import resolve

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

__all__ = ["Explained", "explain"]


@dataclass(frozen=True)
class Explained:
    """What the methods say about one photograph.

    Attributes:
        figure: the photograph as the model saw it, and the maps.
        top: index, name and probability of the (at most) five best classes.
        target: index of the class that is explained.
        maps: for each method its map `[1, 1, H, W]`, not normalised.
        failed: for each method that cannot explain this model, the reason in one line.
        photo: name of the photograph, without ending.
        model: name of the model.
        explained: name and probability of the class that is explained.
    """

    figure: Figure
    top: list[tuple[int, str, float]]
    target: int
    maps: dict[str, Tensor]
    failed: dict[str, str]
    photo: str
    model: str
    explained: tuple[str, float]

    @property
    def table(self) -> str:
        """The best classes, the class that is explained and the methods that failed, as aligned text."""
        head = f"{self.model} on {self.photo}"
        lines = [head, "-" * len(head), "probability  index  class"]
        lines += [f"{probability:11.1%}  {index:5d}  {name}" for index, name, probability in self.top]
        name, probability = self.explained
        lines += [f"\nexplained: {name} ({self.target}), {probability:.1%}"]
        lines += [f"{method} failed: {reason}" for method, reason in self.failed.items()]
        return "\n".join(lines)

    def save(self, folder: str | Path = ".") -> Path:
        """Write the picture as `<name of the photograph>-xattr.png` into an existing folder.

        Raises:
            FileNotFoundError: there is no such folder.
        """
        return save_picture(self.figure, folder, f"{self.photo}-xattr")


def explain(
    photo: str | Path | Image,
    model: str | Loaded,
    methods: str | Iterable[str] | None = None,
    target: int | str | None = None,
    show_progress: bool = False,
) -> Explained:
    """Explain what a model sees in a photograph.

    Args:
        photo: a file, or a PIL image.
        model: a name or file as `load` takes it, or what it returned.
        methods: names of methods in `xattr.attr`: capitals, `-` and `_` do not count, `ig` and `rollout` are short
            forms, and a rule may follow a colon, as in `lrp:attnlrp`. `None` takes GradSkip, LRP:gamma and GradCam.
        target: an index, or the name of a class (a synonym, or a part that no other class has); `None` explains the
            best one.
        show_progress: whether to draw a progress bar.

    Raises:
        XattrError: the photograph, model, target or a method's name is not what it should be, or no method can explain
            the model. What only some methods refuse is in `failed`.

    Example:
        >>> import timm
        >>> from PIL import Image
        >>> from xattr.loading import Loaded
        >>> from xattr.photo import explain
        >>> from xattr.trace import preprocessing
        >>> model = timm.create_model("test_vit").eval()
        >>> loaded = Loaded(model, preprocessing(model), name="test_vit")
        >>> result = explain(Image.effect_noise((200, 120), 60), loaded, methods=["rollout"], target=7)
        >>> result.target, result.maps["AttentionRollout"].shape
        (7, torch.Size([1, 1, 160, 160]))
    """
    from .visualization import comparison

    chosen = find_methods(methods)
    image, stem = _open(photo)
    loaded = model if isinstance(model, Loaded) else load(model)
    x = loaded.preprocessing(image)
    Inputs.of(x)  # before the cast below hides bytes
    # The model may live on another device or in half precision.
    like = next((p for p in loaded.model.parameters() if p.is_floating_point()), x)
    x = x.to(like.device, like.dtype)
    scores = _scores(loaded, x)
    index = _target(target, loaded, scores)
    probabilities = (scores.softmax(1) if scores.shape[1] > 1 else scores.sigmoid())[0].tolist()
    best = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])[:5]
    maps, failed = _maps(chosen, loaded, x, index, show_progress)
    if not maps:
        reasons = " ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise MethodError(f"no method can explain {loaded.name}. {reasons}")
    explained = loaded.class_name(index), probabilities[index]
    figure = comparison(
        loaded.preprocessing.inverse(x).cpu(),
        {name: heat.numpy() for name, heat in maps.items()},
        title=f"{loaded.name}: {explained[0]}, {explained[1]:.1%}",
        # Of methods that explain every pixel, single ones stand out so far that nothing else would be seen.
        percentile=99,
    )
    top = [(i, loaded.class_name(i), probabilities[i]) for i in best]
    return Explained(figure, top, index, maps, failed, stem, loaded.name, explained)


def _open(photo: str | Path | Any) -> tuple[Any, str]:
    """The picture with its pixels read, and a name for it."""
    from PIL import Image

    if isinstance(photo, Image.Image):
        return photo, Path(getattr(photo, "filename", "") or "photo").stem
    if not isinstance(photo, (str, Path)):
        raise InputError(f"found a {type(photo).__name__}; expected the path of a photograph, or a PIL image.")
    path = Path(photo).expanduser()
    if not path.is_file():
        raise InputError(f"there is no photograph {str(photo)!r}.")
    try:
        with Image.open(path) as image:
            image.load()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{str(photo)!r} is no picture that Pillow can read: {one_line(error)}") from error
    return image, path.stem


def _scores(loaded: Loaded, x: Tensor) -> Tensor:
    """One row of scores, `[1, classes]`, as the methods get it."""
    scores = observe(loaded.model, Inputs.of(x), record=False).scores.detach().float()
    scores = scores[:, None] if scores.ndim == 1 else scores
    if not bool(torch.isfinite(scores).all()):
        raise OutputError(f"{loaded.name} returned scores that are NaN or infinite; there is nothing to explain.")
    if scores.ndim != 2:
        raise OutputError(
            f"{loaded.name} returned scores of shape {list(scores.shape)}; expected one for each class, [1, classes]."
        )
    if loaded.class_names is not None and len(loaded.class_names) != scores.shape[1]:
        raise LoadError(
            f"{loaded.name} has {scores.shape[1]} outputs but {len(loaded.class_names)} class names; expected one for "
            f"each."
        )
    return scores


def _target(target: int | str | None, loaded: Loaded, scores: Tensor) -> int:
    if isinstance(target, str):
        try:
            target = int(target)
        except ValueError:
            if loaded.class_names is None:
                raise TargetError(
                    f"target={target!r} is a name, but the classes of {loaded.name} have none; expected an index, "
                    f"0..{scores.shape[1] - 1}."
                ) from None
            target = find_class(str(target), loaded.class_names)
    found = resolve(target, scores)
    index = int(found.item()) if isinstance(found, Tensor) else int(found or 0)  # type: ignore[arg-type]
    return index % scores.shape[1]


def _maps(
    methods: list[Method], loaded: Loaded, x: Tensor, index: int, show_progress: bool
) -> tuple[dict[str, Tensor], dict[str, str]]:
    maps: dict[str, Tensor] = {}
    failed: dict[str, str] = {}
    for method in tqdm(methods, disable=not show_progress, leave=False):
        try:
            maps[method.name] = method.explain(loaded.model, x, index)
        except XattrError as error:
            failed[method.name] = " ".join(str(error).split())
        except ValueError as error:
            if method.rule is None:
                raise
            failed[method.name] = " ".join(str(error).split())  # no such rule
    return maps, failed
