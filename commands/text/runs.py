"""Console tables and JSON data of measured runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from scaleproof.commands.text.tables import table
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.run.step_times import StepComparison
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.results import KeptRun, is_right

# Marks a run with warnings.
MARK: Final = "!"
_VERDICT: Final = "trained correctly"
# Widths of the columns whose cells are not known before the first row is printed.
_WIDTHS: Final = {"ranks": 5, "step time": 18, "": 1, "on": len("cluster, paced"), _VERDICT: 18}
# Percentiles of single steps that are printed, and widths of the columns, those of the tables of reconcile.
_PERCENTILES: Final = ("p50", "p90", "p99")
_STEP_WIDTHS: Final = (24, 10, 10)


class RunTable:
    """A table that is printed row by row as runs are measured. verified: whether runs are compared with one process."""

    def __init__(self, scenarios: Iterable[Scenario], verified: bool) -> None:
        self._widths = {"scenario": max(len(scenario.name) for scenario in scenarios)} | _WIDTHS
        if not verified:
            del self._widths[_VERDICT]

    def head(self, run: Run) -> str:
        """The column titles, after a line about latency if the network is emulated."""
        titles = self._line({name: name for name in self._widths})
        if "link rate" not in run.provenance:
            return titles
        # the requested latency after the comma differs between scenarios
        latency = run.provenance["latency"].partition(",")[0]
        return f"netlab: links are tested before each run; latency: {latency}\n{titles}"

    def row(self, run: Run, note: str = "") -> str:
        """The line of a run, in columns of the table's widths."""
        return self._line(_cells(run) | {"note": note})

    def _line(self, cells: Mapping[str, str]) -> str:
        return "\n".join(_aligned([cells], [*self._widths, "note"], list(self._widths.values())))


def listing(kept: Sequence[KeptRun], above: Path) -> str:
    """A table of runs in subfolders of `above`. A host that all of them share is given once, in a column title."""
    runs = [one.run for one in kept if one.run is not None]
    hosts = {run.provenance.get("host", "") for run in runs}
    where, host = ("on", ["host"]) if len(hosts) != 1 else (f"on {min(hosts)}", [])
    names = ["scenario", "strategy", "ranks", "step time", "", where, *host, "date"]
    names += [_VERDICT] if any(run.verified for run in runs) else []
    titles = {name: name for name in names}
    head, *rows = _aligned([titles, *(_kept_cells(run, where) for run in runs)], [*names, "note"])
    lines = iter(rows)
    damaged = (f"{one.folder.relative_to(above)}: damaged: {one.problem}" if one.run is None else next(lines) for one in kept)
    return "\n".join([head, *damaged])


def _aligned(rows: Iterable[Mapping[str, str]], columns: Sequence[str], widths: Sequence[int] = ()) -> list[str]:
    align = "".join(">" if name in ("ranks", "step time") else "<" for name in columns)
    return table([[row.get(name, "") for name in columns] for row in rows], align, widths, gap=1)


def describe_steps(found: StepComparison | None) -> list[str]:
    """Lines with predicted and measured percentiles of single steps, and the distances of their distributions."""
    if found is None:
        return []
    sides = found.predicted_s, found.measured_s
    rows = [(f"  step {name}", *(format_time_s(side[name]) for side in sides)) for name in _PERCENTILES]
    distances = f"{found.distance:.2f}, of shapes {found.distance_of_shapes:.2f}"
    return [*table(rows, "<>>", _STEP_WIDTHS, gap=1), f"  KS distance of {found.steps} steps: {distances}"]


def plain(kept: KeptRun) -> dict[str, Any]:
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
        "notes": list(run.notes),
    }


def share(run: Run, name: str) -> str:
    """A value of the comparison with one process, to one digit."""
    return f"{getattr(run.verified, name):.1g}" if run.verified else ""


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
