"""Evidence on pages: similar published runs with their errors, and a plain statement without such runs."""

from __future__ import annotations

from scaleproof.reports.pages.evidence_section import evidence_section
from scaleproof.simulator.scenario.load import load


def test_similar_published_runs_are_shown_with_the_coverage_of_their_intervals() -> None:
    section = evidence_section([("ours", load("published:llm_foundry-0124")), ("small", load("ring-2"))])
    (block,) = section.data["blocks"]
    assert block.name == "ours"
    assert "in the 90 % prediction interval" in block.summary
    assert "llm_foundry-0124" in [row.id for row in block.rows]
    assert "None is similar to small" in section.intro


def test_a_prediction_without_similar_runs_says_so() -> None:
    section = evidence_section([("small", load("ring-2"))])
    assert section.data["blocks"] == []
    assert "No published run" in section.intro
