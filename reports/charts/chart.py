"""The contents of charts. `reports.charts.interactive` draws them for the page, `reports.charts.still` for paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from scaleproof.reports.charts.style import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION, YELLOW

Symbol = Literal["circle", "square", "triangle-up", "diamond", "x", "cross", "star"]
# Series differ in both colour and shape, so that either suffices. Colours repeat with other shapes.
COLOURS: Final = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
SYMBOLS: Final[tuple[Symbol, ...]] = ("circle", "square", "triangle-up", "diamond", "x", "star", "cross")
CELL_COLOURS: Final = (*COLOURS, YELLOW)
_FAR_DECADES: Final = 3


@dataclass(frozen=True)
class ChartAxis:
    """An axis of a chart. title: with unit. ticks: values and labels, chosen by the renderer if empty. zero: begins at zero."""

    title: str
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    limits: tuple[float, float] | None = None
    percent: bool = False
    zero: bool = True


@dataclass(frozen=True)
class Line:
    """Points in order, with a line if `joined` and a symbol if given. texts: hover text of each point. name: legend entry,
    which shows and hides all marks of that name; no entry if ""."""

    name: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    texts: Sequence[str] = ()
    symbol: Symbol | None = None
    joined: bool = True
    dashed: bool = False
    hollow: bool = False


@dataclass(frozen=True)
class Band:
    """The area between low and high along x. solid: part of a stack; otherwise what is behind it shows through."""

    name: str
    colour: str
    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    solid: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class Boxes:
    """Rectangles: left edge, width, vertical middle and height. labels: texts inside the rectangles."""

    name: str
    colour: str
    left: Sequence[float]
    width: Sequence[float]
    middle: Sequence[float]
    height: Sequence[float]
    texts: Sequence[str] = ()
    labels: Sequence[str] = ()


Mark = Line | Band | Boxes


@dataclass(frozen=True)
class View:
    """One state of a chart. finding: its result in a line. choices: the option of each chooser that selects it."""

    x: ChartAxis
    y: ChartAxis
    marks: tuple[Mark, ...]
    finding: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chart:
    """A figure. name: file name. caption: how to read it. views: states, the first of which paper shows. choosers: names and
    options by which views differ. height_px: on the page. along: zoom along x only. square: width at most the height."""

    name: str
    heading: str
    views: tuple[View, ...]
    caption: str = ""
    choosers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    height_px: int = 380
    along: bool = False
    square: bool = False


def log_ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    """Ticks of a logarithmic axis: 1, 2 and 5 times powers of ten; only the powers on long axes."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    leading = (1, 2, 5) if last - first <= _FAR_DECADES else (1,)
    places = [digit * 10.0**power for power in range(first, last + 1) for digit in leading]
    return tuple((place, f"{place:,.12g}") for place in places if low <= place <= high)


def whiskers(name: str, colour: str, ends: Sequence[tuple[float, float, float]]) -> Line:
    """Vertical bars. ends: x, low and high of each."""
    x = [place for at, _, _ in ends for place in (at, at, math.nan)]
    return Line(name, colour, x, [end for _, low, high in ends for end in (low, high, math.nan)])


def looks(count: int) -> list[tuple[str, Symbol]]:
    """Colours and symbols of `count` series."""
    return [(COLOURS[i % len(COLOURS)], SYMBOLS[i % len(SYMBOLS)]) for i in range(count)]
