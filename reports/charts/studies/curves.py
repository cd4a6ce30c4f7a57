"""Curves of a study: throughput, efficiency and memory as GPUs are added. Each is None without data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from scaleproof.reports.charts.chart import Band, Chart, ChartAxis, Line, Mark, Symbol, View, log_ticks, looks, whiskers
from scaleproof.reports.charts.style import GREY, INK
from scaleproof.reports.read.results import Case
from scaleproof.reports.read.study import StudyTable
from scaleproof.reports.text import percent, rate
from scaleproof.simulator.common.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd

# ratio of values from which axes are logarithmic
FAR: Final = 40
MOST_TICKS: Final = 14
_GIB: Final = 2.0**30
_MOST_CASES: Final = 200
# number of lines whose intervals are bands, which overlap
_MOST_BANDS: Final = 3
# throughputs that differ by less, and lie in each other's intervals, count as equal
EQUAL: Final = 0.05
# number of lines in a finding
_MOST_LINES_IN_FINDING: Final = 3

# A row of a study's points by column, and the rows of a line by x.
Row = Mapping[Any, Any]
Rows = Sequence[Row]


def throughput(study: StudyTable, measured: Sequence[Case] = ()) -> Chart | None:
    """Throughput of each strategy against the number of GPUs, with measured points."""

    def marks(name: str, rows: Rows, colour: str, symbol: Symbol) -> list[Mark]:
        known = [row for row in rows if _is_there(row["rate_low"])]
        return [
            *_intervals(name, known, colour, as_band=len(known) > 1 and len(study.lines) <= _MOST_BANDS),
            _line(name, rows, colour, symbol, [row["rate"] for row in rows], [_hover_text(study, row) for row in rows]),
        ]

    def overlay(lines: Mapping[str, Rows]) -> list[Mark]:
        return _ideal(study, lines) + _measured(study, measured)

    drawn = "Shaded" if len(study.lines) <= _MOST_BANDS else "Vertical bars"
    parts = [f"{drawn}: 90 % prediction interval."] if study.good["rate_low"].notna().any() else []
    parts += ["Dashed: linear scaling."] if study.across == "GPUs" else []
    caption = " ".join(parts)
    rates = study.good["rate"]
    far = study.across == "GPUs" and _is_far(study)
    y = ChartAxis(f"{study.unit}/s", far, log_ticks(rates.min(), rates.max()) if far else ())
    return _curves(study, ("throughput", "Throughput", caption), y, "rate", marks, overlay)


def efficiency(study: StudyTable) -> Chart | None:
    """Scaling efficiency: weak if known, else strong."""
    kind, column = ("weak", "efficiency") if study.good["efficiency"].notna().any() else ("strong", "strong_efficiency")

    def marks(name: str, rows: Rows, colour: str, symbol: Symbol) -> list[Mark]:
        texts = [f"{row['line']}\n{size_of(study, row)}\n{percent(row[column])} efficient" for row in rows]
        return [_line(name, rows, colour, symbol, [row[column] for row in rows], texts)]

    caption = f"Throughput per GPU relative to the smallest configuration that fits the model ({kind} scaling)."
    if len(study.lines) > 1:
        caption += " Each line has a baseline of its own: compare lines by throughput."
    y = ChartAxis(f"{kind} scaling efficiency", percent=True)
    return _curves(study, ("efficiency", "Efficiency", caption), y, column, marks)


def memory(study: StudyTable) -> Chart | None:
    """Memory of the fullest rank against its capacity, including points that do not fit."""

    def marks(name: str, rows: Rows, colour: str, symbol: Symbol) -> list[Mark]:
        texts = [f"{row['line']}\n{size_of(study, row)}\n{format_bytes(row['memory_bytes'])} a rank" for row in rows]
        return [_line(name, rows, colour, symbol, [row["memory_bytes"] / _GIB for row in rows], texts)]

    def overlay(lines: Mapping[str, Rows]) -> list[Mark]:
        known = {row["x"]: row["capacity_bytes"] / _GIB for rows in lines.values() for row in rows}
        ends = sorted((x, size) for x, size in known.items() if _is_there(size))
        return [Line("capacity of a rank", INK, [x for x, _ in ends], [size for _, size in ends], dashed=True)] if ends else []

    y = ChartAxis("memory of the fullest rank, GiB")
    return _curves(study, ("memory-scaling", "Memory", ""), y, "memory_bytes", marks, overlay, unfit=True)


def _intervals(name: str, rows: Rows, colour: str, as_band: bool) -> list[Mark]:
    """The 90 % intervals as a band, or as a vertical bar at each point."""
    if as_band:
        return [Band(name, colour, *([row[column] for row in rows] for column in ("x", "rate_low", "rate_high")))]
    return [whiskers(name, colour, [(row["x"], row["rate_low"], row["rate_high"]) for row in rows])] if rows else []


def _line(name: str, rows: Rows, colour: str, symbol: Symbol, y: Sequence[float], texts: Sequence[str]) -> Line:
    return Line(name, colour, [row["x"] for row in rows], y, texts, symbol)


def _is_there(value: float) -> bool:
    return value == value


def _curves(
    study: StudyTable, names: tuple[str, str, str], y: ChartAxis, column: str,
    marks: Callable[[str, Rows, str, Symbol], list[Mark]],
    overlay: Callable[[Mapping[str, Rows]], list[Mark]] = lambda lines: [], unfit: bool = False,
) -> Chart | None:  # fmt: skip
    """A view for each combination of circumstances; None unless there are several x. names: name, beginning
    of the heading, and caption of the chart. overlay: marks in addition to the lines. unfit: whether to show points that do
    not fit."""
    points = study.points[study.points["rate"].notna()] if unfit else study.good
    points = points[points[column].notna() & points["x"].notna()]
    if points["x"].nunique() < 2:
        return None
    look = dict(zip(study.lines, looks(len(study.lines)), strict=True))
    fastest = _fastest(points)
    x, views = _x_axis(study, points), []
    for choices in study.choices:
        lines = {line: fastest[choices, line] for line in look if (choices, line) in fastest}
        if lines:
            drawn = [mark for line, rows in lines.items() for mark in marks(line, rows, *look[line])]
            views.append(View(x, y, (*drawn, *overlay(lines)), _at_end(study, lines, column), choices))
    name, heading, caption = names
    choosers = tuple((one.name, one.words) for one in study.circumstances)
    heading += f" by {'number of GPUs' if study.across == 'GPUs' else study.across}"
    return Chart(name, heading, tuple(views), caption, choosers)


def _fastest(points: pd.DataFrame) -> dict[tuple[tuple[str, ...], str], list[Row]]:
    """The fastest point of each x, by circumstances and line."""
    found: dict[tuple[tuple[str, ...], str], dict[float, Row]] = {}
    for row in points.sort_values(["x", "rate"]).to_dict("records"):
        found.setdefault((row["choices"], row["line"]), {})[row["x"]] = row
    return {key: list(rows.values()) for key, rows in found.items()}


def _at_end(study: StudyTable, lines: Mapping[str, Rows], column: str) -> str:
    """The values of the first lines at the largest x: '32 GPUs: ring 6,639 images/s, servers 4,273 images/s'."""
    last = max(rows[-1]["x"] for rows in lines.values())
    ends = {line: rows[-1] for line, rows in lines.items() if rows[-1]["x"] == last}
    if column == "rate" and len(lines) > 1 and _coincide(list(lines.values())):
        return f"No difference: {' and '.join(lines)} lie within each other's 90 % interval"
    parts = [f"{line} {_words(study, column, end[column])}" for line, end in list(ends.items())[:_MOST_LINES_IN_FINDING]]
    size = size_of(study, next(iter(ends.values())))
    return f"{size[:1].upper()}{size[1:]}: {', '.join(parts)}"


def _coincide(lines: Sequence[Rows]) -> bool:
    """Whether each point of all lines is close to the point of the others at the same x, and in its interval."""
    by_x: dict[float, list[Row]] = {}
    for rows in lines:
        for row in rows:
            by_x.setdefault(row["x"], []).append(row)
    pairs = [(one, two) for rows in by_x.values() for one in rows for two in rows if one is not two]
    return bool(pairs) and all(
        two["rate_low"] <= one["rate"] <= two["rate_high"] and abs(one["rate"] / two["rate"] - 1) < EQUAL for one, two in pairs
    )


def _words(study: StudyTable, column: str, value: float) -> str:
    if column == "rate":
        return f"{rate(value)} {study.unit}/s"
    return format_bytes(value) if column == "memory_bytes" else percent(value)


def size_of(study: StudyTable, row: Row) -> str:
    """'32 GPUs', of a point."""
    return f"{row['x_words']} GPUs" if study.across == "GPUs" else f"{study.across} {row['x_words']}"


def _is_far(study: StudyTable) -> bool:
    x = study.good["x"]
    return bool(x.min() > 0 and x.max() > FAR * x.min())


def _x_axis(study: StudyTable, points: pd.DataFrame) -> ChartAxis:
    words = dict(zip(points["x"].tolist(), points["x_words"].tolist(), strict=True))
    far = _is_far(study)
    if len(words) <= MOST_TICKS:
        return ChartAxis(study.across, far, tuple(sorted(words.items())))
    return ChartAxis(study.across, far, log_ticks(min(words), max(words)) if far else ())


def _hover_text(study: StudyTable, row: Row) -> str:
    """The hover text of a point."""
    between = f" ({rate(row['rate_low'])} to {rate(row['rate_high'])})" if _is_there(row["rate_low"]) else ""
    return "\n".join([row["line"], size_of(study, row), f"{rate(row['rate'])} {study.unit}/s{between}"])


def _ideal(study: StudyTable, lines: Mapping[str, Rows]) -> list[Mark]:
    """Linear scaling of the first line."""
    known = [row for row in next(iter(lines.values())) if _is_there(row["efficiency"])]
    if study.across != "GPUs" or not known:
        return []
    first = known[0]
    each = first["rate"] / first["gpus"] / first["efficiency"]
    ends = [first["x"], max(rows[-1]["x"] for rows in lines.values())]
    return [Line("linear scaling", GREY, ends, [each * end for end in ends], dashed=True)]


def _measured(study: StudyTable, cases: Sequence[Case]) -> list[Mark]:
    """Measured runs in the study's folder, if x is the number of training ranks."""
    if study.across != "GPUs" or study.unit == "tokens":
        return []
    runs = [case.measured for case in cases[:_MOST_CASES] if case.measured]
    texts = [f"{run.scenario}, measured\n{run.compute_ranks:,} ranks\n{rate(run.samples_per_s)} {study.unit}/s" for run in runs]
    x, y = [float(run.compute_ranks) for run in runs], [run.samples_per_s for run in runs]
    return [Line("measured", INK, x, y, texts, "diamond", joined=False)] if runs else []
