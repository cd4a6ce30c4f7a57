"""Headline and text of a study's page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scaleproof.reports.charts.chart import Boxes
from scaleproof.reports.charts.sensitivity import sensitivity_chart
from scaleproof.reports.descriptions.study_sentences import facts, headline, lead_words, lede
from scaleproof.reports.read.fastest_points import FastestPoint, chosen, sensitivity_of
from scaleproof.reports.read.ranking import Lead, Ranking, ranking
from scaleproof.reports.read.study import StudyTable, studied
from scaleproof.reports.read.study_folder import read
from scaleproof.reports.timeline.step_chart import step_chart


@pytest.fixture(scope="module")
def study(swept: Path) -> StudyTable:
    return studied(read(swept))


@pytest.fixture(scope="module")
def closely(study: StudyTable) -> list[FastestPoint]:
    notes: list[str] = []
    found = chosen(study, notes)
    assert not notes
    return found


def _with_rates(study: StudyTable, **rates: list[float]) -> StudyTable:
    """The study with other throughputs of its lines on 2, 4 and 8 GPUs."""
    points = study.points.copy()
    for line, values in rates.items():
        for gpus, value in zip((2, 4, 8), values, strict=True):
            points.loc[(points["line"] == line) & (points["gpus"] == gpus), "rate"] = value
    return replace(study, points=points)


def test_the_headline_has_size_speed_interval_speed_up_and_margin(study: StudyTable, closely: list[FastestPoint]) -> None:
    ranks = ranking(study)
    text = headline(study, closely, ranks)
    assert re.fullmatch(
        r"8 GPUs: [\d.,k]+ samples/s \([\d.,]+–[\d.,]+k\), [\d.]+x of 2 GPUs; "
        r"ring beats servers by a factor of 4.4; ring is cheaper than servers with a probability of .*",
        text,
    )
    under = " ".join(lede(study, ranks))
    assert under.startswith("the fastest of 12 configurations that fit: three-layers with ring, network bandwidth 40 Gbit/s")
    assert "at all sizes and has a probability of " in under


def test_equal_alternatives_do_not_beat_each_other(study: StudyTable) -> None:
    tied = _with_rates(study, ring=[10, 30, 70], servers=[20, 25, 69.9])
    assert "; no difference between ring and servers" in headline(tied, [], ranking(tied))
    assert "the lead" not in " ".join(lede(tied, ranking(tied)))
    near = Lead("ring", "servers", 0.04, per_gpu=False, probability=0.6)
    assert lead_words(near) == (
        "ring and servers are a tie: ring is faster with a probability of 60\u202f% (predicted lead 4.0\u202f%)"
    )
    likely = Lead("ring", "servers", 0.49, per_gpu=True, probability=0.87)
    assert lead_words(likely) == (
        "ring is faster per GPU than servers with a probability of 87\u202f% (predicted lead 49\u202f%)"
    )


def test_an_interval_missing_in_the_table_is_taken_from_the_run(study: StudyTable, closely: list[FastestPoint]) -> None:
    without = replace(study, points=study.points.assign(rate_low=float("nan"), rate_high=float("nan")))
    assert "(" not in headline(without, [], Ranking(None, None))
    assert "(" in headline(without, closely, Ranking(None, None))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fits": False}, "Out of memory: none of 12 points fits; the least is"),
        ({"rate": float("nan")}, "None of 12 points can be predicted"),
        (None, "Nothing to show"),
    ],
)
def test_studies_without_a_valid_point_have_a_headline_that_reports_it(
    study: StudyTable, changes: dict[str, Any] | None, words: str
) -> None:
    points = study.points[:0] if changes is None else study.points.assign(**changes)
    none = replace(study, points=points)
    assert headline(none, [], ranking(none)).startswith(words)
    assert lede(none, ranking(none)) == []
    assert facts(none, None) == []


def test_predictions_of_chosen_points_equal_the_table(closely: list[FastestPoint]) -> None:
    assert [one.line for one in closely] == ["ring", "servers"]
    for one in closely:
        assert one.run.step_time_s == pytest.approx(one.point["step_time_s"], rel=1e-6)
        assert one.sets[1:] == ("strategy.workers=8", "cluster.network.bandwidth=40 Gbit/s")


def test_sensitivity_bars_are_the_elasticities(closely: list[FastestPoint]) -> None:
    found = sensitivity_of(closely[1], [])
    assert found is not None
    chart = sensitivity_chart(found, "servers")
    assert chart is not None
    assert chart.views[0].finding == f"servers: {found.bottleneck} matters most"
    widths = [width for mark in chart.views[0].marks if isinstance(mark, Boxes) for width in mark.width]
    assert max(widths) == pytest.approx(max(abs(one.value or 0) for one in (*found.cluster, *found.training)))


def test_a_timeline_has_every_span_of_the_step(closely: list[FastestPoint]) -> None:
    chart = step_chart("timeline", "servers", [closely[1].run], 1000)
    assert chart is not None
    marks = [mark for mark in chart.views[0].marks if isinstance(mark, Boxes)]
    assert {"forward", "backward", "send", "receive"} <= {mark.name.partition(" (")[0] for mark in marks}
    ends_ms = [left + width for mark in marks for left, width in zip(mark.left, mark.width, strict=True)]
    assert max(ends_ms) == pytest.approx(closely[1].run.step_time_s * 1e3, rel=0.05)
    fewer = step_chart("timeline", "servers", [closely[1].run], 1)
    assert fewer is not None
    assert ", 1 of 2 rows, with the slowest" in fewer.views[0].finding
