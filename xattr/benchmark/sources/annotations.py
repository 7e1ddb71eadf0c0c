"""Labels and boxes that lie in files beside pictures: which picture they belong to, and what they say."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, TypeVar

from ..._network import one_line
from ...trace.errors import InputError, PlanError
from .masks import Box

__all__ = ["Classes", "entries", "matched", "numbering", "read_boxes", "read_labels", "voc_boxes"]

T = TypeVar("T")
Classes: TypeAlias = "Sequence[str] | Mapping[str, int] | None"
"""Names of classes in the order of the model's outputs, or name -> index; `None`: the names found, sorted."""


def read_labels(file: Path) -> dict[str, Any]:
    """Name of a picture -> its label as it is written."""
    found = {}
    for name, values in entries(file, ("name", "label")).items():
        if not values or any(value != values[0] for value in values):
            raise InputError(f"{file.name} has {len(values)} labels for {name!r}; expected one.")
        found[name] = values[0][0]
    return found


def read_boxes(file: Path) -> dict[str, tuple[Box, ...]]:
    """Name of a picture -> its boxes."""
    found: dict[str, tuple[Box, ...]] = {}
    for name, values in entries(file, ("name", "x1", "y1", "x2", "y2")).items():
        try:
            found[name] = tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in values)
        except (TypeError, ValueError):
            raise InputError(f"{file.name} has the boxes {values} for {name!r}; expected numbers.") from None
    return found


def voc_boxes(content: bytes) -> tuple[Box, ...]:
    """The boxes of all objects in an XML file of Pascal VOC, whose first pixel is number 1 and whose ends count.

    Raises:
        InputError: it is not such a file.

    Example:
        >>> from xattr.benchmark.sources.annotations import voc_boxes
        >>> box = "<xmin>1</xmin><ymin>3</ymin><xmax>2</xmax><ymax>4</ymax>"
        >>> voc_boxes(f"<annotation><object><bndbox>{box}</bndbox></object></annotation>".encode())
        ((0.0, 2.0, 2.0, 4.0),)
    """
    try:
        root = ElementTree.fromstring(content)
        found = []
        for thing in root.findall("object"):
            x1, y1, x2, y2 = (float(thing.findtext(f"bndbox/{edge}", "")) for edge in ("xmin", "ymin", "xmax", "ymax"))
            found.append((x1 - 1, y1 - 1, x2, y2))
    except (ElementTree.ParseError, ValueError) as error:
        raise InputError(f"its XML is none of Pascal VOC (object/bndbox/xmin ...): {one_line(error)}") from error
    if root.tag != "annotation":
        raise InputError(f"its XML is none of Pascal VOC; found <{root.tag}>, expected <annotation>.")
    return tuple(found)


def entries(file: Path, columns: tuple[str, ...]) -> dict[str, list[tuple[Any, ...]]]:
    """Name of a picture -> its entries in a table; a name with nothing beside it has none.

    Args:
        file: CSV with a head, or JSON: a list of objects with the columns, or an object from names to entries.
        columns: the first is the name of the picture; others in the file are left alone.

    Raises:
        InputError: the file cannot be read or lacks a column.
    """
    wanted = f"expected {', '.join(columns)}"
    try:
        text = file.read_text(encoding="utf-8-sig")
        lines: Any = (
            json.loads(text) if file.suffix.lower() == ".json" else csv.DictReader(io.StringIO(text, newline=""))
        )
        if isinstance(lines, csv.DictReader) and (missing := set(columns) - set(lines.fieldnames or ())):
            raise InputError(f"{file.name} has no {', '.join(sorted(missing))} in its first line; {wanted}.")
        pairs = lines.items() if isinstance(lines, Mapping) else [(line[columns[0]], line) for line in lines]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise InputError(f"{str(file)!r} cannot be read: {one_line(error)}") from error
    except (KeyError, TypeError) as error:
        raise InputError(f"{file.name} has an entry without {columns[0]!r}; {wanted}.") from error
    found: dict[str, list[tuple[Any, ...]]] = {}
    for name, value in pairs:
        if name in ("", None):
            raise InputError(f"{file.name} has an entry without {columns[0]!r}; {wanted}.")
        rows = found.setdefault(_key(name), [])
        values = [_values(part, columns) for part in (value if isinstance(value, list) else [value])]
        rows += [row for row in values if any(part not in ("", None) for part in row)]
        if any(len(row) != len(columns) - 1 for row in rows):
            raise InputError(f"{file.name} has {value} for {name!r}; expected {', '.join(columns[1:])}.")
    return found


