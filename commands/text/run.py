"""Console text of a run, its single steps, a whole training run, and published runs that are similar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scaleproof.commands.text.sections import described, facts_text, table_lines
from scaleproof.reports.descriptions import runs
from scaleproof.simulator.run.run import Run

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.evidence import Evidence
    from scaleproof.simulator.run.totals import TrainingTotals


def describe(run: Run) -> str:
    """Console text of a run."""
    return described(runs.describe(run))


def describe_steps(run: Run) -> str:
    """Console text of the distribution of single steps; empty where it is not known."""
    return "\n".join(facts_text([runs.steps(run)]))


def describe_totals(totals: TrainingTotals) -> str:
    """Console text of the totals of a whole training run."""
    return "\n".join(facts_text([runs.totals(totals)]))


def describe_evidence(evidence: Evidence) -> str:
    """Console text of the evidence: a summary, and a table of the nearest runs."""
    from scaleproof.reports.descriptions import evidence as descriptions

    found = descriptions.describe(evidence)
    rows = [line for one in found.tables for line in table_lines(one)]
    return "\n  ".join([f"evidence: {descriptions.summary(evidence)}", *rows, *found.notes])
