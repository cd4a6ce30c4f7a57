"""The numbers of a page as CSV, in SI units and full precision."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from scaleproof.reports.read.results import Case
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.run.run import BREAKDOWN, Run

if TYPE_CHECKING:
    import pandas as pd

_Cell = str | float | int | None


def cases_csv(cases: Sequence[Case]) -> str:
    """One row per case: step time, samples/s and scaling efficiency of both sides, and the error."""
    names = ["step_time_s", "step_time_p10_s", "step_time_p90_s", "samples_per_s", "weak_efficiency", "strong_efficiency"]
    header = ["scenario", "family", "strategy", "framework", "framework_is_default", "ranks", "compute_ranks"]
    header += [f"{side}_{name}" for side in ("predicted", "measured") for name in names] + ["error", "failure"]
    return rows_csv(header, (_case_row(case) for case in cases))


def _case_row(case: Case) -> list[_Cell]:
    run = case.predicted
    framework = (run.framework, run.framework_is_default) if run and run.framework else (None, None)
    row: list[_Cell] = [case.scenario, case.family, case.strategy, *framework, case.ranks, case.compute_ranks]
    return [*row, *_side(case.predicted), *_side(case.measured), case.error, case.failure]


def _side(run: Run | None) -> list[_Cell]:
    if run is None:
        return [None] * 6
    p10_s, p90_s = step_range_s(run) or (None, None)
    efficiency = run.efficiency or {}
    return [run.step_time_s, p10_s, p90_s, run.samples_per_s, efficiency.get("weak"), efficiency.get("strong")]


def step_range_s(run: Run) -> tuple[float, float] | None:
    """The 10th and the 90th percentile of the run's single steps; None when there are fewer than two."""
    if len(run.step_times_s) < 2:
        return None
    low, high = np.percentile(run.step_times_s, (10, 90))
    return float(low), float(high)


def phases_csv(cases: Sequence[Case]) -> str:
    """One row per case and phase: seconds per step and training rank."""
    return _parts_csv(cases, "phase", [phase.label for phase in Phase], "phase_s")


def breakdown_csv(cases: Sequence[Case]) -> str:
    """One row per case and cause: seconds per step, adding up to the step time."""
    return _parts_csv(cases, "cause", BREAKDOWN, "breakdown_s")


def _parts_csv(cases: Sequence[Case], part: str, parts: Sequence[str], field: str) -> str:
    def rows() -> Iterable[list[_Cell]]:
        for case in cases:
            sides = [getattr(run, field) if run else {} for run in (case.predicted, case.measured)]
            for name in parts:
                predicted_s, measured_s = (side.get(name) for side in sides)
                both = predicted_s is not None and measured_s is not None
                yield [case.scenario, name, predicted_s, measured_s, predicted_s - measured_s if both else None]

    return rows_csv(["scenario", part, "predicted_s", "measured_s", "difference_s"], rows())


def runs_csv(runs: Sequence[tuple[str, Run]], field: str) -> str:
    """One row per run and part of one of its mappings, such as `breakdown_s`."""
    unit = field.rpartition("_")[2]
    rows = ([name, part, value] for name, run in runs for part, value in (getattr(run, field) or {}).items())
    return rows_csv(["line", "part", unit], rows)


def frame_csv(frame: pd.DataFrame) -> str:
    """A table, numbers with nine digits; missing values are left empty."""
    plain = frame.astype(object).where(frame.notna(), None)
    rows = ([_shorter(cell) for cell in row] for row in plain.itertuples(index=False, name=None))
    return rows_csv([str(name) for name in plain.columns], rows)


def _shorter(cell: _Cell) -> _Cell:
    return float(f"{cell:.9g}") if isinstance(cell, float) else cell


def rows_csv(header: Sequence[str], rows: Iterable[list[_Cell]]) -> str:
    """A table in CSV; text that a spreadsheet would evaluate as a formula is quoted."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_inert(name) for name in header])
    writer.writerows([_inert(cell) for cell in row] for row in rows)
    return text.getvalue()


def _inert(cell: _Cell) -> _Cell:
    """Prefixes text that a spreadsheet would evaluate as a formula with an apostrophe."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
