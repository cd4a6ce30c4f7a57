"""Timelines: the typical step of a run, and which ranks and microbatches are drawn."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

import scaleproof
from scaleproof.reports.charts.style import WIDTH_IN
from scaleproof.reports.read.results import Case
from scaleproof.reports.timeline import timeline
from scaleproof.reports.timeline.side_by_side import side_by_side
from scaleproof.reports.timeline.step import typical_step
from scaleproof.simulator.common.spans import Spans
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from tests.reports.example import CASES, make_run
from tests.reports.sized import size_px
from tests.validator.verdicts import in_bulk


def _case(*runs: Run) -> Case:
    sides = {run.origin: run for run in runs}
    return Case("a", "", "", 2, 2, sides.get("predicted"), sides.get("measured"))


def _many_ranks(ranks: int) -> Run:
    """Each of `ranks` ranks does one forward pass of a second in step 1."""
    columns: dict[str, object] = dict.fromkeys(Spans.__dataclass_fields__, np.zeros(ranks))
    columns |= {"rank": np.arange(ranks), "step": np.ones(ranks), "end_s": np.ones(ranks), "communication": -np.ones(ranks)}
    return replace(make_run("measured", CASES[0]), spans=Spans.of(columns), ranks=ranks, rank_names=())


@pytest.mark.parametrize("case", [CASES[0], *in_bulk(*((case,) for case in CASES[2::2]))], ids=lambda case: case[1])
def test_every_family_has_a_timeline(case: tuple[str, str, int, int, float, float]) -> None:
    both = side_by_side(_case(make_run("predicted", case), make_run("measured", case)))
    one = typical_step(make_run("measured", case))
    assert both is not None
    assert one is not None
    assert size_px(both.png)[1] > timeline.height([one]) * size_px(both.png)[0] / WIDTH_IN


def test_no_timeline_without_spans_of_a_steady_step() -> None:
    run = make_run("measured", CASES[0])
    assert run.spans is not None
    assert side_by_side(_case(replace(run, spans=None))) is None
    assert side_by_side(_case(replace(run, spans=run.spans.where(run.spans.step == 0)))) is None
    assert side_by_side(_case()) is None


def test_the_step_closest_to_the_median_step_time_is_shown() -> None:
    run = replace(make_run("measured", CASES[0]), step_time_s=0.1, step_times_s=(0.2, 0.15, 0.101, 0.09, 0.3))
    step = typical_step(run)
    assert step is not None
    assert step.number == 3
    assert step.arrival_ms.min() == 0.0
    assert set(step.spans.step) == {3}


def test_of_many_ranks_the_first_the_slowest_the_median_and_the_last_are_drawn() -> None:
    many = _many_ranks(40)
    step = typical_step(many)
    assert step is not None
    assert (step.ranks, step.of) == ([*range(14), 20, 39], 40)
    assert step.rows_words == ", 16 of 40 rows, with the slowest"
    assert many.spans is not None
    slower_s = many.spans.end_s + np.where(many.spans.rank == 23, 1e-3, 0.0)
    with_slow = typical_step(replace(many, spans=replace(many.spans, end_s=slower_s)))
    assert with_slow is not None
    assert with_slow.ranks == [*range(13), 20, 23, 39]
    as_many = typical_step(_many_ranks(16))
    assert as_many is not None
    assert timeline.height([step]) == timeline.height([as_many])
    assert [len(panel.get_yticks()) for panel in drawn(_many_ranks(40)).axes] == [16]


Make = Callable[..., Scenario]


def test_pictures_are_reproducible_and_have_a_description(small: Make) -> None:
    scenario = small("strategy={kind: pipeline, stages: 2, microbatches: 2, schedule: zb_h1}")
    png, svg = timeline.picture(scenario, "png"), timeline.picture(scenario, "svg")
    assert svg == timeline.picture(scenario, "svg")
    step = typical_step(predict(scenario))
    assert step is not None
    with Image.open(io.BytesIO(png)) as picture:
        assert json.loads(picture.info["Description"]) == step.facts()
    assert b"<dc:description>{" in svg
    assert b"gradients of weights" in re.sub(rb"<!-- (.*?) -->", rb"\1", svg)


def drawn(run: Run) -> Figure:
    step = typical_step(run)
    assert step is not None
    figure = Figure()
    timeline.draw(figure, [step], [""])
    return figure


def _long(period: int, small: Make) -> Figure:
    return drawn(predict(small(f"strategy={{kind: local_sgd, workers: 4, period: {period}}}")))


def test_the_number_of_boxes_is_bounded_and_the_axis_mentions_merging(small: Make) -> None:
    boxes = {}
    for period in (2, 500, 5000):
        (panel,) = _long(period, small).axes
        boxes[period] = sum(len(bars.get_paths()) for bars in panel.collections)
        merged = re.search(r"where crowded, up to (\d+) of a kind are one box", panel.get_xlabel())
        assert (merged is not None) == (period > 2)
    assert boxes[2] < boxes[500] < 1500
    assert boxes[5000] < 1500


def test_the_command_draws_the_given_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.png", "a.svg"):
        out = tmp_path / name
        assert scaleproof.main(["timeline", "pipeline-4", "--set", "strategy.microbatches=12", "--out", str(out)]) == 0
        assert capsys.readouterr().out == f"{out}\n"
    with Image.open(tmp_path / "a.png") as picture:
        assert json.loads(picture.info["Description"])["kinds"]["forward"][0] == 48
    assert scaleproof.main(["timeline", "pipeline-4", "--out", "a.jpg"]) == 2
    assert capsys.readouterr().err == "--out a.jpg: give a file name that ends in .svg or .png\n"