def matched(
    names: Sequence[str], among: Sequence[str], found: Mapping[str, T], what: str, *, all_used: bool = False
) -> list[T]:
    """The entry of each picture, by its path in the folder or its bare name, with or without ending.

    Args:
        names: paths in the folder, of the pictures that are taken.
        among: paths of all pictures.
        found: entries by such names.
        what: what messages call an entry and where it is, such as "box in boxes.csv".
        all_used: whether an entry of no picture is an error.

    Raises:
        InputError: a picture has none, two pictures share one by its bare name, or `all_used` is not so.

    Example:
        >>> from xattr.benchmark.sources.annotations import matched
        >>> matched(["a/1.jpg", "b/2.jpg"], ["a/1.jpg", "b/2.jpg", "3.jpg"], {"b/2.jpg": "two", "1": "one"}, "label")
        ['one', 'two']
    """
    keys, users, wanted = dict[str, str](), dict[str, str](), set(names)
    for name in among:
        path = PurePosixPath(name)
        stem = str(path.with_suffix(""))
        key = next((key for key in (name, stem, path.name, path.stem) if key in found), None)
        if key is None and name not in wanted:
            continue
        if key is None:
            near = ", ".join(map(repr, list(found)[:3])) or "nothing"
            raise InputError(
                f"there is no {what} for the picture {name!r}; found {near} ... Expected its path in the folder, or "
                f"its name if no other picture has it."
            )
        if users.setdefault(key, stem) != stem:
            raise InputError(f"the {what} called {key!r} fits two pictures, one is {name!r}; expected paths.")
        keys[name] = key
    if all_used and (rest := [key for key in found if key not in users]):
        raise InputError(
            f"there is no picture for the {what} called {rest[0]!r}, and {len(rest) - 1} more such; expected names of "
            f"pictures in the folder. Correct the name, or remove it."
        )
    return [found[keys[name]] for name in names]


def numbering(labels: Iterable[Any], classes: Classes, what: str, *, names: bool = False) -> Callable[[Any], int]:
    """A function from a label as it is written to the index of its class.

    Args:
        labels: all that there are.
        classes: see `Classes`; a label may be an index of these, too.
        what: where they are, for messages.
        names: whether labels are names even if they are whole numbers.

    Raises:
        PlanError: the classes are not as they should be.
        InputError: some labels are names and others numbers; also from the function, for a label outside.

    Example:
        >>> from xattr.benchmark.sources.annotations import numbering
        >>> number = numbering(["dog", "cat"], None, "labels.csv")
        >>> number("cat"), number("dog"), numbering(["7"], None, "labels.csv")("7")
        (0, 1, 7)
    """
    every = list(labels)
    if odd := [label for label in every if not isinstance(label, (int, str)) or not (names or _plain(str(label)))]:
        raise InputError(f"{what} holds the label {odd[0]!r}; expected an index from 0, or a name.")
    known = list(dict.fromkeys(map(str, every)))
    whole = [not names and label.isdecimal() for label in known]
    if classes is not None:
        index = dict(classes) if isinstance(classes, Mapping) else {name: i for i, name in enumerate(classes)}
        if not index or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in index.values()):
            raise PlanError(f"found classes={classes!r}; expected names, or name -> index from 0.")
        index = {str(name): i for name, i in index.items()}
    elif any(whole) and not all(whole):
        first = known[whole.index(False)]
        raise InputError(f"{what} holds numbers and names of classes, such as {first!r}; expected one or the other.")
    else:
        index = {} if all(whole) else {name: i for i, name in enumerate(sorted(known))}
    indices = set(index.values())

    def number(label: Any) -> int:
        text = str(label)
        if text in index:
            return index[text]
        if not names and text.isdecimal() and (not index or int(text) in indices):
            return int(text)
        choices = ", ".join(list(index)[:10]) + (" ..." if len(index) > 10 else "") if index else "an index from 0"
        raise InputError(f"{what} holds the label {text!r}; expected {choices}.")

    return number


def _plain(label: str) -> bool:
    """Whether a label is a whole number or a name, and not -1 or 1.0."""
    try:
        float(label)
    except ValueError:
        return True
    return label.isdecimal()


def _values(entry: Any, columns: tuple[str, ...]) -> tuple[Any, ...]:
    if isinstance(entry, Mapping):
        return tuple(entry.get(column) for column in columns[1:])
    return tuple(entry) if isinstance(entry, list) else (entry,)


def _key(name: Any) -> str:
    return str(PurePosixPath(str(name).strip().replace("\\", "/")))
