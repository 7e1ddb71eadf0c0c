"""A source whose rows are pictures of any size, read one at a time and brought into the form a model wants."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..._network import one_line
from ...trace import Preprocessing
from ...trace.errors import InputError, PlanError, XattrError
from .examples import Examples
from .masks import Box, paint_boxes, paint_mask, through

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["PictureSource", "Row", "chosen", "shown"]


@dataclass(frozen=True)
class Row:
    """One picture as it is stored.

    Attributes:
        picture: the content of its file, or a PIL image.
        label: index of its class.
        inside: its boxes, or its mask as `picture`.
    """

    picture: bytes | Image
    label: int | None = None
    inside: bytes | Image | tuple[Box, ...] | None = None


@dataclass(frozen=True)
class PictureSource:
    """Pictures that are read when they are asked for; a `Source`.

    Attributes:
        what: what messages call it.
        names: of the rows.
        read: gives a row by its number, or raises.
        has_labels: whether rows have labels.
        has_masks: whether rows have boxes or masks.

    Example:
        >>> import timm
        >>> from PIL import Image
        >>> from xattr.benchmark.sources.pictures import PictureSource, Row
        >>> from xattr.trace import preprocessing
        >>> row = Row(Image.new("RGB", (300, 200)), inside=((0, 0, 150, 200),))
        >>> source = PictureSource("one picture", ("black",), lambda i: row, has_masks=True)
        >>> found = source.load(range(1), preprocessing(timm.create_model("test_vit")))
        >>> found.images.shape, float(found.masks.float().mean())
        (torch.Size([1, 3, 160, 160]), 0.5)
    """

    what: str
    names: tuple[str, ...]
    read: Callable[[int], Row]
    has_labels: bool = False
    has_masks: bool = False

    def __len__(self) -> int:
        return len(self.names)

    def digest(self, rows: range) -> str:
        """See `Source`."""
        found = hashlib.sha256()
        for i in rows:
            for part in self._content(i):
                found.update(len(part).to_bytes(8, "big"))
                found.update(part)
        return found.hexdigest()

    def load(self, rows: range, preprocessing: Preprocessing | None) -> Examples:
        """See `Source`."""
        if preprocessing is None:
            raise InputError(
                f"{self.what} holds pictures, and the model does not say how it wants them; expected a model with a "
                f"Preprocessing: let FILE.py:factory return (model, Preprocessing)."
            )
        if not rows or min(rows) < 0 or max(rows) >= len(self):
            raise InputError(f"found {rows}; expected at least one row, from 0 to {len(self) - 1}.")
        found = [self._example(i, preprocessing) for i in rows]
        sizes = [x.shape[2:] for x, _, _ in found]
        if other := next((k for k, size in enumerate(sizes) if size != sizes[0]), 0):
            raise InputError(
                f"{self.what}: for the model, {self.names[rows[0]]} is {list(sizes[0])} and {self.names[rows[other]]} "
                f"{list(sizes[other])} (height, width); expected one size: crop, or take one picture at a time."
            )
        images = torch.cat([x for x, _, _ in found])
        labels = torch.tensor([label for _, label, _ in found]) if self.has_labels else None
        masks = torch.cat([mask for _, _, mask in found if mask is not None]) if self.has_masks else None
        return Examples(images, shown(preprocessing.inverse(images)), labels, masks, tuple(self.names[i] for i in rows))

    def _example(self, i: int, preprocessing: Preprocessing) -> tuple[Tensor, int | None, Tensor | None]:
        try:
            row = self.read(i)
            picture = _upright(row.picture)
            x, mask = preprocessing(picture), None
            if self.has_masks:
                mask = through(_painted(row.inside, picture.size), preprocessing)
                if mask.shape[2:] != x.shape[2:]:
                    raise InputError("the transform gave the picture and its mask two sizes; expected one.")
            return x, row.label, mask
        except Exception as error:  # broken files make Pillow raise nearly anything
            raise InputError(f"{self.what}, {self.names[i]}: {_reason(error)}") from error

    def _content(self, i: int) -> Iterator[bytes]:
        yield self.names[i].encode()
        try:
            row = self.read(i)
            yield from (*_bytes(row.picture), str(row.label).encode(), *_bytes(row.inside))
        except Exception as error:
            # It will be a row with an error; once it can be read, it is another row.
            yield f"unreadable: {type(error).__name__}".encode()


def chosen(count: int, n: int | None, start: int, shuffle: int | None = None) -> list[int]:
    """Which of `count` rows are taken: `n` from `start` on, of all in a random order if `shuffle` is its seed.

    Raises:
        PlanError: there are not so many.

    Example:
        >>> from xattr.benchmark.sources.pictures import chosen
        >>> chosen(10, n=3, start=2), sorted(chosen(4, n=None, start=0, shuffle=1))
        ([2, 3, 4], [0, 1, 2, 3])
    """
    if start + (n or 1) > count:
        wanted = f"n={n} from start={start}" if n else f"start={start}"
        raise PlanError(f"there are {count} pictures; {wanted} asks for more. Expected start + n <= {count}.")
    # RandomState, because its stream is frozen for all versions of numpy.
    order = range(count) if shuffle is None else np.random.RandomState(shuffle).permutation(count).tolist()
    return list(order[start : None if n is None else start + n])


def shown(images: Tensor) -> Tensor:
    """Images in 0..1 as they are displayed, uint8 `[n, H, W, C]`."""
    return images.mul(255).round().to(torch.uint8).movedim(1, 3).contiguous()


def _painted(inside: bytes | Image | tuple[Box, ...] | None, size: tuple[int, int]) -> Image:
    if inside is None or isinstance(inside, tuple):
        return paint_boxes(inside or (), size)
    return paint_mask(_upright(inside), size)


def _upright(stored: bytes | Image) -> Image:
    from PIL import Image, ImageOps

    if isinstance(stored, bytes):
        stored = Image.open(io.BytesIO(stored))
        stored.load()
    return ImageOps.exif_transpose(stored)


def _reason(error: Exception) -> str:
    """What is wrong with a row, the same in every run: without paths of this machine or addresses in memory."""
    from PIL import UnidentifiedImageError

    if isinstance(error, XattrError):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        return "it is no picture that Pillow can read."
    reason = error.strerror if isinstance(error, OSError) else None
    return f"it cannot be read: {reason or one_line(error)}"


def _bytes(stored: bytes | Image | tuple[Box, ...] | None) -> Iterator[bytes]:
    if isinstance(stored, bytes):
        yield stored
    elif stored is None or isinstance(stored, tuple):
        yield repr(None if stored is None else [tuple(map(float, box)) for box in stored]).encode()
    else:
        picture = _upright(stored)
        yield from (f"{picture.mode} {picture.size} {picture.getpalette()}".encode(), picture.tobytes())
