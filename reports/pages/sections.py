"""Sections: what a page consists of, whatever it is about."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from scaleproof.reports.charts import interactive
from scaleproof.reports.charts.chart import Chart
from scaleproof.reports.charts.still import still
from scaleproof.reports.charts.style import Drawn


@dataclass(frozen=True)
class Picture:
    """A figure: what can be zoomed, and the same for paper. above: sentences that stand over it."""

    chart: Chart
    drawn: Drawn
    above: tuple[str, ...] = ()

    @classmethod
    def of(cls, chart: Chart) -> Picture:
        return cls(chart, still(chart))

    @property
    def uri(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.drawn.png).decode()

    @property
    def json(self) -> str:
        return interactive.script_json(interactive.plain(self.chart))

    @cached_property
    def legend(self) -> list[tuple[str, str, str]]:
        return interactive.legend(self.chart)


@dataclass(frozen=True)
class Section:
    """anchor: its place in links. short: its name in the bar. before, after: templates that stand around the pictures, and
    `data` what they show."""

    anchor: str
    short: str
    heading: str
    intro: str = ""
    pictures: Sequence[Picture] = ()
    before: str = ""
    after: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sources:
    """What a page was made from. facts: name and value. files: to run it again, by name. commands: that do."""

    facts: Sequence[tuple[str, str]] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    commands: Sequence[str] = ()
    parts: Sequence[tuple[str, str]] = ()
    cited: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Page:
    """lede: what stands below the headline. sheets: tables as CSV, by file name. is_empty: whether there is nothing to
    show."""

    eyebrow: str
    headline: str
    lede: str
    facts: Sequence[tuple[str, str]]
    notes: Sequence[str]
    sections: Sequence[Section]
    sheets: Mapping[str, str]
    sources: Sources
    is_empty: bool = False


def pictured(*charts: Chart | None) -> list[Picture]:
    """Those that there is data for."""
    return [Picture.of(chart) for chart in charts if chart is not None]


def slug(name: str) -> str:
    """A part of a file name that every file system takes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:48] or "case"
