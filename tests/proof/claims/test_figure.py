"""Figures of claims show all quantities that decide them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scaleproof.proof.claims.evaluate import evaluate
from scaleproof.proof.claims.figure import figure
from scaleproof.proof.claims.measured import measured
from scaleproof.proof.claims.result import Result
from tests.proof.claims.example import claim
from tests.proof.claims.test_measured import NETLAB, train


def drawn(folder: Path, **changes: Any) -> str:
    found = claim(folder, **changes)
    record = measured(found, train) if found.netlab else None
    return figure(Result(found, evaluate(found), record), "svg").decode()


def draws_text(svg: str, *texts: str) -> bool:
    """Whether an SVG draws a text; texts are paths with a comment before them."""
    return all(f"<!-- {text} -->" in svg for text in texts)


def test_lines_the_bound_and_the_verdict_are_drawn(tmp_path: Path) -> None:
    svg = drawn(tmp_path)
    assert draws_text(svg, "ring", "one worker", "at least 50 %", "Rings are fast.", "bandwidth, Gbit/s")
    assert not draws_text(svg, "measured")


def test_measurements_have_a_panel_with_their_predictions(tmp_path: Path) -> None:
    svg = drawn(tmp_path, netlab=NETLAB)
    assert draws_text(svg, "measured", "predicted")
    assert "measured on netlab, 22 November 2026: " in svg


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    [
        {"test": {"of": "one worker", "against": "ring", "at_most": 1e6}},
        {"test": {"of": "ring", "at_most": 1e-12}},
        {"axis": {"name": "shards", "values": [[1, 2], [3, 4]]}},
        {"axis": {"name": "model", "set": {}, "values": ["one", "<script>$two</script>"]}},
        {"axis": {"name": "alone", "values": [1]}},
        {"quantity": "fitting_throughput", "lines": {"ring": {"cluster.device.memory": "1 MiB"}, "one worker": {}}},
    ],
)
def test_unusual_axes_and_numbers_are_drawn(tmp_path: Path, changes: dict[str, Any]) -> None:
    svg = drawn(tmp_path, **changes)
    assert svg.rstrip().endswith("</svg>")
    assert "<script>" not in svg
