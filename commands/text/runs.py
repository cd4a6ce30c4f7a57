"""Console tables and JSON data of measured runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.results import Kept, is_right

# Marks a run with warnings.
MARK: Final = "!"
_WIDEST_NAME: Final = 40
# Width of a column whose cells are not known before the first row is printed.
_STEP_TIME_WIDTH: Final = 18
_RIGHT: Final = frozenset({"ranks", "step time"})
_VERDICT: Final = "trained correctly"
_VERDICT_WIDTH: Final = 18

_Row = Mapping[str, str]


class Table:
    """A table that is printed row by row as runs are measured. verified: whether runs are compared with one process."""

    def __init__(self, scenarios: Iterable[Scenario], verified: bool) -> None:
        self._widths = {
            "scenario": _name_width(scenario.name for scenario in scenarios),
            "ranks": 5,
            "step time": _STEP_TIME_WIDTH,
            "": 1,
            "on": len("cluster, paced"),
            **({_VERDICT: _VERDICT_WIDTH} if verified else {}),
            "note": 0,
        }

    def head(self, run: Run) -> str:
        """The column titles, after a line about latency if the network is emulated."""
        titles = _line(dict(zip(self._widths, self._widths, strict=True)) | {"note": ""}, self._widths)
        provenance = run.provenance
        if "link rate" not in provenance:
            return titles
        # the requested latency after the comma differs between scenarios
        latency = provenance["latency"].partition(",")[0]
        return f"netlab: links are tested before each run; latency: {latency}\n{titles}"

    def row(self, run: Run, note: str = "") -> str:
        return _line(_cells(run) | {"note": note}, self._widths)


def listing(kept: Sequence[Kept], above: Path) -> str:
    """A table of runs in subfolders of `above`. A host that all of them share is given once, in a column title."""
    runs = [one.run for one in kept if one.run is not None]
    hosts = {run.provenance.get("host", "") for run in runs}
    where, host = ("on", ["host"]) if len(hosts) != 1 else (f"on {min(hosts)}", [])
    names = ["scenario", "strategy", "ranks", "step time", "", where, *host, "date"]
    names += [_VERDICT] if any(run.verified for run in runs) else []
    rows = [None if one.run is None else _kept_cells(one.run, where) for one in kept]
    readable = [row for row in rows if row is not None]
    widths = {name: max([len(name), *(len(row[name]) for row in readable)]) for name in names}
    widths |= {"scenario": _name_width(run.scenario for run in runs), "note": 0}
    lines = [_line({name: name for name in names} | {"note": ""}, widths)]
    for one, row in zip(kept, rows, strict=True):
        lines.append(f"{one.folder.relative_to(above)}: damaged: {one.problem}" if row is None else _line(row, widths))
    return "\n".join(lines)


def plain(kept: Kept) -> dict[str, Any]:
    """A run of the list as data for JSON."""
    run = kept.run
    if run is None:
        return {"folder": str(kept.folder), "damaged": kept.problem}
    provenance = run.provenance
    return {
        "folder": str(kept.folder),
        "scenario": run.scenario,
        "strategy": run.strategy,
        "ranks": run.ranks,
        "step_time_s": run.step_time_s,
        "step_time_interval_s": run.step_time_interval_s,
        "step_time_min_s": min(run.step_times_s, default=None),
        "step_time_max_s": max(run.step_times_s, default=None),
        "compute": run.compute,
        **{name: provenance.get(name) for name in ("on", "host", "date", "partial")},
        "trained_rightly": is_right(run),
        "deviation": run.verified.deviation if run.verified else None,
        "warnings": list(run.warnings),
    }


def share(run: Run, name: str) -> str:
    """A value of the comparison with one process, to one digit."""
    return f"{getattr(run.verified, name):.1g}" if run.verified else ""


def _name_width(names: Iterable[str]) -> int:
    return min(_WIDEST_NAME, max(map(len, ("scenario", *names))))


def _line(cells: _Row, widths: Mapping[str, int]) -> str:
    return " ".join(
        cells[name].rjust(width) if name in _RIGHT else f"{cells[name]:<{width}}" for name, width in widths.items()
    ).rstrip()


def _cells(run: Run) -> dict[str, str]:
    return {
        "scenario": run.scenario,
        "ranks": str(run.ranks),
        "step time": _step_time(run),
        "": MARK if run.warnings else "",
        "on": ", ".join(filter(None, [run.provenance.get("on"), run.compute])),
        _VERDICT: _verdict(run),
    }


def _kept_cells(run: Run, where: str) -> dict[str, str]:
    provenance, cells = run.provenance, _cells(run)
    return cells | {
        "strategy": run.strategy,
        where: cells["on"],
        "host": provenance.get("host", ""),
        "date": _date(provenance.get("date", "")),
        "note": f"partial, {provenance['partial']}" if "partial" in provenance else "",
    }


def _date(text: str) -> str:
    """A date to the minute, without the current year."""
    return text[:16].replace("T", " ").removeprefix(f"{datetime.now(UTC).year}-")


def _step_time(run: Run) -> str:
    """'215 ms ± 3.1 ms' where its 95 % confidence interval is known."""
    if run.step_time_interval_s is None:
        return format_time_s(run.step_time_s)
    low_s, high_s = run.step_time_interval_s
    return f"{format_time_s(run.step_time_s)} ± {format_time_s((high_s - low_s) / 2)}"


def _verdict(run: Run) -> str:
    right = is_right(run)
    return "not verified" if right is None else f"{'yes' if right else 'no'}, off by {share(run, 'deviation')}"
