"""The parts of a page: pictures, sections, sources."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from scaleproof.reports.charts import interactive
from scaleproof.reports.charts.chart import Chart
from scaleproof.reports.charts.still import still
from scaleproof.reports.charts.style import Drawn

# number of sections that the navigation bar has room for
_MOST_IN_BAR: Final = 12


@dataclass(frozen=True)
class Picture:
    """A figure as interactive chart and for paper. above: sentences above it."""

    chart: Chart
    drawn: Drawn
    above: tuple[str, ...] = ()

    @classmethod
    def of(cls, chart: Chart) -> Picture:
        """The picture of a chart, drawn as PNG and SVG."""
        return cls(chart, still(chart))

    @property
    def uri(self) -> str:
        """The PNG as a data URI."""
        return "data:image/png;base64," + base64.b64encode(self.drawn.png).decode()

    @property
    def json(self) -> str:
        """The interactive chart as JSON that is safe in a script element."""
        return interactive.script_json(interactive.packed(self.chart))

    @cached_property
    def legend(self) -> list[tuple[str, str, str]]:
        """Name, colour and symbol of each legend entry."""
        return interactive.legend(self.chart)


@dataclass(frozen=True)
class PageSection:
    """A section of a page. anchor: its link target. short: its name in the navigation bar. before, after: templates around the
    pictures; data: their contents. result: what it finds, in a few words, for a table of contents."""

    anchor: str
    short: str
    heading: str
    intro: str = ""
    pictures: Sequence[Picture] = ()
    before: str = ""
    after: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    result: str = ""


@dataclass(frozen=True)
class Sources:
    """The sources of a page. facts: names and values. files: scenario files by name. commands: reproduce the results."""

    facts: Sequence[tuple[str, str]] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    commands: Sequence[str] = ()
    parts: Sequence[tuple[str, str]] = ()
    cited: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Page:
    """A page. lede: text below the headline. sheets: CSV tables by file name. is_empty: whether there is nothing to show."""

    eyebrow: str
    headline: str
    lede: str
    facts: Sequence[tuple[str, str]]
    notes: Sequence[str]
    sections: Sequence[PageSection]
    sheets: Mapping[str, str]
    sources: Sources
    is_empty: bool = False

    @property
    def has_contents(self) -> bool:
        """Whether it has too many sections for a bar, so that they are listed below the headline."""
        return len(self.sections) > _MOST_IN_BAR


def pictured(*charts: Chart | None) -> list[Picture]:
    """Pictures of the charts that have data."""
    return [Picture.of(chart) for chart in charts if chart is not None]
