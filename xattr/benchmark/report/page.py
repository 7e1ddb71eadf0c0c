"""The page: everything put into its template, with style and script inside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from string import Template

from .chart import Look, looks, marks
from .costs import costs
from .curves import curves
from .data import Report, Section
from .layers import agreement, layers
from .leaderboard import leaderboard, verdict, warnings
from .overview import overview
from .text import esc, name, plural
from .wall import wall


def render(report: Report) -> str:
    """The report as the text of one HTML file, which needs no network and no other file.

    Args:
        report: what is shown.

    Returns:
        The page. The same report gives the same text. All names and messages in it are escaped, and its own policy
        forbids any request and any script but its own.

    Example:
        >>> from xattr.benchmark.report import Cell, Column, Entry, Report, Section, render
        >>> entries = (Entry("GradSkip", False, {"pointing": Cell(0.9, 0.8, 1.0, 50)}),)
        >>> section = Section("vit", "photos", 50, "GradSkip", (Column("pointing", True, "share"),), entries)
        >>> page = render(Report("Which explainer?", (section,)))
        >>> page.startswith("<!doctype html>"), "://" in page
        (True, False)
    """
    script = _part("page.js")
    names = dict.fromkeys(method for section in report.sections for method in section.methods)
    drawn = looks(names, {method for section in report.sections for method in section.controls})
    over = overview(report)
    links = [("overview", "Overview")] if over else []
    links += [(f"s{i}", f"{s.model} · {s.data}") for i, s in enumerate(report.sections, 1)]
    links += [("read", "How to read"), ("made", "How it was made")]
    return Template(_part("page.html")).substitute(
        title=esc(report.title),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=_part("style.css"),
        script=script,
        marks=marks(),
        links="".join(f'<li><a href="#{to}">{esc(text)}</a></li>' for to, text in links),
        lead=_lead(report),
        overview=_headed("overview", "Overview", over),
        sections="".join(_section(i, section, drawn) for i, section in enumerate(report.sections, 1)),
        command=f"<p>Make it again with</p><pre><code>{esc(report.command)}</code></pre>" if report.command else "",
        provenance="".join(f"<dt>{esc(key)}</dt><dd>{esc(value)}</dd>" for key, value in report.provenance.items()),
    )


def _part(file: str) -> str:
    return files(__package__).joinpath(file).read_text(encoding="utf-8")


def _lead(report: Report) -> str:
    methods = {m: m in s.controls for s in report.sections for m in s.methods}
    controls = sum(methods.values())
    parts = [plural(len(methods) - controls, "method")]
    parts += [plural(controls, "control")] if controls else []
    parts.append(plural(len({s.model for s in report.sections}), "model"))
    parts.append(plural(len({s.data for s in report.sections}), "data set"))
    parts.append(plural(len({c.name for s in report.sections for c in s.columns}), "metric"))
    return ", ".join(parts) + "."


def _headed(key: str, title: str, body: str, level: int = 2) -> str:
    """A part of the page with its head, which is safe text; empty without a body."""
    if not body:
        return ""
    return f'<section id="{key}" aria-labelledby="{key}-h"><h{level} id="{key}-h">{title}</h{level}>{body}</section>'


def _section(place: int, section: Section, drawn: Mapping[str, Look]) -> str:
    parts = {
        "board": ("Leaderboard", leaderboard(section)),
        "curves": ("Deletion and insertion", curves(section, drawn)),
        "cost": ("Cost against quality", costs(section, drawn)),
        "wall": ("Maps", wall(section)),
        "layers": ("Layers", layers(section)),
        "metrics": ("Do the metrics agree?", agreement(section)),
    }
    there = {f"s{place}-{key}": part for key, part in parts.items() if part[1]}
    links = "".join(f'<li><a href="#{key}">{title}</a></li>' for key, (title, _) in there.items())
    bodies = "".join(_headed(key, title, body, 3) for key, (title, body) in there.items())
    title = f"{name(section.model)} <span>on {name(section.data)}</span>"
    inside = f'{_about(section)}<ul class="inside">{links}</ul>{bodies}'
    return _headed(f"s{place}", title, inside)


def _about(section: Section) -> str:
    said = f"{plural(section.images, 'image')}. The others are compared with {name(section.reference)}."
    warned = "".join(f'<p class="warn">⚠ {one}</p>' for one in warnings(section))
    return f"<p>{said} {verdict(section)}</p>{warned}"
