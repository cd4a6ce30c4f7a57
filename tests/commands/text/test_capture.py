"""Console text of captures."""

from __future__ import annotations

from scaleproof.commands.text.capture import describe, describe_memory, memory_plain, plain
from scaleproof.simulator.captured.record import Capture
from scaleproof.validator.capture.capture import CaptureCosts
from tests.simulator.captured.records import data_parallel

COSTS = CaptureCosts(2.0, 1, 2**28)


def capture() -> Capture:
    """The step of a linear layer on 16 ranks."""
    return data_parallel()


def test_moved_bytes_are_a_column() -> None:
    (one,) = plain(capture(), COSTS)["classes"]
    assert one["moved_bytes"] > 0
    (titles,) = (line for line in describe(capture(), COSTS, "").splitlines() if "operators" in line)
    assert titles.split() == ["ranks", "number", "operators", "FLOPs", "moved", "sent", "peak", "memory"]


def test_memory_is_listed_by_category_module_and_line() -> None:
    text = describe_memory(capture(), 80 * 2**30)
    assert "optimizer states" in text
    (peak,) = memory_plain(capture())
    assert (
        peak["size_bytes"] == sum(peak["categories"].values()) == sum(peak["modules"].values()) == sum(peak["lines"].values())
    )
