"""Pictures from data sets of torchvision."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._network import one_line
from ...trace.errors import InputError, LoadError, PlanError
from .examples import Source
from .pictures import PictureSource, Row, chosen

__all__ = ["torchvision_set"]


def torchvision_set(
    relative_to: Path,
    *,
    dataset: str,
    root: str | Path | None = None,
    arguments: Mapping[str, Any] | None = None,
    download: bool = False,
    labels: bool = True,
    n: int | None = None,
    start: int = 0,
) -> Source:
    """A data set of `torchvision.datasets` that gives PIL images and labels.

    Args:
        relative_to: folder that relative paths start from.
        dataset: name of its class, such as "CIFAR10".
        root: its folder.
        arguments: other keywords of the class, such as `{train = false}`.
        download: whether it may be downloaded into `root`.
        labels: whether its targets are indices of classes; `false` leaves them out.
        n: how many pictures.
        start: the first of them.

    Raises:
        PlanError: options that do not fit.
        LoadError: there is no such data set, it is not in `root`, or torchvision is missing.
    """
    made = _torchvision(relative_to, dataset, root, dict(arguments or {}), download)
    wanted = chosen(len(made), n, start)

    def read(i: int) -> Row:
        from PIL import Image

        found = made[wanted[i]]
        pair = isinstance(found, (tuple, list)) and len(found) == 2
        picture, target = found if pair else (found, None)
        if not isinstance(picture, Image.Image):
            raise InputError(f"torchvision's {dataset} gives a {type(picture).__name__}; expected a PIL image.")
        if not labels:
            return Row(picture)
        try:
            index = int(target)  # type: ignore[arg-type]
            if index < 0:
                raise ValueError
        except (TypeError, ValueError):
            raise InputError(
                f"its target is {str(target)[:60]!r}; expected the index of a class. Otherwise set labels = false."
            ) from None
        return Row(picture, index)

    return PictureSource(f"torchvision's {dataset}", tuple(map(str, wanted)), read, labels)


def _torchvision(base: Path, name: str, root: str | Path | None, arguments: dict[str, Any], download: bool) -> Any:
    try:
        from torchvision import datasets
    except ImportError as error:
        raise LoadError("source torchvision needs torchvision; pip install torchvision.") from error
    kinds = {k: v for k, v in vars(datasets).items() if inspect.isclass(v) and issubclass(v, datasets.VisionDataset)}
    del kinds["VisionDataset"]
    if name not in kinds:
        close = difflib.get_close_matches(name.lower(), [k.lower() for k in kinds], n=5, cutoff=0.4)
        near = ", ".join(k for k in kinds if k.lower() in close) or ", ".join(sorted(kinds))
        raise PlanError(f"torchvision has no data set dataset={name!r}; there are {near}.")
    if own := {"root", "download"} & set(arguments):
        raise PlanError(f"found {' and '.join(sorted(own))} in arguments; they are options of their own.")
    taken = inspect.signature(kinds[name]).parameters
    further = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())
    if root is not None:
        arguments = {"root": str(base.expanduser() / Path(root).expanduser()), **arguments}
    if download:
        arguments = {"download": True, **arguments}
    unknown = [] if further else [key for key in arguments if key not in taken]
    needs = [key for key, p in taken.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    required = [key for key in needs if key not in arguments]
    if unknown or required:
        raise PlanError(
            f"torchvision's {name} takes no {', '.join(unknown)}; it takes {', '.join(taken)}."
            if unknown
            else f"torchvision's {name} needs {', '.join(required)}; expected root, and the others in arguments."
        )
    try:
        return kinds[name](**arguments)
    except Exception as error:
        advice = " Set download = true to get it." if not download and (further or "download" in taken) else ""
        raise LoadError(f"torchvision's {name} could not be opened: {one_line(error)}{advice}") from error
