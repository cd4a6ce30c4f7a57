"""The page of a strategy map, from the file that the command writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import scaleproof
from scaleproof.reports.pages.page import build


def test_a_strategy_map_has_a_page_with_its_borders(tmp_path: Path) -> None:
    command = ["crossover", "resnet50-ring-p100", "--strategies", "ring,ps-1", "--y", "workers=4,8", "--points", "3"]
    assert scaleproof.main([*command, "--out", str(tmp_path)]) == 0
    page = build(tmp_path).path.read_text(encoding="utf-8")
    assert "resnet50-ring-p100: fastest is ring in" in page
    assert "Borders" in page
    assert "parameter_server, 1 server, on a node of its own" in page


@pytest.mark.full
def test_a_map_with_one_border_in_each_row_says_where_it_is(tmp_path: Path) -> None:
    command = ["crossover", "resnet50-ring-p100", "--set", "framework=ideal", "--set", "cluster=aws-p2-xlarge"]
    assert scaleproof.main([*command, "--y", "workers=4,16", "--points", "5", "--out", str(tmp_path)]) == 0
    page = build(tmp_path).path.read_text(encoding="utf-8")
    assert re.search(r"<h1>resnet50-ring-p100: ring is fastest from [\d.]+ Gbit/s to [\d.]+ Gbit/s on, ps-all below", page)
