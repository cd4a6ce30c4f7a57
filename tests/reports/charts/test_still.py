"""Still pictures: any chart can be drawn, with any text."""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.reports.charts.chart import Band, Boxes, Chart, ChartAxis, Line, View
from scaleproof.reports.charts.still import still
from scaleproof.reports.charts.style import BLUE, WIDTH_IN
from tests.reports.sized import size_px
from tests.validator.verdicts import in_bulk


def _chart(name: str = "ring", **settings: Any) -> Chart:
    marks = (
        Band(name, BLUE, [1, 2], [1, 2], [2, 3]),
        Line(name, BLUE, [1, 2], [1.5, 2.5], ["", ""], "circle", hollow=True),
        Line("", BLUE, [1, 2], [1, 1], dashed=True),
        Boxes(name, BLUE, [1], [0.5], [2], [1], [name], [name]),
    )
    return Chart("chart", "heading", (View(ChartAxis(name), ChartAxis("y"), marks, name),), **settings)


def test_still_pictures_have_twice_the_displayed_width() -> None:
    drawn = still(_chart())
    assert size_px(drawn.png)[0] == WIDTH_IN * 200
    assert size_px(still(_chart(height_px=760)).png)[1] > size_px(drawn.png)[1]
    assert b"<svg" in drawn.svg
    assert still(_chart()) == drawn


@pytest.mark.parametrize(
    "name",
    ["$x^2$ $\\frac$", "a\nb\tc\x00", "\ud800", *in_bulk("<script>alert(1)</script>", "模型 🚀", "x" * 500, "", "_private")],
)
def test_names_with_special_characters_can_be_drawn(name: str) -> None:
    assert still(_chart(name)).png
