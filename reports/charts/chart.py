"""Chart: what a figure shows, apart from how it is drawn: `reports.charts.interactive` for the page, `reports.charts.still`
for paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from scaleproof.reports.charts.style import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION, YELLOW

Symbol = Literal["circle", "square", "triangle-up", "diamond", "x", "cross", "star"]
# What tells series apart: colour and shape, so that either is enough. More of them than colours come again in other shapes.
COLOURS: Final = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
SYMBOLS: Final[tuple[Symbol, ...]] = ("circle", "square", "triangle-up", "diamond", "x", "star", "cross")
CELL_COLOURS: Final = (*COLOURS, YELLOW)
_FAR_DECADES: Final = 3


@dataclass(frozen=True)
class ChartAxis:
    """title: with the unit. ticks: places and what stands there, where that is not for the drawing to choose.
    zero: whether it begins there."""

    title: str
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    limits: tuple[float, float] | None = None
    percent: bool = False
    zero: bool = True


@dataclass(frozen=True)
class Line:
    """Points in order, joined where `joined`, with a symbol each where there is one. texts: of each point, on hover. name: in
    the legend, where those of one name are shown and hidden together; none where it is ""."""

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
    """What lies between low and high along x."""

    name: str
    colour: str
    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class Boxes:
    """Rectangles from `left` on, as wide as `width`, around `middle`, as high as `height`. labels: written into them."""

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
    """One state of a chart. finding: what it shows, in a line. choices: of each of the chart's choosers, which leads here."""

    x: ChartAxis
    y: ChartAxis
    marks: tuple[Mark, ...]
    finding: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chart:
    """name: its files' name. caption: how to read it. views: the first is what paper shows. choosers: what its views differ in,
    each with what there is to choose from. height_px: on the page. along: it is zoomed along x alone. square: it is no wider
    than high."""

    name: str
    heading: str
    views: tuple[View, ...]
    caption: str = ""
    choosers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    height_px: int = 380
    along: bool = False
    square: bool = False


def log_ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    """1, 2 and 5 of each power of ten between them, on axes that reach far the powers alone."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    leading = (1, 2, 5) if last - first <= _FAR_DECADES else (1,)
    places = [digit * 10.0**power for power in range(first, last + 1) for digit in leading]
    return tuple((place, f"{place:,.12g}") for place in places if low <= place <= high)


def looks(count: int) -> list[tuple[str, Symbol]]:
    """Colour and symbol for so many series."""
    return [(COLOURS[i % len(COLOURS)], SYMBOLS[i % len(SYMBOLS)]) for i in range(count)]
