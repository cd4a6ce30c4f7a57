"""Published runs that are similar to predictions, and how well these were predicted, as a section."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scaleproof.reports.charts.chart import Chart
from scaleproof.reports.sections import Column, Section, Table
from scaleproof.simulator.analysis.evidence import Evidence, evidence
from scaleproof.simulator.common.units import format_change, format_range, format_time_s
from scaleproof.simulator.scenario.schema import Scenario

# predictions with evidence of their own, and published runs in the table of each
_MOST_PREDICTIONS: Final = 3
_MOST_RUNS: Final = 5
_NONE: Final = "no published run in the tables of this version is similar"


def summary(found: Evidence) -> str:
    """How many published runs are similar, and how well they are predicted."""
    return f"{found!r}; the nearest:" if found.runs else _NONE


def describe(found: Evidence) -> Section:
    """The evidence of one prediction."""
    return _section([("", found)])


def of_scenarios(predictions: Iterable[tuple[str, Scenario]]) -> Section:
    """The evidence of the first predictions that have some. predictions: names and scenarios."""
    return _section([(name, evidence(scenario)) for name, scenario in predictions])


def _section(predictions: list[tuple[str, Evidence]]) -> Section:
    known = [(name, found) for name, found in predictions if found.runs]
    if not known:
        intro = f"{_NONE[:1].upper()}{_NONE[1:]}: nothing here shows how accurate the prediction is."
        return Section("Evidence", "How accurate this is", intro)
    intro = "Published runs most like this prediction, and how well the same simulator predicts them."
    if without := [name for name, found in predictions if not found.runs]:
        intro += f" None is similar to {', '.join(without)}."
    return Section(
        "Evidence",
        "How accurate this is",
        intro,
        tables=[_table(found, name if len(known) > 1 else "") for name, found in known[:_MOST_PREDICTIONS]],
        charts=lambda: _charts(known[0][1]),
        notes=["scaleproof predict published:RUN predicts one of them"],
    )


def _charts(found: Evidence) -> list[Chart | None]:
    """Their measured and predicted times. Consoles do not draw them, and need not import how."""
    from scaleproof.reports.charts.runs.accuracy import evidence as drawn

    return [drawn(found.runs)]


def _table(found: Evidence, heading: str) -> Table:
    """The nearest of the published runs."""
    runs = found.runs[:_MOST_RUNS]
    columns = [
        Column("published run", [run.id for run in runs], is_text=True),
        Column("framework", [run.framework for run in runs], is_text=True, under="published run", is_detail=True),
        Column("model", [run.model for run in runs], is_text=True),
        Column("GPUs", [f"{run.gpus} {run.device}" for run in runs]),
        Column("layout", [run.layout for run in runs], is_text=True),
        Column("measured", [format_time_s(run.measured_s) for run in runs]),
        Column("predicted", [format_time_s(run.predicted_s) for run in runs]),
        Column(
            "90 %",
            [format_range(*map(format_time_s, (run.low_s, run.high_s))) for run in runs],
            under="predicted",
            is_detail=True,
        ),
        Column("error", [format_change(run.error) for run in runs]),
        Column("in 90 %", ["yes" if run.is_covered else "no" for run in runs], is_text=True),
    ]
    return Table(columns, heading, [summary(found)])
