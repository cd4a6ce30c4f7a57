"""Pictures of crossover maps: they describe themselves and show every strategy that wins somewhere."""

from __future__ import annotations

import io
import json
import math

import pytest
from PIL import Image

from scaleproof.reports.charts.crossover import picture
from scaleproof.simulator.analysis.crossover.axes import MapAxis
from scaleproof.simulator.analysis.crossover.crossover import Border, Crossover, Point
from scaleproof.simulator.scenario.fields import value_at
from scaleproof.simulator.scenario.load import load
from tests.validator.verdicts import in_bulk

UNIT = value_at(load("resnet50-ring-p100"), "cluster.network.bandwidth").unit


def a_map(*borders: Border) -> Crossover:
    """Two rows: in the first a ring wins from 1e9 on, in the second nothing fits."""
    x = MapAxis("cluster.network.bandwidth", UNIT, (1e8, 1e10), is_whole=False)
    y = MapAxis("strategy.workers", None, (2, 4), is_whole=True)
    rates = {(1e8, "ring"): 1.0, (1e8, "ps-1"): 2.0, (1e10, "ring"): 3.0, (1e10, "ps-1"): 2.0}
    points = tuple(
        Point(x=at, y=row, strategy=name, samples_per_s=rate, step_time_s=1 / rate, fits=row == 2)
        for row in (2, 4)
        for (at, name), rate in rates.items()
    )
    return Crossover("a map", x, y, {"ring": "", "ps-1": ""}, points, borders)


@pytest.mark.parametrize("high", [math.inf, *in_bulk(2e9)])
def test_the_pictures_description_lists_its_borders(high: float) -> None:
    found = a_map(Border(2, 1e9, "ps-1", "ring", 0.0, high))
    with Image.open(io.BytesIO(picture(found, "png"))) as png:
        description = json.loads(png.info["Description"])
        colours = {colour for _, colour in png.convert("RGB").getcolors(1 << 24) or []}
    assert description["borders"][0]["x"] == 1e9
    assert description["borders"][0]["high"] == (high if math.isfinite(high) else None)
    assert len(colours) > 3
