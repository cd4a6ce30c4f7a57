"""Console text of evidence: published runs that are similar to a scenario, and how well they are predicted."""

from __future__ import annotations

from typing import Final

from scaleproof.commands.text.tables import table
from scaleproof.simulator.analysis.evidence import Evidence, PublishedRun
from scaleproof.simulator.common.units import counted, format_change, format_percent, format_time_s

_MOST: Final = 5
_TITLES: Final = ("published run", "model", "GPUs", "layout", "measured", "predicted", "error", "in 90 %")


def describe(evidence: Evidence) -> str:
    """Text of the evidence: a summary, and a table of the nearest runs."""
    if not evidence.runs:
        return "evidence: no published run in the tables of this version is similar"
    runs = counted(len(evidence.runs), "similar published run")
    summary = f"evidence: {runs}; median error {format_percent(evidence.median_error)}, "
    summary += f"{format_percent(evidence.coverage, 0)} in the 90 % interval; the nearest:"
    rows = [_TITLES, *(_row(run) for run in evidence.runs[:_MOST])]
    note = "scaleproof predict published:RUN predicts one of them"
    return "\n".join([summary, *table(rows, "<<><>>><", indent="  "), f"  {note}"])


def _row(run: PublishedRun) -> tuple[str, ...]:
    degrees = {"TP": run.tensor, "PP": run.stages}
    layout = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    layout += [f"ZeRO-{run.zero}"] if run.zero else []
    return (
        run.id,
        run.model,
        f"{run.gpus} {run.device}",
        " ".join([*layout, run.precision]),
        format_time_s(run.measured_s),
        format_time_s(run.predicted_s),
        format_change(run.error),
        "yes" if run.is_covered else "no",
    )
