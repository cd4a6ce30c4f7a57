"""Headline and text of a study's page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scaleproof.reports.charts.chart import Boxes
from scaleproof.reports.pages.study_text import counts, facts, headline, lede
from scaleproof.reports.read.chosen_points import Chosen, chosen, sensitivity_chart, sensitivity_of
from scaleproof.reports.read.study import Studied, studied
from scaleproof.reports.read.study_folder import read
from scaleproof.reports.timeline.step_chart import step_chart


@pytest.fixture(scope="module")
def study(swept: Path) -> Studied:
    return studied(read(swept))


@pytest.fixture(scope="module")
def closely(study: Studied) -> list[Chosen]:
    notes: list[str] = []
    found = chosen(study, notes)
    assert not notes
    return found


def _with_rates(study: Studied, **rates: list[float]) -> Studied:
    """The study with other throughputs of its lines on 2, 4 and 8 GPUs."""
    points = study.points.copy()
    for line, values in rates.items():
        for gpus, value in zip((2, 4, 8), values, strict=True):
            points.loc[(points["line"] == line) & (points["gpus"] == gpus), "rate"] = value
    return replace(study, points=points)


def test_the_headline_names_the_fastest_configuration_with_its_interval(study: Studied, closely: list[Chosen]) -> None:
    text = headline(study, closely)
    assert text.startswith("Ring trains three-layers on 8 GPUs at ")
    assert "samples/s (90 % interval " in text
    assert " efficient; it beats servers at every size" in text
    under = lede(study, closely)
    assert "with network bandwidth 40 Gbit/s." in under
    assert "faster than servers" in under
    assert "on 8 GPUs" in under


def test_the_text_names_the_size_from_which_a_strategy_leads(study: Studied) -> None:
    crossed = _with_rates(study, ring=[10, 30, 70], servers=[20, 25, 50])
    assert headline(crossed, []).endswith("; from 4 GPUs on it beats servers")
    assert "20\u202f% to 40\u202f% faster" in lede(crossed, [])


def test_equal_strategies_are_reported_as_a_tie(study: Studied) -> None:
    tied = _with_rates(study, ring=[10, 30, 70], servers=[20, 25, 69.9])
    assert headline(tied, []).endswith("as fast as servers")
    assert "faster than" not in lede(tied, [])


def test_an_interval_missing_in_the_table_is_taken_from_the_run(study: Studied, closely: list[Chosen]) -> None:
    without = replace(study, points=study.points.assign(rate_low=float("nan"), rate_high=float("nan")))
    assert "90 % interval" not in headline(without, [])
    assert "90 % interval" in headline(without, closely)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fits": False}, "Out of memory: none of 12 points fits; the least is"),
        ({"rate": float("nan")}, "None of 12 points can be predicted"),
        (None, "Nothing to show"),
    ],
)
def test_studies_without_a_valid_point_have_a_headline_that_reports_it(
    study: Studied, changes: dict[str, Any] | None, words: str
) -> None:
    points = study.points[:0] if changes is None else study.points.assign(**changes)
    none = replace(study, points=points)
    assert headline(none, []).startswith(words)
    assert lede(none, []) == ""
    assert facts(none, [], None) == []


def test_facts_are_numbers_of_the_best_point(study: Studied, closely: list[Chosen]) -> None:
    notes: list[str] = []
    found = facts(study, closely, sensitivity_of(closely[0], notes))
    assert not notes
    words = " ".join(meaning for _, meaning in found)
    for part in ("a step of 128 samples", "MFU", "memory a rank of", "a million samples", "matters most"):
        assert part in words
    assert counts(study) == "12 points."
    wrong = replace(study, points=study.points.assign(error="x", fits=False))
    assert counts(wrong) == "12 points; 12 do not fit into memory and 12 cannot be predicted."


def test_predictions_of_chosen_points_equal_the_table(closely: list[Chosen]) -> None:
    assert [one.line for one in closely] == ["ring", "servers"]
    for one in closely:
        assert one.run.step_time_s == pytest.approx(one.point["step_time_s"], rel=1e-6)
        assert one.sets[1:] == ("strategy.workers=8", "cluster.network.bandwidth=40 Gbit/s")


def test_sensitivity_bars_are_the_elasticities(closely: list[Chosen]) -> None:
    found = sensitivity_of(closely[1], [])
    assert found is not None
    chart = sensitivity_chart(found, "servers")
    assert chart is not None
    assert found.bottleneck is not None
    assert chart.views[0].finding == f"servers: {found.bottleneck.name} matters most"
    widths = [width for mark in chart.views[0].marks if isinstance(mark, Boxes) for width in mark.width]
    assert max(widths) == pytest.approx(max(abs(one.value or 0) for one in (*found.cluster, *found.training)))


def test_a_timeline_has_every_span_of_the_step(closely: list[Chosen]) -> None:
    chart = step_chart("timeline", "servers", [closely[1].run], 1000)
    assert chart is not None
    marks = [mark for mark in chart.views[0].marks if isinstance(mark, Boxes)]
    assert {"forward", "backward", "send", "receive"} <= {mark.name for mark in marks}
    ends_ms = [left + width for mark in marks for left, width in zip(mark.left, mark.width, strict=True)]
    assert max(ends_ms) == pytest.approx(closely[1].run.step_time_s * 1e3, rel=0.05)
    fewer = step_chart("timeline", "servers", [closely[1].run], 1)
    assert fewer is not None
    assert "first 1 of 2 rows" in fewer.views[0].finding
