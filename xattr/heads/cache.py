"""Features of a frozen backbone, computed once and kept on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate
from tqdm import tqdm

from .._nested import replace_tensors, tensors_in
from ..trace import InputError
from .model import LayaModel, fingerprint

Data: TypeAlias = "tuple[Any, Tensor] | Dataset[Any]"


def batches(data: Data, size: int, order: Tensor | None = None) -> Iterator[tuple[Any, Tensor]]:
    """Inputs and labels of a data set in batches, in an order.

    Args:
        data: inputs and labels (inputs a tensor, or a list or mapping of tensors along the same examples), or a data
            set of pairs.
        size: examples in a batch.
        order: their numbers; `None` for as they are.
    """
    order = torch.arange(examples(data)) if order is None else order
    for rows in order.split(size):
        if isinstance(data, Dataset):
            inputs, labels = default_collate([_plain(data[int(i)]) for i in rows])
            yield inputs, labels
        else:
            inputs, labels = data
            yield replace_tensors(_plain(inputs), lambda part, rows=rows: part[rows]), labels[rows]  # type: ignore[misc]


def _plain(value: Any) -> Any:
    """The same with dictionaries in place of other mappings, such as a tokeniser's."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def examples(data: Data) -> int:
    """Number of examples.

    Raises:
        InputError: it is neither a data set nor a pair of inputs and labels of equal length.
    """
    if isinstance(data, Dataset):
        return len(data)  # type: ignore[arg-type]
    if not (isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], Tensor)):
        raise InputError("data is a pair (inputs, labels) of tensors, or a torch Dataset of such pairs.")
    inputs, labels = data
    if labels.ndim != 1 or labels.is_floating_point():
        raise InputError(f"labels have the shape {list(labels.shape)} and {labels.dtype}; expected whole numbers, [n].")
    for part in tensors_in(inputs):
        if len(part) != len(labels):
            raise InputError(f"found {len(part)} inputs and {len(labels)} labels; expected one label for each input.")
    return len(labels)


def cached_features(
    model: LayaModel, data: Data, folder: str | Path | None = None, *, batch_size: int = 64, show_progress: bool = False
) -> tuple[list[Tensor], Tensor]:
    """The features of all layers for a data set, and its labels; computed once, then read from disk.

    What is on disk is found by a hash of the backbone's weights, of the layers and of all examples, so another model or
    data set never reads it. Files are mapped into memory, not read as a whole.

    Args:
        model: a model with a frozen backbone.
        data: inputs and labels, or a data set of pairs.
        folder: where to keep them; `None` for in memory.
        batch_size: examples in a forward.
        show_progress: whether to draw a progress bar.

    Returns:
        Features `[n, d_i]` of each layer in float32, and labels `[n]`.

    Raises:
        InputError: the backbone is not frozen, or layers are pooled by a callable, whose code is no part of a hash.
    """
    if not model.freeze:
        raise InputError("the features of a backbone that is trained change; cached are those of freeze=True.")
    count = examples(data)
    if folder is None:
        made = [([f.float() for f in _features(model, x)], y) for x, y in _shown(data, batch_size, show_progress)]
        return [torch.cat(parts) for parts in zip(*(f for f, _ in made), strict=True)], torch.cat([y for _, y in made])
    if any(layer.pool == "callable" for layer in model.layers):
        raise InputError("features pooled by a callable are not kept on disk; use another pool, or folder=None.")
    place = Path(folder) / _key(model, data, batch_size)
    if not (place / "done.json").is_file():
        _write(model, data, place, count, batch_size, show_progress)
    # Copy on write: torch wants arrays that it could write to.
    load = lambda name: torch.from_numpy(np.load(place / name, mmap_mode="c"))
    return [load(f"{i}.npy") for i in range(len(model.layers))], load("labels.npy")


def _features(model: LayaModel, inputs: Any) -> list[Tensor]:
    """Features of inputs that may be elsewhere, or in another precision."""
    like = next(model.parameters())
    moved = replace_tensors(inputs, lambda t: t.to(like.device, like.dtype if t.is_floating_point() else t.dtype))
    return model.features(*moved) if isinstance(moved, (list, tuple)) else model.features(moved)


def _write(model: LayaModel, data: Data, place: Path, count: int, batch_size: int, show_progress: bool) -> None:
    """Into a folder of this process's own, which becomes the result if nobody else's has meanwhile."""
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{place.name}.", suffix=".partial", dir=place.parent))
    try:
        _fill(model, data, partial, count, batch_size, show_progress)
        with contextlib.suppress(OSError):  # it is there already
            partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _fill(model: LayaModel, data: Data, partial: Path, count: int, batch_size: int, show_progress: bool) -> None:
    files = [
        np.lib.format.open_memmap(partial / f"{i}.npy", mode="w+", dtype=np.float32, shape=(count, layer.width))
        for i, layer in enumerate(model.layers)
    ]
    labels, start = [], 0
    for inputs, named in _shown(data, batch_size, show_progress):
        for file, feature in zip(files, _features(model, inputs), strict=True):
            file[start : start + len(named)] = feature.detach().float().cpu().numpy()
        labels.append(named.cpu())
        start += len(named)
    for file in files:
        file.flush()
    np.save(partial / "labels.npy", torch.cat(labels).numpy())
    (partial / "done.json").write_text(json.dumps({"examples": count}) + "\n", encoding="utf-8")


def _shown(data: Data, batch_size: int, show_progress: bool) -> Any:
    total = -(-examples(data) // batch_size)
    return tqdm(batches(data, batch_size), total=total, disable=not show_progress, leave=False)


def _key(model: LayaModel, data: Data, batch_size: int) -> str:
    digest = hashlib.sha256(fingerprint(model.backbone).encode())
    like = next(model.backbone.parameters(), torch.zeros(()))
    precision = (
        torch.get_autocast_dtype(like.device.type) if torch.is_autocast_enabled(like.device.type) else like.dtype
    )
    digest.update(str(precision).encode())
    digest.update(json.dumps([dataclasses.asdict(layer) for layer in model.layers]).encode())
    for batch in batches(data, batch_size):
        digest.update(content(batch))
    return digest.hexdigest()[:32]


def content(value: Any) -> bytes:
    """A hash of all tensors in a nested value."""
    digest = hashlib.sha256()
    for tensor in tensors_in(value):
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.digest()
