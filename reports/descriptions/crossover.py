"""A strategy map as sections: which strategy is the fastest where, and the borders between them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from string import ascii_uppercase
from typing import Final

from scaleproof.reports.charts.chart import Chart
from scaleproof.reports.charts.crossover import strategy_map
from scaleproof.reports.sections import Column, Description, Section, Table
from scaleproof.reports.text import spaced
from scaleproof.simulator.analysis.crossover.axes import MapAxis
from scaleproof.simulator.analysis.crossover.crossover import SIMILAR, Border, Crossover, Point
from scaleproof.simulator.common.units import format_percent, format_range

_WIDTH: Final = 64
_NONE: Final = "."
_TICKS: Final = 3


def describe(found: Crossover) -> Description:
    """The description of a strategy map."""
    return Description(
        f"{found.scenario}: {found.best}, by {found.x.name} and {found.y.name}",
        _finding(found),
        sections=[
            Section("Map", found.best, charts=lambda: [picture(found)], brief=list(_letters(found))),
            _borders(found),
            Section("Strategies", "Strategies", tables=[_strategies(found)], notes=list(_refusals(found))),
        ],
    )


def picture(found: Crossover) -> Chart:
    """The chart of a strategy map."""
    return strategy_map(found, _finding(found))


def _finding(found: Crossover) -> str:
    """Where the only border of each row is, or the share of the grid that each strategy wins."""
    pairs = {(one.below, one.above) for one in found.borders if one.below and one.above}
    if len(pairs) == 1 and sorted(one.y for one in found.borders) == sorted(found.y.values):
        ((below, above),) = pairs
        ends = dict.fromkeys(found.x.text(end(one.x for one in found.borders)) for end in (min, max))
        return f"{found.scenario}: {above} is fastest from {' to '.join(ends)} on, {below} below"
    wins = Counter(filter(None, found.winners.values()))
    shares = [f"{name} in {format_percent(count / len(found.winners), 0)}" for name, count in wins.most_common()]
    return f"{found.scenario}: fastest is {', '.join(shares)} of the map" if shares else f"{found.scenario}: nothing fits"


def _borders(found: Crossover) -> Section:
    if not found.borders:
        return Section("Borders", "Borders", notes=["no borders: the same strategy is fastest along each row"])
    columns = [
        Column(_short(found.y), [found.y.text(one.y) for one in found.borders]),
        Column("fastest below", [one.below or "none" for one in found.borders], is_text=True),
        Column("from there on", [one.above or "none" for one in found.borders], is_text=True),
        Column(_short(found.x), [found.x.text(one.x) for one in found.borders]),
    ]
    if any(one.low is not None for one in found.borders):
        columns.append(Column("90 % interval", [_interval(found.x, one) for one in found.borders], is_text=True))
    heading = f"borders (accuracy {format_percent(found.tolerance, 0)})"
    return Section("Borders", heading, tables=[Table(columns)], is_headed=True)


def _short(axis: MapAxis) -> str:
    return spaced(axis.name.rpartition(".")[2])


def _interval(axis: MapAxis, border: Border) -> str:
    """The 90 % interval of a border; an end beyond the map is open."""
    if border.low is None:
        return "not known"
    if not border.low and border.high is None:
        return "the whole map: the two are too close"
    low = axis.text(border.low) if border.low else "below the map"
    return format_range(low, "beyond it" if border.high is None else axis.text(border.high))


def _strategies(found: Crossover) -> Table:
    columns = [
        Column("strategy", list(found.strategies), is_text=True),
        Column("what it is", list(found.strategies.values()), is_text=True),
        Column("framework", list(map(found.framework_words, found.strategies)), is_text=True),
    ]
    return Table(columns)


def _refusals(found: Crossover) -> Iterator[str]:
    """At how many points strategies cannot be trained, with the reason."""
    for name in found.strategies:
        points = [point for point in found.points if point.strategy == name]
        wrong, large = [point for point in points if point.problem], [point for point in points if point.fits is False]
        if large:
            yield f"{name} does not fit into memory at {len(large)} of {len(points)} points"
        if wrong:
            yield f"{name} is not valid at {len(wrong)} of {len(points)} points: {wrong[0].problem}"


def _letters(found: Crossover) -> Iterator[str]:
    """The map for consoles: a letter for the fastest strategy at each place, and what letters mean."""
    letters = dict(zip(found.strategies, ascii_uppercase, strict=False)) | {"": _NONE}
    texts = [found.y.text(value) for value in found.y.values]
    rows = [_row(found, value, letters) for value in found.y.values]
    margin = max(map(len, texts))
    yield found.y.name
    yield from (f"{text:>{margin}} │{row}" for text, row in zip(reversed(texts), reversed(rows), strict=True))
    yield f"{'':>{margin}} └{'─' * _WIDTH}"
    yield f"{'':>{margin}}  {_scale(found.x)}".rstrip()
    yield f"{'':>{margin}}  {found.x.name:^{_WIDTH}}".rstrip()
    yield ", ".join(f"{letters[name]}: {name}" for name in found.strategies)
    drawn = "".join(rows)
    if drawn.upper() != drawn:
        yield "lower case: a strategy that does not fit into its devices' memory would be faster"
    if _NONE in drawn:
        yield f"{_NONE}: no strategy is valid and fits into its devices' memory"


def _row(found: Crossover, y: float, letters: Mapping[str, str]) -> str:
    """Letters of the fastest strategy along x; lower case where one that does not fit into memory would be faster."""
    segments = found.segments(y)
    begins, (first, last) = [begin for begin, _ in segments], (math.log(found.x.values[end]) for end in (0, -1))
    row = ""
    for column in range(_WIDTH):
        x = math.exp(first + (last - first) * column / (_WIDTH - 1))
        place = max(bisect_right(begins, x), 1) - 1
        winner, end = segments[place][1], begins[place + 1] if place + 1 < len(begins) else math.inf
        # memory is known at grid points only: use the nearest one where the same strategy wins
        same_winner = [value for value in found.x.values if begins[place] <= value < end] or found.x.values
        nearest = min(same_winner, key=lambda value: abs(math.log(value / x)))
        here = [point for point in found.points if point.x == nearest and point.y == y]
        row += letters[winner].lower() if _is_beaten(here, winner) else letters[winner]
    return row


def _is_beaten(points: list[Point], winner: str) -> bool:
    """Whether a strategy that does not fit into memory would be faster than the winner."""
    rates = {point.strategy: point.pace for point in points}
    large = [rates[point.strategy] for point in points if point.fits is False]
    return max(large, default=0.0) > rates.get(winner, 0.0) * (1 + SIMILAR)


def _scale(axis: MapAxis) -> str:
    """The labels of the x axis: values at both ends and in the middle."""
    first, last = (math.log(axis.values[end]) for end in (0, -1))
    line = [" "] * _WIDTH
    for tick in range(_TICKS):
        share = tick / (_TICKS - 1)
        text = axis.rounded(math.exp(first + (last - first) * share))
        begin = min(max(0, round(share * (_WIDTH - 1)) - len(text) // 2), _WIDTH - len(text))
        line[begin : begin + len(text)] = text
    return "".join(line)
