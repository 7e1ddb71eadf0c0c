"""Pictures from data sets of Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..._network import hub, one_line, reachable
from ...trace.errors import InputError, LoadError, PlanError
from .annotations import numbering
from .examples import Source
from .masks import Box
from .options import whether
from .pictures import PictureSource, Row, chosen

__all__ = ["hugging_face_set"]


def hugging_face_set(
    relative_to: Path,
    *,
    path: str | Path,
    config: str | None = None,
    split: str | None = None,
    image: str = "image",
    label: str | None = "label",
    classes: Sequence[str] | Mapping[str, int] | None = None,
    mask: str | None = None,
    boxes: str | None = None,
    box_format: Literal["xywh", "xyxy"] = "xywh",
    n: int | None = None,
    start: int = 0,
) -> Source:
    """A data set of the Hugging Face hub (from the cache where it is in it), or in a folder.

    Args:
        relative_to: folder that relative paths start from.
        path: name on the hub, or a folder: one that `save_to_disk` wrote, or with pictures or tables as on the hub.
        config: the configuration, where there are several.
        split: such as "test" or "test[:100]".
        image: column of pictures.
        label: column of labels, indices or names; "none" if there is none.
        classes: names of classes in the order of the model's outputs, or name -> index; without it, indices are taken
            as they are, and names sorted.
        mask: column of masks; what is not zero is inside.
        boxes: column of objects as in COCO, with `bbox` for each, or of boxes.
        box_format: of a box: left, top, width, height; or left, top, right, bottom; in pixels of the upright picture.
        n: how many pictures.
        start: the first of them.

    Raises:
        PlanError: options that do not fit.
        InputError: there is no such column, or labels are outside.
        LoadError: the data set cannot be had, or `datasets` is missing.
    """
    if whether(mask) and whether(boxes):
        raise PlanError("found mask and boxes; expected one of them.")
    if classes is not None and not whether(label):
        raise PlanError("found classes without a label; expected the column of labels.")
    data = _load(Path(relative_to).expanduser(), str(path), config, split)
    for option, column in {"image": image, "label": label, "mask": mask, "boxes": boxes}.items():
        if column is not None and whether(column) and column not in data.column_names:
            hint = ", or 'none'" if option == "label" else ""
            raise InputError(
                f"there is no column {option}={column!r} in {path}; there are {', '.join(data.column_names)}{hint}."
            )
    wanted = chosen(len(data), n, start)
    indices = _indices(data, label, classes, wanted) if label is not None and whether(label) else None
    pictures = _undecoded(data.select_columns([c for c in (image, mask, boxes) if c is not None and whether(c)]))

    def read(i: int) -> Row:
        found = pictures[wanted[i]]
        inside: Any = None
        if mask is not None and whether(mask):
            inside = _stored(found[mask])
        elif boxes is not None and whether(boxes):
            inside = _coco(found[boxes], box_format)
        return Row(_stored(found[image]), indices[i] if indices else None, inside)

    names = tuple(f"{data.split}/{i}" if data.split else str(i) for i in wanted)
    return PictureSource(f"data set {str(path)!r}", names, read, indices is not None, whether(mask) or whether(boxes))


def _load(base: Path, path: str, config: str | None, split: str | None) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise LoadError("source huggingface needs datasets; pip install 'captum-xattr[benchmark]'.") from error
    local = base / Path(path).expanduser()
    offline = datasets.config.HF_HUB_OFFLINE
    try:
        if any((local / name).is_file() for name in ("state.json", "dataset_dict.json")):
            return _split_of(datasets.load_from_disk(str(local)), path, split)
        if not local.is_dir():
            # Without network it would ask for half a minute before it looks into the cache.
            datasets.config.HF_HUB_OFFLINE = offline or not reachable(hub())
        found = datasets.load_dataset(str(local) if local.is_dir() else path, config, split=split)
        return found if split is not None else _split_of(found, path, split)
    except InputError:
        raise
    except Exception as error:  # its builders raise nearly anything
        advice = f"There is no folder {str(local)!r}; on the hub, it is not in the cache or there is no such name."
        raise LoadError(
            f"the data set {path!r} could not be loaded: {one_line(error)}. {'' if local.is_dir() else advice}".rstrip()
        ) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = offline


def _split_of(found: Any, path: str, split: str | None) -> Any:
    if isinstance(found, Mapping):
        if split not in found:
            raise InputError(f"found split={split!r} of {path}; expected one of {', '.join(map(str, found))}.")
        return found[split]
    if split is not None and str(found.split) != split:
        raise InputError(f"found split={split!r}, but {path} holds one split, {found.split}; leave it out.")
    return found


def _undecoded(data: Any) -> Any:
    """Pictures as the bytes they are stored as: a broken one is then an error of its own row."""
    from datasets import Image

    for column, feature in data.features.items():
        if isinstance(feature, Image):
            data = data.cast_column(column, Image(decode=False))
    return data


def _stored(value: Any) -> bytes:
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str):
        return Path(value).read_bytes()
    if not isinstance(value, bytes):
        raise InputError(f"found a {type(value).__name__}; expected a picture, as datasets.Image stores it.")
    return value


def _indices(data: Any, label: str, classes: Any, wanted: Sequence[int]) -> list[int]:
    feature = data.features[label]
    names = getattr(feature, "names", None)
    values = data.select_columns([label]).select(wanted)[:][label]
    if names and classes is not None:
        values = [names[value] if isinstance(value, int) and 0 <= value < len(names) else value for value in values]
    known = data.unique(label) if getattr(feature, "dtype", "") == "string" else values
    number = numbering(known, classes, f"column {label!r}")
    return [number(value) for value in values]


def _coco(value: Any, box_format: str) -> tuple[Box, ...]:
    found = value
    if isinstance(value, Mapping):
        found = value.get("bbox")
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        found = [thing.get("bbox") for thing in value]
    try:
        boxes = [(float(a), float(b), float(c), float(d)) for a, b, c, d in found]
    except (TypeError, ValueError):
        shown = json.dumps(value, default=str)[:80]
        raise InputError(f"its objects are {shown}; expected four numbers in bbox for each.") from None
    return tuple((a, b, a + c, b + d) if box_format == "xywh" else (a, b, c, d) for a, b, c, d in boxes)
