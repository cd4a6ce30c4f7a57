"""Curves of throughput: a picture for each set of families."""

from __future__ import annotations

import io

from PIL import Image

from scaleproof.reports.charts.curves import ThroughputPoint, curves

RING = [ThroughputPoint(1, 10.0, 9.8), ThroughputPoint(4, 38.0, 36.0)]


def test_equal_curves_give_identical_pictures() -> None:
    drawn = curves({"ring": RING}, "the ring goes on")

    with Image.open(io.BytesIO(drawn)) as picture:
        assert picture.format == "PNG"
        assert picture.width > 2 * picture.height
    assert curves({"ring": RING}, "the ring goes on") == drawn
