"""The wall: each image with the maps of all methods beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .data import Section, Tile
from .pictures import CRISP, PERCENTILE, Drawn, draw_map, picture_uri, scale_uri
from .text import decimals, embedded, esc, name, number

_HINT = (
    "Red speaks for the explained class, blue against it; nearly white is zero. Every map has a scale of its own: the "
    f"strongest colour is the {PERCENTILE:g}th percentile of its magnitudes, so compare places, not strength. "
    "<b>signed</b>: the map has values below zero; <b>≥ 0</b>: it has none. Green is not a number."
)


@dataclass(frozen=True)
class _View:
    """What is the same for all images.

    Attributes:
        section: with its images.
        methods: that have maps, or should.
        metric: whose score is shown first; empty without metrics.
        digits: behind the point of each metric's scores.
    """

    section: Section
    methods: list[str]
    metric: str
    digits: dict[str, int | None]

    @classmethod
    def of(cls, section: Section) -> _View:
        methods = [m for m in section.methods if any(m in (*t.maps, *t.errors) for t in section.tiles)]
        metrics = [column.name for column in section.columns]
        directed = [column.name for column in section.columns if column.higher_is_better is not None]
        digits = {k: decimals(_score(t, m, k) for t in section.tiles for m in methods) for k in metrics}
        return cls(section, methods, next(iter(directed + metrics), ""), digits)


def wall(section: Section) -> str:
    """Images where the methods disagree most come first, with or without scripts; empty without images."""
    if not section.tiles:
        return ""
    view, tiles = _View.of(section), section.tiles
    ranked = sorted(range(len(tiles)), key=lambda i: math.inf if math.isnan(d := tiles[i].disagreement) else -d)
    data = {
        "scores": [[[_score(t, m, metric) for metric in view.digits] for m in view.methods] for t in tiles],
        "digits": list(view.digits.values()),
        "disagreement": [tile.disagreement for tile in tiles],
        "names": [tile.image for tile in tiles],
    }
    return (
        f'<div class="wall" data-wall>{_controls(view)}<p class="scale"><span>against</span><img src="{scale_uri()}" '
        f'alt="Colours from blue over nearly white to red"><span>for</span></p><p class="hint">{_HINT}</p>'
        f'<p class="hint" role="status"></p><ol class="tiles">{"".join(_tile(view, i) for i in ranked)}</ol>'
        f'<script type="application/json">{embedded(data)}</script></div>'
    )


def _score(tile: Tile, method: str, metric: str) -> float:
    return float(tile.scores.get(method, {}).get(metric, math.nan))


def _controls(view: _View) -> str:
    sorts = {"disagreement": "disagreement", "image": "image"}
    if view.metric:
        sorts["score"] = "score of a method"
    metrics = {str(i): metric for i, metric in enumerate(view.digits)}
    orders = {"down": "largest first", "up": "smallest first"}
    boxes = "".join(
        f'<label class="chip"><input type="checkbox" checked autocomplete="off" data-show="{i}">{name(method)}</label>'
        for i, method in enumerate(view.methods)
    )
    return (
        '<div class="controls needs-js" role="group" aria-label="Order and look of the images">'
        f"{_select('Sort by', 'sort', sorts)}"
        f"{_select('of', 'method', {str(i): method for i, method in enumerate(view.methods)}, hidden=True)}"
        f"{_select('Order', 'order', orders)}{_select('Score', 'metric', metrics, view.metric) if metrics else ''}"
        f"{_range('Map over picture', 'opacity', 0, 100, 5, 70)}{_range('Size', 'size', 64, 256, 16, 112)}"
        '<label class="chip"><input type="checkbox" checked data-pick="grey" autocomplete="off">grey picture below maps'
        f'</label></div><fieldset class="needs-js chips"><legend>Methods</legend>{boxes}</fieldset>'
    )


def _select(label: str, key: str, options: dict[str, str], chosen: str = "", hidden: bool = False) -> str:
    inside = "".join(
        f'<option value="{value}"{" selected" if text == chosen else ""}>{esc(text)}</option>'
        for value, text in options.items()
    )
    select = f'<select data-pick="{key}" autocomplete="off">{inside}</select>'
    return f"<label{' hidden' if hidden else ''}>{label} {select}</label>"


def _range(label: str, key: str, low: int, high: int, step: int, value: int) -> str:
    numbers = f'min="{low}" max="{high}" step="{step}" value="{value}"'
    return f'<label>{label} <input type="range" data-pick="{key}" autocomplete="off" {numbers}></label>'


def _tile(view: _View, index: int) -> str:
    tile = view.section.tiles[index]
    uri, crisp = picture_uri(tile.picture)
    height, width = tile.picture.shape[:2]
    facts = {"true": tile.label, "explained": tile.explained}
    if not math.isnan(tile.disagreement):
        facts["disagreement"] = number(tile.disagreement, 2)
    said = "".join(f"<div><dt>{key}</dt><dd>{esc(value)}</dd></div>" for key, value in facts.items() if value)
    maps = "".join(_map(view, tile, i) for i in range(len(view.methods)))
    # The bytes of the picture stand once, as a property that its copies below the maps inherit.
    return (
        f'<li class="tile" data-index="{index}" style="--picture:url({uri});--ratio:{width}/{height}">'
        f'<div class="subject"><div class="photo{" crisp" if crisp else ""}" role="img" '
        f'aria-label="Picture of {esc(tile.image)}"></div><h4>{name(tile.image)}</h4><dl>{said}</dl></div>'
        f'<div class="maps">{maps}</div></li>'
    )


def _map(view: _View, tile: Tile, index: int) -> str:
    method, sign = view.methods[index], ""
    if method in tile.maps:
        drawn = draw_map(tile.maps[method])
        body, sign = _stack(tile, method, drawn), drawn.sign
    elif why := tile.errors.get(method, ""):
        body = f'<details class="gap"><summary>failed</summary><span>{esc(why)}</span></details>'
    else:
        body = '<div class="gap">no map</div>'
    value = number(_score(tile, method, view.metric), view.digits[view.metric]) if view.metric else ""
    control = " control" if method in view.section.controls else ""
    return (
        f'<figure class="map{control}" data-method="{index}">{body}<figcaption><span>{name(method)}</span>'
        f'<span><span class="score">{value}</span> <span class="sign">{sign}</span></span></figcaption></figure>'
    )


def _stack(tile: Tile, method: str, drawn: Drawn) -> str:
    under = " crisp" if max(tile.picture.shape[:2]) <= CRISP else ""
    over = ' class="crisp"' if drawn.crisp else ""
    alt = esc(f"Map of {method} for {tile.image}: {drawn.said}")
    return f'<div class="stack"><div class="under{under}"></div><img{over} src="{drawn.uri}" alt="{alt}"></div>'
