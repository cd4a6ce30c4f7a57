"""Maps of a study: the fastest strategy by two fields, and trade-offs. Each is None without data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scaleproof.reports.charts.chart import CELL_COLOURS, Boxes, Chart, ChartAxis, Line, Mark, View, log_ticks, looks
from scaleproof.reports.charts.studies.curves import FAR, MOST_TICKS, size_of
from scaleproof.reports.charts.style import FAINT, INK, paler
from scaleproof.reports.read.ranking import NOTHING
from scaleproof.reports.read.study import StudyTable
from scaleproof.reports.text import percent, rate
from scaleproof.simulator.common.units import format_bytes, format_time_s, format_USD

if TYPE_CHECKING:
    import pandas as pd

_PALER: Final = 0.25
_MANY_CELLS: Final = 60
_GIB: Final = 2.0**30
# points from which on hover texts are short
_MANY_POINTS: Final = 1000
_EVEN: Final = "even"
# relative range below which an axis has nothing to trade
_LEAST_RANGE: Final = 0.03
_CAPTION: Final = "Lower left is better. Dashed: Pareto front."


def crossover(study: StudyTable) -> Chart | None:
    """The fastest strategy by two fields; None unless there are two strategies and two such fields."""
    import pandas as pd

    fields = [one for one in study.circumstances if len(one.words) > 1]
    good, unit = study.good, f"{study.unit}/s"
    if good.groupby(["x", "choices"])["gpus"].nunique().max() > 1:
        good, unit = good.assign(rate=good["rate"] / good["gpus"]), f"{unit} per GPU"
    if not study.strategies or len(study.lines) < 2 or not fields or good["x"].nunique() < 2:
        return None
    across = max(fields, key=lambda one: len(one.words))
    place = study.circumstances.index(across)
    others = [one for one in study.circumstances if one is not across]
    colours = {line: paler(CELL_COLOURS[i % len(CELL_COLOURS)], _PALER) for i, line in enumerate(study.lines)} | {"": FAINT}
    good = good.assign(column=[one[place] for one in good["choices"]])
    good["rest"] = pd.Series([_without(one, place) for one in good["choices"]], index=good.index, dtype=object)
    rests = dict.fromkeys(_without(one, place) for one in study.choices)
    rows = sorted(set(zip(good["x"].tolist(), good["x_words"].tolist(), strict=True)))
    views = []
    for rest in rests:
        mine = good[[one == rest for one in good["rest"]]]
        fastest = {key: cell.set_index("line")["rate"].to_dict() for key, cell in _cells(mine)}
        views.append(_map((study.across, unit), across.words, across.name, rows, fastest, colours, rest))
    caption = (
        f"Colour: the fastest alternative, by {unit}. Number: its lead over the second; even: less than {percent(NOTHING)}."
    )
    height = 130 + 44 * len(rows)
    choosers = tuple((one.name, one.words) for one in others)
    return Chart(
        "crossover",
        f"The fastest alternative by {study.across} and {across.name}",
        tuple(views),
        caption,
        choosers,
        height_px=height,
    )


def _without(choices: tuple[str, ...], place: int) -> tuple[str, ...]:
    return choices[:place] + choices[place + 1 :]


def _cells(points: pd.DataFrame) -> Any:
    """The fastest point of each strategy in each cell."""
    if points.empty:
        return []
    return points.loc[points.groupby(["x", "column", "line"])["rate"].idxmax()].groupby(["x", "column"])


def _map(
    names: tuple[str, str], columns: Sequence[str], name: str, rows: Sequence[tuple[float, str]],
    fastest: dict[tuple[float, str], dict[str, float]], colours: dict[str, str], choices: tuple[str, ...],
) -> View:  # fmt: skip
    """A view of the map. names: of its vertical axis, and of the unit of rates."""
    up, unit = names
    found: dict[str, list[tuple[int, int, str, str]]] = {}
    for i, words in enumerate(columns):
        for j, (x, x_words) in enumerate(rows):
            rates = sorted(fastest.get((x, words), {}).items(), key=lambda item: -item[1])
            winner = rates[0][0] if rates else ""
            lead = _lead(rates[0][1], rates[1][1]) if len(rates) > 1 else ""
            size = f"{x_words} GPUs" if up == "GPUs" else f"{up} {x_words}"
            words_of = [f"{line}: {rate(its)} {unit}" for line, its in rates] or ["none fits, or none is valid"]
            found.setdefault(winner, []).append((i, j, "\n".join([f"{size}, {name} {words}", *words_of]), lead))
    labelled = len(columns) * len(rows) <= _MANY_CELLS
    marks: list[Mark] = []
    for line in (*colours,):
        if line in found:
            columns_of, rows_of, texts, leads = zip(*found[line], strict=True)
            count = len(texts)
            places = [i - 0.48 for i in columns_of], [0.96] * count, [float(j) for j in rows_of], [0.94] * count
            marks.append(Boxes(line or "none", colours[line], *places, texts, leads if labelled else ()))
    title, ticks = _common_unit(name, columns)
    x_axis = ChartAxis(title, ticks=_thinned(ticks), limits=(-0.5, len(columns) - 0.5))
    y_axis = ChartAxis(up, ticks=_thinned([words for _, words in rows]), limits=(-0.5, len(rows) - 0.5))
    leads_of = [(line, lead) for line, cells in found.items() for *_, lead in cells]
    return View(x_axis, y_axis, tuple(marks), _map_finding(leads_of), choices)


def _lead(first: float, second: float) -> str:
    """The relative lead of the fastest strategy; _EVEN for a tie."""
    return _EVEN if first < (1 + NOTHING) * second else f"+{percent(first / second - 1)}"


def _common_unit(name: str, words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """'network bandwidth, Gbit/s' and bare numbers, if all words have the same unit."""
    numbers, units = zip(*(one.partition(" ")[::2] for one in words), strict=True)
    return (f"{name}, {units[0]}", numbers) if units[0] and len(set(units)) == 1 else (name, words)


def _map_finding(cells: Sequence[tuple[str, str]]) -> str:
    """The share of the map that each strategy wins. cells: winner and lead."""
    if len({line for line, _ in cells}) == 1:
        return f"{cells[0][0]} is the fastest everywhere" if cells[0][0] else ""
    counts = Counter(_EVEN if lead == _EVEN else line or "none" for line, lead in cells)
    shares = [f"{line} {percent(count / len(cells))}" for line, count in counts.most_common() if line != _EVEN]
    even = [f"even in {percent(counts[_EVEN] / len(cells))}"] if counts[_EVEN] else []
    return "The fastest, by share of the map: " + ", ".join([*shares, *even])


def _thinned(words: Sequence[str]) -> tuple[tuple[float, str], ...]:
    """Tick labels, thinned to a readable number."""
    every = -(-len(words) // MOST_TICKS)
    return tuple((float(i), text) for i, text in enumerate(words) if i % every == 0)


def pareto(study: StudyTable) -> list[Chart]:
    """Pareto fronts of time and memory, and of time and cost if known; none where there is nothing to trade."""
    good = study.good
    if len(good) < 3:
        return []
    per, amount = ("billion tokens", 1e9) if study.unit == "tokens" else (f"million {study.unit}", 1e6)
    hours = amount / good["rate"] / 3600
    charts = []
    for words, title, values in (
        ("memory", "memory of the fullest rank, GiB", good["memory_bytes"] / _GIB),
        ("cost", f"USD per million {study.unit}", good["cost_USD"]),
    ):
        known = good.assign(hours=hours, other=values)[values.notna()]
        if len(known) > 2 and min(_range(known["hours"]), _range(known["other"])) > _LEAST_RANGE:
            x, y = _along(f"hours for a {per}", known["hours"]), _along(title, known["other"], zero=False)
            front = _front(study, known, x, y)
            charts += [Chart(f"pareto-{words}", f"Time against {words}", (front,), _CAPTION)] if front else []
    return charts


def _range(values: pd.Series[Any]) -> float:
    """Relative difference of the largest and the smallest value."""
    return float(values.max() / values.min() - 1)


def _along(title: str, values: pd.Series[Any], zero: bool = True) -> ChartAxis:
    """An axis that is logarithmic if values span a large ratio."""
    far = bool(values.min() > 0 and values.max() > FAR * values.min())
    return ChartAxis(title, far, log_ticks(values.min(), values.max()) if far else (), zero=zero)


def _front(study: StudyTable, points: pd.DataFrame, x: ChartAxis, y: ChartAxis) -> View | None:
    """All points and the steps of the front; None if one point is the best in both."""
    marks: list[Mark] = []
    for line, (colour, symbol) in zip(study.lines, looks(len(study.lines)), strict=True):
        mine = points[points["line"] == line]
        texts = [_front_text(study, point, is_short=len(points) > _MANY_POINTS) for point in mine.to_dict("records")]
        if len(mine):
            marks.append(Line(line, colour, mine["hours"].tolist(), mine["other"].tolist(), texts, symbol, joined=False))
    ordered = points.sort_values(["hours", "other"])
    best = ordered[ordered["other"] < np.minimum.accumulate(np.append(np.inf, ordered["other"].to_numpy()[:-1]))]
    # a point is as good as any that is worse in one and equal in the other: steps
    steps = np.repeat(best["hours"].to_numpy(), 2)[1:], np.repeat(best["other"].to_numpy(), 2)[:-1]
    if len(best) < 2:
        return None
    marks.append(Line("Pareto front", INK, steps[0].tolist(), steps[1].tolist(), dashed=True))
    return View(x, y, tuple(marks), f"Pareto front: {len(best)} of {len(points):,} points")


def _front_text(study: StudyTable, point: Mapping[Any, Any], is_short: bool) -> str:
    """The hover text of a point; is_short: its circumstances by their values alone, for pages with many points."""
    if is_short:
        return ", ".join([point["line"], size_of(study, point), *point["choices"]])
    around = [f"{one.name} {words}" for one, words in zip(study.circumstances, point["choices"], strict=True)]
    cost = f", {format_USD(point['cost_USD'])} per million {study.unit}" if point["cost_USD"] == point["cost_USD"] else ""
    size = f", {format_bytes(point['memory_bytes'])} a rank" if point["memory_bytes"] == point["memory_bytes"] else ""
    hours = format_time_s(point["hours"] * 3600)
    return "\n".join([f"{point['line']}, {size_of(study, point)}", *around, f"{hours}{size}{cost}"])
