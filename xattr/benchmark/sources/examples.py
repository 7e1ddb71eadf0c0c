"""What a benchmark is given of its data: pictures with labels and masks, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ...trace import Preprocessing

__all__ = ["Examples", "Source"]


@dataclass(frozen=True)
class Examples:
    """Some rows of a source, ready for a model.

    Attributes:
        images: `[n, C, H, W]` as the model takes them.
        pictures: the same for display, uint8 `[n, H, W, 3]` or `[n, H, W, 1]`.
        labels: index of the class of each, int64 `[n]`; `None` where the source has none.
        masks: what the label stands for, boolean `[n, 1, H, W]`; `None` where the source has none. A mask may be empty.
        names: what tables call them.
    """

    images: Tensor
    pictures: Tensor
    labels: Tensor | None
    masks: Tensor | None
    names: tuple[str, ...]


class Source(Protocol):
    """Pictures in a fixed order, each of which can be had without the others."""

    @property
    def has_labels(self) -> bool:
        """Whether `load` gives labels."""

    @property
    def has_masks(self) -> bool:
        """Whether `load` gives masks."""

    def __len__(self) -> int:
        """How many rows there are."""

    def digest(self, rows: range) -> str:
        """SHA-256 (hex) of what these rows hold: names, pictures, labels, masks; not where or when they were stored.

        Rows that cannot be read have a digest, too.
        """

    def load(self, rows: range, preprocessing: Preprocessing | None) -> Examples:
        """These rows for a model.

        Args:
            rows: at least one, each from 0 up to the length.
            preprocessing: how the model wants its images; must be the same at every call.

        Raises:
            InputError: a row cannot be read; the message names it. The others can be had without it.
        """
