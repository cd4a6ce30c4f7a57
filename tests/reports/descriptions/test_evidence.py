"""Evidence for predictions: similar published runs with their errors, and a plain statement without such runs."""

from __future__ import annotations

from scaleproof.reports.descriptions.evidence import of_scenarios
from scaleproof.simulator.scenario.load import load


def test_similar_published_runs_are_shown_with_the_coverage_of_their_intervals() -> None:
    section = of_scenarios([("ours", load("published:llm_foundry-0124")), ("small", load("ring-2"))])
    (table,) = section.tables
    assert "in the 90 % interval" in table.notes[0]
    assert "llm_foundry-0124" in table.columns[0].cells
    assert "None is similar to small" in section.intro


def test_a_prediction_without_similar_runs_says_so() -> None:
    section = of_scenarios([("small", load("ring-2"))])
    assert not section.tables
    assert "No published run" in section.intro
