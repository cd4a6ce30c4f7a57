"""Console text of a strategy map: the letter of the fastest strategy at each place, a legend, and the borders."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from string import ascii_uppercase
from typing import Final

from scaleproof.commands.text.tables import table, wrapped
from scaleproof.simulator.analysis.crossover.crossover import SIMILAR, TOLERANCE, Border, Crossover, Point
from scaleproof.simulator.common.units import format_percent, format_range

_WIDTH: Final = 64
_NONE: Final = "."
_TICKS: Final = 3


def describe(found: Crossover) -> str:
    """Console text of a strategy map."""
    letters = dict(zip(found.strategies, ascii_uppercase, strict=False)) | {"": _NONE}
    longest = max(map(len, found.strategies))
    texts = [found.y.text(value) for value in found.y.values]
    margin = max(map(len, texts))
    rows = {text: _row(found, value, letters) for value, text in zip(found.y.values, texts, strict=True)}
    lines = wrapped(f"{found.scenario}: {found.best}, by {found.x.name} and {found.y.name}")
    lines += [line for name in found.strategies for line in _legend(found, name, f"  {letters[name]}  {name:<{longest}}  ")]
    lines += [*_infeasible(found, letters), "", f"  {found.y.name}"]
    lines += [f"  {text:>{margin}} │{rows[text]}" for text in reversed(texts)]
    lines += [f"  {'':>{margin}} └{'─' * _WIDTH}", *_scale(found, margin), *_key("".join(rows.values())), ""]
    return "\n".join([*lines, *_borders(found)])


def _legend(found: Crossover, name: str, begin: str) -> list[str]:
    """The meaning of a letter: strategy and framework."""
    return wrapped("; ".join(filter(None, (found.strategies[name], found.framework_words(name)))), begin, " " * len(begin))


def _infeasible(found: Crossover, letters: dict[str, str]) -> Iterator[str]:
    """Strategies that are infeasible at some points, with the reason; those with the same reason share a line."""
    reasons: dict[str, list[str]] = {}
    for name in found.strategies:
        points = [point for point in found.points if point.strategy == name]
        wrong, large = [point for point in points if point.problem], [point for point in points if point.fits is False]
        if large:
            reasons.setdefault(f"do not fit into memory at {len(large)} of {len(points)} points", []).append(letters[name])
        if wrong:
            reason = f"are not valid at {len(wrong)} of {len(points)} points: {wrong[0].problem}"
            reasons.setdefault(reason, []).append(letters[name])
    for reason, names in reasons.items():
        text = f"{', '.join(names)} {reason if len(names) > 1 else _singular(reason)}"
        yield from wrapped(text, "  ", "    ")


def _singular(reason: str) -> str:
    return f"is{reason.removeprefix('are')}" if reason.startswith("are") else f"does{reason.removeprefix('do')}"


def _row(found: Crossover, y: float, letters: dict[str, str]) -> str:
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


def _scale(found: Crossover, margin: int) -> Iterator[str]:
    """The labels of the x axis: values at both ends and in the middle."""
    first, last = (math.log(found.x.values[end]) for end in (0, -1))
    line = [" "] * _WIDTH
    for tick in range(_TICKS):
        share = tick / (_TICKS - 1)
        value = math.exp(first + (last - first) * share)
        text = found.x.text(round(value) if found.x.is_whole else value)
        begin = min(max(0, round(share * (_WIDTH - 1)) - len(text) // 2), _WIDTH - len(text))
        line[begin : begin + len(text)] = text
    yield f"  {'':>{margin}}  {''.join(line)}".rstrip()
    yield f"  {'':>{margin}}  {found.x.name:^{_WIDTH}}".rstrip()


def _key(rows: str) -> Iterator[str]:
    """Explanations of lower-case letters and of the sign for no strategy."""
    if rows.upper() != rows:
        yield "  lower case: a strategy that does not fit into its devices' memory would be faster"
    if _NONE in rows:
        yield f"  {_NONE}  no strategy is valid and fits into its devices' memory"


def _borders(found: Crossover) -> Iterator[str]:
    if not found.borders:
        yield "no borders: the same strategy is fastest along each row"
        return
    yield f"borders (accuracy {format_percent(TOLERANCE, 0)})"
    changes = ((border, f"{border.below or 'none'} → {border.above or 'none'}") for border in found.borders)
    rows = (
        (found.y.text(border.y), f"{change} from {found.x.text(border.x)} on{_interval(found, border)}")
        for border, change in changes
    )
    yield from table(rows, "><", indent="  ")


def _interval(found: Crossover, border: Border) -> str:
    """The 90 % interval of a border."""
    if border.low is None or border.high is None:
        return ""
    low = f"{found.x.text(border.low)}" if border.low else "below the map"
    high = f"{found.x.text(border.high)}" if math.isfinite(border.high) else "beyond it"
    if not border.low and not math.isfinite(border.high):
        return "; the two are too close along the whole row to locate it"
    return f"; 90 % interval {format_range(low, high, '-')}"
