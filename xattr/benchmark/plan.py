"""What is to be measured: models, methods, data and metrics, from a TOML file or from Python."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ..trace.errors import PlanError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

KINDS = ("models", "methods", "data", "metrics")
_DECLARES = {"metrics": ("higher_is_better",)}
_Target = Literal["predicted", "label"]
_Upsample = Literal["bilinear", "nearest"]


@dataclass(frozen=True)
class Part:
    """One model, method, data set or metric of a plan.

    Attributes:
        use: its name or import path (`FILE.py:name`, `package.module:name`); in Python also the object itself.
        name: what tables call it; by default made from `use`.
        settings: keywords.
        higher_is_better: of a metric that does not say so itself.
        where: the place in the plan's file, for messages.
    """

    use: Any
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    higher_is_better: bool | None = None
    where: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", _short(self.use))

    def error(self, message: str) -> PlanError:
        """An error that says where in the plan it is."""
        return PlanError(f"{self.where or self.name}: {message}")


@dataclass(frozen=True)
class Plan:
    """Which explainers are compared, on what, by which numbers.

    Each of `models`, `methods`, `data` and `metrics` is a sequence of names, mappings with `use` and settings beside
    it, or `Part`s.

    Attributes:
        models: `timm/NAME`, `hf/NAME`, `torchvision/NAME`, `embedded/NAME` or `FILE.py:factory`; in Python also a
            `Loaded` or a module.
        methods: classes of `xattr.attr` and `captum.attr` by name, or any Captum-style class by import path. Settings
            that the constructor takes go there, the others to `attribute`.
        data: names of `xattr.benchmark.sources.SOURCES` with their options.
        metrics: names of `xattr.metrics.METRICS`, or functions by import path.
        seeds: of methods that draw; each is a run of its own, averaged before images are compared.
        target: the class that is explained: the one predicted, or the label.
        shard: images in one unit of work, which is what a killed run loses at most.
        batch: images that a method gets at once.
        threads: of torch in each process; numbers may differ in the last digits for another count.
        time_limit: seconds that a method or metric may take for an image.
        keep_maps: of how many images of each data set the maps are kept for the report.
        upsample: how maps are brought to the size of the picture, for metrics that compare them with masks.
        reference: the method that the others are compared with; the first by default.
        device: "cpu", "cuda" (the process's own), or another name that torch knows.
        title: of the report.
        base: folder that relative paths start from.

    Raises:
        PlanError: a setting is none of its choices, a part is missing, or two have one name.

    Example:
        >>> from xattr.benchmark import Plan
        >>> plan = Plan(
        ...     models=["embedded/class-token"],
        ...     methods=["GradSkip", {"use": "IntegratedGradients", "n_steps": 20}],
        ...     data=[{"use": "scenes", "n": 20}],
        ...     metrics=["insertion_deletion", "pointing"],
        ... )
        >>> [part.name for part in plan.methods], plan.methods[1].settings
        (['GradSkip', 'IntegratedGradients'], {'n_steps': 20})
    """

    models: tuple[Part, ...]
    methods: tuple[Part, ...]
    data: tuple[Part, ...]
    metrics: tuple[Part, ...]
    seeds: tuple[int, ...] = (0,)
    target: _Target = "predicted"
    shard: int = 50
    batch: int = 10
    threads: int = 1
    time_limit: float = 60.0
    keep_maps: int = 24
    upsample: _Upsample = "bilinear"
    reference: str = ""
    device: str = "cpu"
    title: str = "Explainers side by side"
    base: Path = field(default=Path(), compare=False)

    def __post_init__(self) -> None:
        for kind in KINDS:
            object.__setattr__(self, kind, _parts(kind, getattr(self, kind)))
        object.__setattr__(self, "base", Path(self.base).resolve())
        seeds = (self.seeds,) if isinstance(self.seeds, int) else tuple(self.seeds)
        object.__setattr__(self, "seeds", seeds)
        object.__setattr__(self, "reference", self.reference or self.methods[0].name)
        whole = lambda value: isinstance(value, int) and not isinstance(value, bool)
        for name, least in {"shard": 1, "batch": 1, "threads": 1, "keep_maps": 0}.items():
            if not whole(value := getattr(self, name)) or value < least:
                raise PlanError(f"{name} = {value!r}; expected a whole number, {least} or more.")
        if not seeds or not all(map(whole, seeds)) or len(set(seeds)) < len(seeds):
            raise PlanError(f"seeds = {self.seeds!r}; expected whole numbers, each once.")
        if isinstance(self.time_limit, bool) or not (isinstance(self.time_limit, (int, float)) and self.time_limit > 0):
            raise PlanError(f"time_limit = {self.time_limit!r}; expected seconds above 0.")
        object.__setattr__(self, "time_limit", float(self.time_limit))
        for name, choices in {"target": get_args(_Target), "upsample": get_args(_Upsample)}.items():
            if getattr(self, name) not in choices:
                raise PlanError(f"{name} = {getattr(self, name)!r}; expected one of {', '.join(choices)}.")
        for name in ("device", "title"):
            if not isinstance(getattr(self, name), str):
                raise PlanError(f"{name} = {getattr(self, name)!r}; expected text.")
        if self.reference not in (names := [part.name for part in self.methods]):
            raise PlanError(f"reference = {self.reference!r}; expected one of the methods {', '.join(names)}.")

    @classmethod
    def read(cls, file: str | Path) -> Plan:
        """A plan from a TOML file; relative paths in it start from its folder.

        Raises:
            PlanError: it cannot be read, or is wrong; the message names the line.
        """
        file = Path(file)
        try:
            text = file.read_text(encoding="utf-8-sig")
            found = tomllib.loads(text)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise PlanError(f"{file}: {error}") from error
        lines = _lines(text)
        known = {f.name for f in dataclasses.fields(cls)} - {"base"}
        for key in found:
            if key not in known:
                raise PlanError(f"{file}, line {lines.get((key,), 1)}: there is no {key!r}; there are {_list(known)}.")
        if missing := [kind for kind in KINDS if kind not in found]:
            raise PlanError(f"{file}: found no {' and no '.join(missing)}; a plan has {', '.join(KINDS)}.")
        for kind in KINDS:
            entries = found[kind] if isinstance(found[kind], list) else [found[kind]]
            where = [f"{file}, line {_line(text, lines, kind, i, entry)}" for i, entry in enumerate(entries)]
            found[kind] = tuple(_part(kind, entry, at) for entry, at in zip(entries, where, strict=True))
        try:
            return cls(**found, base=file.resolve().parent)
        except PlanError as error:
            key = str(error).partition(" ")[0]
            raise PlanError(f"{file}, line {lines[key,]}: {error}" if (key,) in lines else f"{error}") from None

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain data, without what it leaves at the default; objects by their names."""
        found: dict[str, Any] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.name in KINDS:
                found[f.name] = [_plain(part) for part in value]
            elif f.name != "base" and value != f.default:
                found[f.name] = value
        return found

    @property
    def portable(self) -> bool:
        """Whether another process can read it: everything is named, and settings are plain data."""
        parts = [part for kind in KINDS for part in getattr(self, kind)]
        try:
            json.dumps([part.settings for part in parts])
        except (TypeError, ValueError):
            return False
        return all(isinstance(part.use, str) for part in parts)


def _short(use: Any) -> str:
    if not isinstance(use, str):
        return str(getattr(use, "__name__", getattr(use, "name", type(use).__name__)))
    if ".py:" in use:
        return use.rpartition(":")[2]
    return use.rpartition("/")[2] if "/" in use else re.split(r"[.:]", use)[-1] if "." in use else use


def _parts(kind: str, entries: Any) -> tuple[Part, ...]:
    if isinstance(entries, (str, Mapping, Part)) or not isinstance(entries, Iterable):
        entries = [entries]
    parts = tuple(_part(kind, entry) for entry in entries)
    if not parts:
        raise PlanError(f"{kind} = []; expected at least one.")
    for i, part in enumerate(parts):
        if same := [other for other in parts[:i] if other.name == part.name]:
            raise part.error(f"two {kind} are called {same[0].name!r}; give one of them another `name`.")
    return parts


def _part(kind: str, entry: Any, where: str = "") -> Part:
    if isinstance(entry, Part):
        return entry
    if not isinstance(entry, Mapping):
        return Part(entry, where=where)
    settings = dict(entry)
    use, name = settings.pop("use", None), settings.pop("name", "")
    at = where or f"{kind} {dict(entry)}"
    if use is None or (isinstance(use, str) and not use):
        raise PlanError(f"{at}: found no `use`; expected what to use, and settings beside it.")
    if not isinstance(name, str):
        raise PlanError(f"{at}: name = {name!r}; expected text.")
    if kind == "metrics" and ("/" in name or name in ("forwards", "ms", "failed")):
        raise PlanError(f"{at}: a metric cannot be called {name!r}; tables use that.")
    declared = {key: settings.pop(key) for key in _DECLARES.get(kind, ()) if key in settings}
    if not isinstance(declared.get("higher_is_better"), (bool, type(None))):
        raise PlanError(f"{at}: higher_is_better = {declared['higher_is_better']!r}; expected true or false.")
    return Part(use, name, settings, where=where, **declared)


def _plain(part: Part) -> dict[str, Any]:
    use = part.use if isinstance(part.use, str) else f"<{getattr(part.use, '__qualname__', type(part.use).__name__)}>"
    declared = {} if part.higher_is_better is None else {"higher_is_better": part.higher_is_better}
    return {"use": use, "name": part.name, **declared, **json.loads(json.dumps(dict(part.settings), default=repr))}


def _lines(text: str) -> dict[tuple[Any, ...], int]:
    """The line of each table `(kind, i)`, and of each key at the top `(key,)`."""
    found: dict[tuple[Any, ...], int] = {}
    counts: dict[str, int] = {}
    table = False
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.match(r"\s*\[\[?\s*([\w-]+)\s*\]", line):
            kind, table = head[1], True
            found[kind, counts.get(kind, 0)] = number
            counts[kind] = counts.get(kind, 0) + 1
            found.setdefault((kind,), number)
        elif not table and (key := re.match(r"\s*([\w-]+)\s*=", line)):
            found[key[1],] = number
    return found


def _line(text: str, lines: Mapping[tuple[Any, ...], int], kind: str, index: int, entry: Any) -> int:
    if (kind, index) in lines:
        return lines[kind, index]
    start = lines.get((kind,), 1)
    quoted = entry.get("use", "") if isinstance(entry, Mapping) else entry
    rest = enumerate(text.splitlines()[start - 1 :], start)
    return next((number for number, line in rest if f'"{quoted}"' in line or f"'{quoted}'" in line), start)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
