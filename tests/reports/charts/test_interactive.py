"""Interactive charts: the data that plotly.js and the page get; texts never contain markup."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.reports.charts import interactive
from scaleproof.reports.charts.chart import Band, Boxes, Chart, ChartAxis, Line, View
from scaleproof.reports.charts.style import INK

EVIL = "<script>alert(1)</script><a href='javascript:1'>&amp;</a>"


def _chart(*marks: Line | Band | Boxes, **settings: bool) -> Chart:
    return Chart("name", "heading", (View(ChartAxis("x, s"), ChartAxis("y", log=True, limits=(1, 100)), marks),), **settings)


def test_markup_in_texts_is_escaped_and_newlines_become_breaks() -> None:
    line = Line(EVIL, INK, [1, 2], [3, 4], [f"{EVIL}\nsecond", "%{x}"], "circle")
    boxes = Boxes(EVIL, INK, [0], [1], [2], [3], [EVIL], [EVIL])
    (view,) = interactive.plain(_chart(line, boxes))["views"]
    first, second = view["data"]
    assert first["text"][0].startswith("&lt;script&gt;")
    assert first["text"][0].endswith("&lt;/a&gt;<br>second")
    assert first["hovertemplate"] == "%{text}<extra></extra>"
    assert "<" not in first["name"] + second["text"][0] + second["customdata"][0]


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))
def test_json_cannot_close_its_script_element(plain: object) -> None:
    text = interactive.script_json([plain, "</script><!--"])
    assert "<" not in text
    assert json.loads(text) == [plain, "</script><!--"]


def test_nan_and_infinity_become_null() -> None:
    (view,) = interactive.plain(_chart(Line("", INK, [1, 2, 3], [math.nan, math.inf, 1 / 3])))["views"]
    assert view["data"][0]["y"] == [None, None, 0.333333]


def test_the_legend_has_each_name_once_and_prefers_lines_to_bands() -> None:
    band, line = Band("ring", "#123456", [1], [1], [2]), Line("ring", "#123456", [1], [1], symbol="square")
    assert interactive.legend(_chart(band, line, Line("", INK, [1], [1]))) == [("ring", "#123456", "square")]
    assert interactive.legend(_chart(Line("equal", INK, [1], [1], dashed=True))) == [("equal", "var(--ink)", "dashed")]


@pytest.mark.parametrize(("count", "outlined"), [(20, True), (2000, False)])
def test_narrow_boxes_have_no_outline(count: int, outlined: bool) -> None:
    boxes = Boxes("forward", "#0072b2", list(range(count)), [1.0] * count, [0.0] * count, [0.6] * count)
    chart = Chart("timeline", "A step", (View(ChartAxis("ms"), ChartAxis(""), (boxes,)),))
    (drawn,) = interactive.plain(chart)["views"][0]["data"]
    assert (drawn["marker"]["line"]["width"] > 0) == outlined
