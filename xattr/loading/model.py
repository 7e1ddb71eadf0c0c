"""A model by name or from a file, with how it wants its images and what its classes are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.nn import Module

from .._files import failed, named, names_in, running
from ..trace import Preprocessing, preprocessing
from ..trace.errors import LoadError, PreprocessingError
from .class_names import short_name
from .pretrained import from_datasets, from_hub, from_timm, from_torchvision, label_names

__all__ = ["Loaded", "load"]

SOURCES: dict[str, Callable[[str], tuple[Module, Preprocessing, tuple[str, ...] | None]]] = {
    "timm": from_timm,
    "hf": from_hub,
    "torchvision": from_torchvision,
    "embedded": from_datasets,
}
_SPECS = "timm/NAME, hf/NAME, hf/FOLDER, torchvision/NAME, embedded/NAME or FILE.py:factory"
_RETURNS = "an nn.Module, (model, Preprocessing) or (model, Preprocessing, class_names)"


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to be explained.

    Attributes:
        model: the model; from `load` in evaluation mode.
        preprocessing: from a photograph to its input.
        class_names: one name for each output, synonyms separated by commas, or `None`.
        name: what titles call it.
    """

    model: Module
    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None = None
    name: str = "model"

    def class_name(self, index: int) -> str:
        """The short name of a class, or `class 7` where names are not known.

        Example:
            >>> from torch import nn
            >>> from xattr.loading import Loaded
            >>> Loaded(nn.Identity(), None, ("tench, Tinca tinca", "tabby, tabby cat")).class_name(1)
            'tabby'
        """
        return f"class {index}" if self.class_names is None else short_name(self.class_names[index])


def load(spec: str) -> Loaded:
    r"""Loads a model in evaluation mode.

    Args:
        spec: `timm/NAME`, `hf/NAME` on the hub or `hf/FOLDER`, `torchvision/NAME` (default weights), all of them
            trained; `embedded/NAME`, a small model of this package; or `FILE.py:factory`, whose `factory()` returns a
            module, `(model, Preprocessing)` or `(model, Preprocessing, class_names)`.

    Raises:
        LoadError: it cannot be had; one line says why and what to do.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from xattr.loading import load
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "mine.py")
        ...     _ = file.write_text("import timm\ndef build():\n    return timm.create_model('test_vit')")
        ...     loaded = load(f"{file}:build")
        >>> loaded.name, loaded.preprocessing.size, loaded.class_name(281)
        ('mine.py:build', (160, 160), 'tabby')
    """
    if not isinstance(spec, str):
        raise LoadError(
            f"found a {type(spec).__name__}; expected {_SPECS}, or a model of your own as Loaded(model, "
            f"preprocessing(model))."
        )
    file, _, factory = spec.rpartition(":")
    source, _, name = spec.partition("/")
    if file.endswith(".py"):
        model, how, names = _from_file(Path(file).expanduser(), factory)
        spec = f"{Path(file).name}:{factory}"
    elif source in SOURCES and name:
        model, how, names = SOURCES[source](name)
    elif spec.endswith(".py"):
        raise LoadError(f"{spec} names no function; expected {spec}:factory, where factory() returns {_RETURNS}.")
    else:
        raise LoadError(f"found the model {spec!r}; expected {_SPECS}.")
    return Loaded(model.eval(), how, names, spec)


def _from_file(file: Path, factory: str) -> tuple[Module, Preprocessing, tuple[str, ...] | None]:
    if not file.is_file():
        raise LoadError(f"there is no file {str(file)!r} to take {factory!r} from.")
    result = _call(file.resolve(), factory)
    parts = result if isinstance(result, tuple) else (result,)
    where = f"{file.name}:{factory}"
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], Module):
        found = ", ".join(type(part).__name__ for part in parts)
        found = f"a tuple ({found})" if isinstance(result, tuple) else found
        raise LoadError(f"{where} returned {found}; expected {_RETURNS}.")
    try:
        how = preprocessing(parts[1] if len(parts) > 1 else parts[0])
    except PreprocessingError as error:
        raise LoadError(
            f"{where} returned {type(parts[min(1, len(parts) - 1)]).__name__}, which does not say how images are to be "
            f"prepared; let it return (model, Preprocessing(transform, mean, std, size)) or (model, Preprocessing, "
            f"class_names)."
        ) from error
    if len(parts) < 3 or parts[2] is None:
        return parts[0], how, label_names(parts[0])
    if isinstance(parts[2], str) or not isinstance(parts[2], Sequence):
        raise LoadError(f"{where} returned a {type(parts[2]).__name__} as class names; expected a list of strings.")
    return parts[0], how, tuple(map(str, parts[2]))


def _call(file: Path, factory: str) -> Any:
    try:
        with running(file) as module:
            build = named(module, factory)
            if build is None:
                raise LoadError(f"{file.name} has no function {factory!r}; it has {names_in(module)}.")
            return build()
    except LoadError:
        raise
    except Exception as error:
        raise LoadError(failed(file, factory, error)) from error
