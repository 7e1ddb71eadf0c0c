"""Pictures in a folder of the user's, with labels, boxes or masks in files beside them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...trace.errors import InputError, PlanError
from .annotations import matched, numbering, read_boxes, read_labels, voc_boxes
from .examples import Source
from .masks import Box
from .options import whether
from .pictures import PictureSource, Row, chosen

__all__ = ["ENDINGS", "folder", "natural"]

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif", ".avif")
"""Files that are taken for pictures."""

_LOSSLESS = (".png", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")


def folder(
    relative_to: Path,
    *,
    path: str | Path,
    labels: str | Path | None = None,
    classes: Sequence[str] | Mapping[str, int] | None = None,
    boxes: str | Path | None = None,
    masks: str | Path | None = None,
    n: int | None = None,
    start: int = 0,
    shuffle: int | None = None,
) -> Source:
    """All pictures below a folder, in natural order of their paths (2.jpg before 10.jpg).

    Names of pictures in tables are paths in the folder, or the bare name if no other picture has it; the ending may be
    left out. Tables are CSV with a head, or JSON: a list of objects with the same keys, or an object from names to
    entries. Every picture that is taken needs its entry; with nothing beside its name in a table of boxes, its mask is
    empty. A box of no picture at all is an error; labels and masks may be more than pictures.

    Args:
        relative_to: folder that relative paths start from.
        path: the folder.
        labels: "folders" (the sub-folder at the top is the class; sorted names give the index, as in torchvision's
            `ImageFolder`), a table `name,label` with indices or names, or "none".
        classes: names of classes in the order of the model's outputs, or name -> index; without it, names are sorted.
        boxes: a folder of Pascal VOC XML, or a table `name,x1,y1,x2,y2` in pixels of the upright picture, ends
            exclusive.
        masks: a folder of pictures of the same path or name in a lossless format; what is not zero is inside.
        n: how many pictures.
        start: the first of them.
        shuffle: seed of a random order, before `start` and `n`.

    Raises:
        PlanError: options that do not fit.
        InputError: no folder, no pictures, or tables that do not fit them.
    """
    base = Path(relative_to).expanduser()
    root = _folder(base, path, "path")
    if whether(boxes) and whether(masks):
        raise PlanError("found boxes and masks; expected one of them.")
    if classes is not None and not whether(labels):
        raise PlanError("found classes without labels; expected labels = 'folders' or a table.")
    beside = [base / Path(part).expanduser() for part in (boxes, masks) if part is not None and whether(part)]
    painted = beside[0] if whether(masks) else None
    if painted is not None and os.path.realpath(painted) == os.path.realpath(root):
        raise PlanError(f"found masks={str(masks)!r}, the folder of the pictures; expected one of their own.")
    paths = {file.relative_to(root).as_posix(): file for file in _files(root, ENDINGS, painted)}
    if not paths:
        raise InputError(f"the folder {str(root)!r} holds no pictures; expected files ending in {', '.join(ENDINGS)}.")
    everything = sorted(paths, key=natural)
    names = [everything[i] for i in chosen(len(everything), n, start, shuffle)]
    indices = None
    if labels == "folders":
        indices = _by_folder(root, names, everything, classes, beside)
    elif labels is not None and whether(labels):
        indices = _by_table(base, labels, names, everything, classes)
    inside = _inside(base, boxes, masks, names, everything)

    def read(i: int) -> Row:
        name = names[i]
        return Row(paths[name].read_bytes(), indices[i] if indices else None, inside[i]() if inside else None)

    # A name that is no Unicode could be written into no table.
    readable = tuple(os.fsencode(name).decode("utf-8", "replace") for name in names)
    return PictureSource(f"folder {str(path)!r}", readable, read, indices is not None, inside is not None)


def natural(path: str) -> list[Any]:
    """A key that sorts numbers in names by size, folder by folder.

    Example:
        >>> from xattr.benchmark.sources.folders import natural
        >>> sorted(["b/1", "a10", "C", "a2"], key=natural)
        ['a2', 'a10', 'b/1', 'C']
    """
    key = lambda text: [int(part) if k % 2 else part.casefold() for k, part in enumerate(re.split(r"([0-9]+)", text))]
    return [*(key(part) for part in path.split("/")), [path]]


def _folder(base: Path, path: str | Path, option: str) -> Path:
    found = base / Path(path).expanduser()
    if not found.is_dir():
        raise InputError(f"{option}={str(path)!r}: there is no folder {str(found)!r}; expected an existing one.")
    return found


def _files(root: Path, endings: Sequence[str], without: Path | None = None) -> list[Path]:
    """Files with such an ending below a folder; hidden ones and one folder are left out."""
    skipped = None if without is None else os.path.realpath(without)
    found = []
    for here, folders, files in os.walk(root, followlinks=True):
        folders[:] = [f for f in folders if _visible(f) and os.path.realpath(Path(here, f)) != skipped]
        found += [Path(here, f) for f in files if _visible(f) and f.lower().endswith(tuple(endings))]
    return found


def _visible(name: str) -> bool:
    return not name.startswith(".") and name != "__MACOSX"


def _by_folder(
    root: Path, names: Sequence[str], among: Sequence[str], classes: Any, beside: Sequence[Path]
) -> list[int]:
    if flat := [name for name in names if "/" not in name]:
        raise InputError(f"labels='folders': {flat[0]!r} lies in no sub-folder; expected one for each class.")
    # An empty folder is a class as well, or the index of the others would depend on it.
    skipped = {os.path.realpath(part) for part in beside}
    tops = {p.name for p in root.iterdir() if p.is_dir() and _visible(p.name) and os.path.realpath(p) not in skipped}
    tops |= {name.partition("/")[0] for name in among if "/" in name}
    number = numbering(tops, classes, f"folder {root.name!r}", names=True)
    return [number(name.partition("/")[0]) for name in names]


def _by_table(base: Path, labels: str | Path, names: Sequence[str], among: Sequence[str], classes: Any) -> list[int]:
    file = base / Path(labels).expanduser()
    if not file.is_file():
        raise InputError(f"labels={str(labels)!r} is no file; expected 'folders', a CSV or JSON file, or 'none'.")
    table = read_labels(file)
    number = numbering(table.values(), classes, file.name)
    return [number(label) for label in matched(names, among, table, f"label in {file.name}")]


def _inside(
    base: Path, boxes: str | Path | None, masks: str | Path | None, names: Sequence[str], among: Sequence[str]
) -> list[Callable[[], Any]] | None:
    """What reads the boxes or the mask of each picture."""
    if masks is not None and whether(masks):
        root = _folder(base, masks, "masks")
        what = f"mask in {root.name!r} ({', '.join(_LOSSLESS)})"
        return [file.read_bytes for file in matched(names, among, _stems(root, _LOSSLESS), what)]
    if boxes is None or not whether(boxes):
        return None
    file = base / Path(boxes).expanduser()
    if file.is_dir():
        found = matched(names, among, _stems(file, (".xml",)), f"XML in {file.name!r}", all_used=True)
        return [partial(_voc, xml) for xml in found]
    if not file.is_file():
        raise InputError(f"boxes={str(boxes)!r} is nothing; expected a folder of Pascal VOC XML, a CSV or a JSON file.")
    lists = matched(names, among, read_boxes(file), f"box in {file.name}", all_used=True)
    return [partial(tuple, some) for some in lists]


def _voc(file: Path) -> tuple[Box, ...]:
    return voc_boxes(file.read_bytes())


def _stems(root: Path, endings: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in sorted(_files(root, endings)):
        stem = file.relative_to(root).with_suffix("").as_posix()
        if stem in found:
            raise InputError(
                f"{found[stem].name} and {file.name} in {root.name!r} differ in their ending; expected one."
            )
        found[stem] = file
    return found
