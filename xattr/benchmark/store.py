"""The folder of a run: what was planned, one Parquet file a job, and maps and pictures for the report.

Files appear whole or not at all: each is written beside its place, and then put there. None of them is a pickle.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
from torch import Tensor

from .._network import one_line
from ..trace.errors import RunError

if TYPE_CHECKING:
    import pyarrow as pa

try:
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "xattr.benchmark needs pandas and pyarrow: pip install 'captum-xattr[benchmark]'.", name="pyarrow"
    ) from error

COLUMNS: dict[str, str] = {
    "model": "string",
    "data": "string",
    "method": "string",
    "seed": "int64",
    "row": "int64",
    "image": "string",
    "label": "int64",
    "predicted": "int64",
    "target": "int64",
    "metric": "string",
    "value": "float64",
    "curve": "list<double>",
    "fractions": "list<double>",
    "error": "string",
    "seconds": "float64",
    "forwards": "float64",
    "flops": "int64",
    "peak_bytes": "int64",
}
"""Of a shard; one row for each image and metric. Costs are those of one explanation."""

MEASURED = ("seconds",)
"""Columns that two runs of one plan do not share."""


@dataclass(frozen=True)
class Shard:
    """What a job found.

    Attributes:
        rows: `COLUMNS` by name; what is absent is null.
        info: protocols of metrics, layers, times, and where it ran.
        maps: those that are kept, `[k, 1, h, w]` or `[k, L]`, with the numbers of their images.
    """

    rows: Sequence[Mapping[str, Any]]
    info: Mapping[str, Any]
    maps: Mapping[str, Tensor] | None = None


class Store:
    """Files of a run.

    Args:
        folder: is made if it does not exist.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()  # methods may change the working directory

    def prepare(self) -> None:
        """Make the folders, and see that they can be written.

        Raises:
            RunError: they cannot.
        """
        for name in ("shards", "maps", "pictures"):
            with self._errors(self.folder / name):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.text("run.probe", "")
        (self.folder / "run.probe").unlink()

    def text(self, name: str, content: str) -> Path:
        """Write a text file of the run."""
        return self._put(name, lambda path: path.write_text(content, encoding="utf-8"))

    def describe(self, run: Mapping[str, Any]) -> None:
        """Write what is planned."""
        self.text("run.json", json.dumps(run, indent=1, default=str) + "\n")

    def description(self) -> dict[str, Any]:
        """What is planned.

        Raises:
            RunError: this is no folder of a run.
        """
        try:
            found = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
            if found["format"] != 1:
                raise ValueError(f"it has format {found['format']}; this version reads 1")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{str(self.folder)!r} is no folder of a run: {one_line(error)}.") from error
        return dict(found)

    def write(self, key: str, shard: Shard) -> None:
        """Keep the result of a job; its maps first, so that a shard is never without them.

        Raises:
            RunError: the disk is full, or the folder cannot be written.
        """
        if shard.maps:
            self.tensors(f"maps/{key}", shard.maps)
        table = _table(shard, key)
        self._put(f"shards/{key}.parquet", lambda path: pq.write_table(table, path, compression="zstd"))

    def read(self, key: str) -> pa.Table | None:
        """The table of a job; `None` if there is none that is whole. A broken file is put aside as `.broken`."""
        path = self.folder / "shards" / f"{key}.parquet"
        if not path.exists():
            return None
        try:
            table = pq.read_table(path)
            if info(table)["key"] != key or info(table)["content"] != _digest(table):
                raise ValueError("another file under this name, or a changed one")
        except (OSError, ValueError, KeyError, MemoryError) as error:  # ArrowInvalid is a ValueError
            if isinstance(error, PermissionError):
                raise RunError(f"{path} cannot be read: {error}") from error
            with self._errors(path):
                os.replace(path, path.with_suffix(".broken"))
            return None
        return table

    def tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write tensors, as `name.safetensors`."""
        whole = {key: tensor.contiguous() for key, tensor in tensors.items()}
        self._put(f"{name}.safetensors", lambda path: safetensors.torch.save_file(whole, path))

    def loaded(self, name: str) -> dict[str, Tensor] | None:
        """Tensors that were written, or `None`."""
        path = self.folder / f"{name}.safetensors"
        try:
            return safetensors.torch.load_file(path) if path.exists() else None
        except (OSError, safetensors.SafetensorError):
            return None

    def _put(self, name: str, write: Callable[[Path], Any]) -> Path:
        path = self.folder / name
        with self._errors(path):
            descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
            os.close(descriptor)
            try:
                write(Path(beside))
                with open(beside, "rb+") as file:
                    os.fsync(file.fileno())
                os.chmod(beside, 0o644)
                os.replace(beside, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(beside)
                raise
        return path

    @contextlib.contextmanager
    def _errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (OSError, safetensors.SafetensorError) as error:
            raise RunError(
                f"{str(path)!r} cannot be written: {one_line(error)}. What is finished is kept; the same command goes "
                f"on from there."
            ) from error


def info(table: pa.Table) -> dict[str, Any]:
    """What a shard says of itself."""
    return dict(json.loads((table.schema.metadata or {})[b"xattr"]))


def _table(shard: Shard, key: str) -> pa.Table:
    import pyarrow as pa

    kinds = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64()}
    kinds["list<double>"] = pa.list_(pa.float64())
    schema = pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    table = pa.Table.from_pylist([dict(row) for row in shard.rows], schema=schema)
    said = {**shard.info, "key": key, "maps": bool(shard.maps), "content": _digest(table)}
    return table.replace_schema_metadata({b"xattr": json.dumps(said).encode()})


def _digest(table: pa.Table) -> str:
    """Of all values: Parquet's own checksums leave out the headers of its pages."""
    return hashlib.sha256(json.dumps(table.to_pylist()).encode()).hexdigest()
