"""Charts over all cases: present where there is data, with the right values."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.reports.charts.chart import Boxes, Line
from scaleproof.reports.charts.runs import accuracy as result_charts
from scaleproof.reports.charts.runs import breakdown as run_charts
from scaleproof.reports.charts.style import COMMUNICATION_COLOURS, GREY, MEMORY_COLOURS
from scaleproof.reports.read.results import Case, read
from scaleproof.simulator.common.communication import Dimension
from scaleproof.simulator.run.records import Scaling
from tests.reports.example import CASES, make_run


def _cases(*chosen: tuple[str, str, int, int, float, float]) -> list[Case]:
    return [
        Case(case[0], case[1], "", case[2] + case[3], case[2], make_run("predicted", case), make_run("measured", case))
        for case in chosen
    ]


def test_charts_without_data_are_omitted(eight: Path) -> None:
    predicted_only = [replace(case, measured=None) for case in read(eight).cases][:1]
    assert result_charts.accuracy(predicted_only) is None
    assert result_charts.errors(predicted_only) is None
    assert result_charts.scaling(predicted_only) is None
    assert run_charts.breakdown(result_charts.bars(predicted_only)) is not None
    assert run_charts.breakdown([]) is None
    assert run_charts.memory(result_charts.bars(predicted_only)) is None


def test_scaling_charts_need_several_rank_counts_of_one_family() -> None:
    assert result_charts.scaling(_cases(CASES[0], CASES[2])) is None
    chart = result_charts.scaling(_cases(CASES[0], CASES[1]))
    assert chart is not None
    predicted, measured, ideal = (mark for mark in chart.views[0].marks if isinstance(mark, Line))
    assert predicted.joined
    assert not measured.joined
    assert list(measured.y) == pytest.approx([32 / 0.0324, 64 / 0.0487])
    # 16 samples take one worker 28 ms
    assert ideal.y[1] / ideal.x[1] == pytest.approx(16 / 0.028)
    assert chart.views[0].finding == "From 2 to 4 ranks: data parallel 1.3×"


def test_scenarios_that_differ_in_more_than_ranks_are_no_scaling() -> None:
    assert result_charts.scaling(_cases(CASES[0], ("other", *CASES[0][1:]), CASES[1])) is None
    two, four = _cases(CASES[0], CASES[1])
    assert four.predicted is not None
    other = replace(four, predicted=replace(four.predicted, scaling={"weak": Scaling(0.9, None, "1 worker of another model")}))
    assert result_charts.scaling([two, other]) is None


def test_accuracy_has_measured_times_on_x_and_predicted_times_on_y(eight: Path) -> None:
    chart = result_charts.accuracy(read(eight).cases)
    assert chart is not None
    ring = next(mark for mark in chart.views[0].marks if mark.name == "data parallel")
    assert isinstance(ring, Line)
    assert list(ring.x) == pytest.approx([32.4, 48.7])
    assert list(ring.y) == pytest.approx([32.4 * 1.031, 48.7 * 0.938])
    assert "6 within ±10" in chart.views[0].finding


def test_every_error_is_in_a_bin(eight: Path) -> None:
    cases = read(eight).cases
    far = replace(cases[0], predicted=replace(make_run("predicted", CASES[0]), step_time_s=99.0))
    chart = result_charts.errors([*cases, far])
    assert chart is not None
    boxes = chart.views[0].marks[0]
    assert isinstance(boxes, Boxes)
    assert sum(boxes.height) == 9
    assert max(boxes.left) == pytest.approx(0.95)
    assert "drawn at the end" in chart.caption


def test_bars_add_up_to_the_step_and_never_go_below_zero() -> None:
    (case,) = _cases(CASES[0])
    measured = case.measured
    assert measured is not None
    negative = replace(measured, breakdown_s={**measured.breakdown_s, "other": -0.001})
    chart = run_charts.breakdown(result_charts.bars([replace(case, measured=negative)]))
    assert chart is not None
    boxes = [mark for mark in chart.views[0].marks if isinstance(mark, Boxes)]
    assert all(width > 0 for mark in boxes for width in mark.width)
    row = boxes[0].middle[0]
    total_ms = sum(width for mark in boxes for width, middle in zip(mark.width, mark.middle, strict=True) if middle == row)
    assert total_ms == pytest.approx(32.4 * 1.031)


def test_memory_is_drawn_against_the_capacity_of_a_rank() -> None:
    gib = 2.0**30
    run = replace(
        make_run("predicted", CASES[0]),
        memory_bytes={"gradients": 9 * gib, "activations": 33 * gib, "unheard_of": 3 * gib},
        memory_bytes_per_rank=45 * gib,
        capacity_bytes=40 * gib,
    )
    chart = run_charts.memory([run_charts.Bar("ring", "", run)])
    assert chart is not None
    widths = {mark.name: sum(mark.width) for mark in chart.views[0].marks if isinstance(mark, Boxes)}
    assert widths == {"gradients": 9, "activations": 33, "unheard of": 3}
    colours = [mark.colour for mark in chart.views[0].marks if isinstance(mark, Boxes)]
    assert colours == [MEMORY_COLOURS["gradients"], MEMORY_COLOURS["activations"], GREY]
    assert sum(widths.values()) == 45
    assert chart.views[0].finding == "The run needs more memory than a rank has"


def test_importing_pages_does_not_import_matplotlib() -> None:
    heavy = {"matplotlib", "plotly", "pandas", "torch"}
    code = f"import scaleproof.reports.pages.page, sys; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3]).returncode == 0


def test_each_dimension_of_training_ranks_has_a_colour_of_its_own() -> None:
    labels = {one.label for one in Dimension if one not in (Dimension.TO_HOST, Dimension.FROM_HOST)}
    assert len({COMMUNICATION_COLOURS[label] for label in labels}) == len(labels)
