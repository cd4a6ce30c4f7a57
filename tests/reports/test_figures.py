"""Figures over all cases: there is one where there is data, and any text is drawn as it stands."""

from __future__ import annotations

import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from reports import figures
from reports.results import Case, read
from reports.style import WIDTH_IN, label

from .example import CASES, make_run


def size_px(png: bytes) -> tuple[int, int]:
    """Width and height that the header of a PNG gives."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def _cases(*chosen: tuple[str, str, int, int, float, float]) -> list[Case]:
    return [
        Case(case[0], case[1], "", case[2] + case[3], case[2], make_run("predicted", case), make_run("measured", case))
        for case in chosen
    ]


def test_all_figures_are_at_twice_the_page_s_resolution(eight: Path) -> None:
    cases = read(eight).cases
    for draw in (figures.scaling, figures.accuracy, figures.breakdown):
        png = draw(cases)
        assert png is not None
        assert size_px(png)[0] == WIDTH_IN * 200
        # an empty figure compresses to a few kilobytes
        assert len(png) > 10_000


def test_no_figure_without_what_it_is_about() -> None:
    predicted_only = [replace(case, measured=None) for case in _cases(CASES[0])]
    assert figures.accuracy(predicted_only) is None
    assert figures.scaling(predicted_only) is None
    assert figures.breakdown(predicted_only) is not None
    assert figures.breakdown([]) is None


def test_scaling_needs_several_rank_counts_in_a_family() -> None:
    assert figures.scaling(_cases(CASES[0], CASES[2])) is None
    assert figures.scaling(_cases(CASES[0], CASES[1])) is not None


def test_the_ideal_line_is_the_baseline_s_rate_per_rank() -> None:
    (case,) = _cases(CASES[1])
    measured = case.measured
    assert measured is not None
    # 16 samples per worker in 28 ms: what the example says the baseline does
    assert figures._ideal_rates([measured]) == pytest.approx([16 / 0.028])
    assert figures._ideal_rates([replace(measured, efficiency=None)]) == []


def test_the_breakdown_grows_with_the_cases_up_to_a_limit() -> None:
    few, many, most = (
        figures.breakdown(_cases(*[CASES[0]] * count)) for count in (1, figures.MOST_CASES, figures.MOST_CASES + 1)
    )
    assert few is not None
    assert many is not None
    assert most is not None
    assert size_px(few)[1] < size_px(many)[1] == size_px(most)[1]


@pytest.mark.parametrize(
    "name", ["$x^2$ $\\frac$", "<script>alert(1)</script>", "a\nb\tc\x00", "模型 🚀", "\ud800", "x" * 500, "", "_private"]
)
def test_any_name_can_be_drawn(name: str) -> None:
    (first, second) = _cases((name, name, 2, 0, 0.1, 0.3), (name, name, 4, 0, 0.05, -0.3))
    assert figures.accuracy([first, second])
    assert figures.scaling([first, second])
    assert figures.breakdown([first])


def test_what_is_left_over_may_be_negative() -> None:
    (case,) = _cases(CASES[0])
    measured = case.measured
    assert measured is not None
    negative = replace(measured, breakdown_s={**measured.breakdown_s, "other": -0.001})
    assert figures.breakdown([replace(case, measured=negative)])


def test_labels_are_one_line_and_cut() -> None:
    assert label("a\nb\x00c") == "a b c"
    assert label("x" * 100, 10) == "x" * 9 + "…"


def test_importing_reports_does_not_import_matplotlib() -> None:
    code = "import reports.page, sys; sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0
