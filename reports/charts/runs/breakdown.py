"""Bar charts of runs: step time by cause, and memory by holder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from scaleproof.reports.charts.chart import Boxes, Chart, ChartAxis, Line, Mark, View
from scaleproof.reports.charts.style import CAUSE_COLOURS, COMMUNICATION_COLOURS, GREY, INK, MEMORY_COLOURS, label
from scaleproof.reports.text import cause_words, percent, spaced, time_unit
from scaleproof.simulator.common.units import format_bytes, format_time_s
from scaleproof.simulator.run.run import BREAKDOWN, Run

# maximum number of bars in a figure; the tables have all
MOST_BARS: Final = 48
_EXPOSED: Final = "exposed_communication"
_EXPOSED_KIND: Final = "exposed {} communication"
_BAR: Final = 0.8
_BAR_PX: Final = 26
_GAP: Final = 0.45
_GIB: Final = 2.0**30


class Bar(NamedTuple):
    """A bar: group, words next to the bar, and run. Bars of one group are close together."""

    group: str
    words: str
    run: Run


def breakdown(bars: Sequence[Bar]) -> Chart | None:
    """Milliseconds a step by cause; None without data."""
    bars = [bar for bar in bars if bar.run.breakdown_s][:MOST_BARS]
    if not bars:
        return None
    unit, per_s = time_unit(max(bar.run.step_time_s for bar in bars))
    # a lump on one side could not be compared with kinds on the other
    by_kind = all(bar.run.communication for bar in bars if bar.run.breakdown_s.get(_EXPOSED, 0.0) > 0)
    # the remainder may be slightly negative, which a stack cannot show
    parts = [{cause: max(0.0, part_s) * per_s for cause, part_s in _causes_s(bar.run, by_kind).items()} for bar in bars]

    def hover_text(row: int, cause: str) -> str:
        run, part_s = bars[row].run, parts[row][cause] / per_s
        share = percent(part_s / run.step_time_s)
        return f"{_name(bars[row])}\n{cause_words(cause)}: {format_time_s(part_s)}, {share} of the step"

    rows = _rows(bars)
    marks = _stacked(rows, parts, _cause_colours(), hover_text)
    x = ChartAxis(f"step time, {unit}", limits=(0.0, max(sum(part.values()) for part in parts) * 1.04 or 1.0))
    view = View(x, _row_axis(bars, rows), tuple(marks), _breakdown_finding([bar.run for bar in bars]))
    caption = "Mean step time per rank, by cause."
    return Chart("breakdown", "Time per step by cause", (view,), caption, height_px=_height_px(rows))


def _causes_s(run: Run, by_kind: bool) -> dict[str, float]:
    """Seconds of a step by cause; by_kind: with exposed communication by parallel dimension."""
    causes_s = {cause: run.breakdown_s.get(cause, 0.0) for cause in BREAKDOWN}
    if by_kind and run.communication:
        del causes_s[_EXPOSED]
        for part in run.communication:
            known = part.dimension in COMMUNICATION_COLOURS
            name = _EXPOSED_KIND.format(part.dimension if known else "other")
            causes_s[name] = causes_s.get(name, 0.0) + part.exposed_s
    return causes_s


def _cause_colours() -> dict[str, str]:
    """Colours of causes in the order of a bar, with those of exposed communication by dimension next to that of the whole."""
    kinds = {_EXPOSED_KIND.format(dimension): colour for dimension, colour in COMMUNICATION_COLOURS.items()}
    colours: dict[str, str] = {}
    for cause, colour in CAUSE_COLOURS.items():
        colours |= {cause: colour} | (kinds if cause == _EXPOSED else {})
    return colours


def _breakdown_finding(runs: Sequence[Run]) -> str:
    """The largest causes, over measured runs if there are any."""
    measured = [run for run in runs if run.origin == "measured"] or list(runs)
    total_s = sum(run.step_time_s for run in measured)
    parts_s = {cause: sum(run.breakdown_s.get(cause, 0.0) for run in measured) for cause in BREAKDOWN}
    first, second = sorted(parts_s, key=lambda cause: parts_s[cause], reverse=True)[:2]
    shares = [
        f"{cause_words(cause)} takes {percent(parts_s[cause] / total_s)}" for cause in (first, second) if parts_s[cause] > 0
    ]
    return f"Of {measured[0].origin} time, {' and '.join(shares)}" if shares else ""


def memory(bars: Sequence[Bar]) -> Chart | None:
    """GiB of the fullest rank by holder, against its capacity; None without data."""
    bars = [bar for bar in bars if bar.run.memory_bytes][:MOST_BARS]
    if not bars:
        return None
    used = [{name: max(0.0, size) / _GIB for name, size in (bar.run.memory_bytes or {}).items()} for bar in bars]
    # holders that are not known come from folders of other versions
    colours = MEMORY_COLOURS | {name: GREY for part in used for name in part if name not in MEMORY_COLOURS}

    def hover_text(row: int, name: str) -> str:
        return f"{_name(bars[row])}\n{spaced(name)}: {format_bytes(used[row][name] * _GIB)}"

    rows = _rows(bars)
    marks: list[Mark] = list(_stacked(rows, used, colours, hover_text))
    capacities = [(bar.run.capacity_bytes or 0.0) / _GIB for bar in bars]
    for row, capacity, bar in zip(rows, capacities, bars, strict=True):
        if capacity:
            words = f"{_name(bar)}\ncapacity: {format_bytes(capacity * _GIB)}"
            marks.append(Line("capacity of a rank", INK, [capacity] * 2, [row - 0.5, row + 0.5], [words] * 2))
    ends = [*capacities, *(sum(part.values()) for part in used)]
    x = ChartAxis("memory of the fullest rank, GiB", limits=(0.0, max(ends) * 1.04))
    view = View(x, _row_axis(bars, rows), tuple(marks), _memory_finding([bar.run for bar in bars]))
    caption = "Peak memory of the fullest rank, by use. Line: capacity."
    return Chart("memory", "Memory per rank against capacity", (view,), caption, height_px=_height_px(rows))


def _memory_finding(runs: Sequence[Run]) -> str:
    sizes = [
        (run.memory_bytes_per_rank, run.capacity_bytes) for run in runs if run.memory_bytes_per_rank and run.capacity_bytes
    ]
    if not sizes:
        return ""
    over = sum(size > capacity for size, capacity in sizes if size and capacity)
    if over and len(sizes) == 1:
        return "The run needs more memory than a rank has"
    if over:
        return f"{over} of {len(sizes)} runs need more memory than a rank has"
    fullest = max(size / capacity for size, capacity in sizes if size and capacity)
    return f"The fullest rank uses {percent(fullest)} of its memory"


def _stacked(
    rows: Sequence[float],
    parts: Sequence[Mapping[str, float]],
    colours: Mapping[str, str],
    hover_text: Callable[[int, str], str],
) -> list[Boxes]:
    """Boxes of the parts of each row, stacked in order."""
    ends = [0.0] * len(rows)
    result = []
    for name, colour in colours.items():
        there = [i for i, part in enumerate(parts) if part.get(name, 0.0) > 0]
        widths = [parts[i][name] for i in there]
        places = [ends[i] for i in there], widths, [rows[i] for i in there], [_BAR] * len(there)
        if there:
            result.append(Boxes(cause_words(name), colour, *places, [hover_text(i, name) for i in there]))
        for i, width in zip(there, widths, strict=True):
            ends[i] += width
    return result


def _rows(bars: Sequence[Bar]) -> list[float]:
    """Vertical positions: the bars of a group close together, a gap between groups."""
    position, rows = 0.0, []
    for index, bar in enumerate(bars):
        position += 1.0 if index and bars[index - 1].group == bar.group else 1.0 + _GAP
        rows.append(position)
    return rows


def _row_axis(bars: Sequence[Bar], rows: Sequence[float]) -> ChartAxis:
    names = [
        bar.words if i and bars[i - 1].group == bar.group else f"{label(bar.group)} {bar.words}".strip()
        for i, bar in enumerate(bars)
    ]
    return ChartAxis("", ticks=tuple(zip(rows, names, strict=True)), limits=(rows[-1] + 0.7, rows[0] - 0.7))


def _name(bar: Bar) -> str:
    return f"{bar.group} {bar.words}".strip()


def _height_px(rows: Sequence[float]) -> int:
    return round(110 + _BAR_PX * (rows[-1] - rows[0] + 1.4))
