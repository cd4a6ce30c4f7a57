"""The section of a page with published runs that are similar to its predictions, and how well these were predicted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from scaleproof.reports.charts.runs.accuracy import evidence as evidence_chart
from scaleproof.reports.pages.sections import Section, pictured
from scaleproof.reports.text import duration, percent, signed_percent
from scaleproof.simulator.analysis.evidence import PublishedRun, evidence
from scaleproof.simulator.common.units import counted
from scaleproof.simulator.scenario.schema import Scenario

# predictions with evidence of their own on a page, and published runs in the table of each
_MOST_PREDICTIONS: Final = 3
_MOST_RUNS: Final = 5


class _Row(NamedTuple):
    """A published run in words."""

    id: str
    model: str
    framework: str
    gpus: str
    layout: str
    measured: str
    predicted: str
    interval: str
    error: str
    is_covered: bool


class _Block(NamedTuple):
    """The evidence of one prediction."""

    name: str
    summary: str
    rows: list[_Row]


def evidence_section(predictions: Iterable[tuple[str, Scenario]]) -> Section:
    """The evidence of the first predictions that have some, or a sentence without any. predictions: names and scenarios."""
    blocks: list[_Block] = []
    without: list[str] = []
    chart = None
    for name, scenario in predictions:
        runs = evidence(scenario)
        if not runs.runs:
            without.append(name)
        elif len(blocks) < _MOST_PREDICTIONS:
            summary = (
                f"{counted(len(runs.runs), 'similar published run')}: median error {percent(runs.median_error)}; "
                f"{percent(runs.coverage)} of the measured times lie in the 90 % prediction interval."
            )
            chart = chart or evidence_chart(runs.runs)
            blocks.append(_Block(name, summary, [_row(run) for run in runs.runs[:_MOST_RUNS]]))
    intro = "Published runs most like this prediction, and how well the same simulator predicts them."
    if not blocks:
        intro = "No published run in the tables of this version is similar: nothing here shows how accurate the prediction is."
    elif without:
        intro += f" None is similar to {', '.join(without)}."
    pictures = pictured(chart) if chart else []
    return Section("evidence", "Evidence", "How accurate this is", intro, pictures, "evidence.html", data={"blocks": blocks})


def _row(run: PublishedRun) -> _Row:
    return _Row(
        run.id, run.model, run.framework, f"{run.gpus:,} {run.device}", run.layout,
        duration(run.measured_s), duration(run.predicted_s), f"{duration(run.low_s)} to {duration(run.high_s)}",
        signed_percent(run.error), run.is_covered,
    )  # fmt: skip
