"""Console text of captures."""

from __future__ import annotations

from dataclasses import replace

from scaleproof.commands.text.capture import describe, describe_memory, memory_plain, plain
from scaleproof.simulator.captured.reading import script_of_capture
from scaleproof.simulator.captured.record import Capture, ModelInput, PolicyDecision
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


def test_samples_and_what_was_not_computed_are_said_in_words() -> None:
    decided = (
        PolicyDecision("aten::topk", "balanced", 3, "moe.py:48"),
        PolicyDecision("aten::_local_scalar_dense", "an invented value", 1, "train.py:9"),
    )
    (one,) = capture().classes
    classes = (replace(one, decisions=decided, inputs=(*one.inputs, ModelInput("Other", ((8,),), 1))),)
    made = replace(capture(), classes=classes)
    lines = " ".join(describe(made, COSTS, "", script_of_capture(made, "train")).split())
    assert "64 samples of 2,048 tokens a step, 4 on each of 16 workers: the first dimension of Model's input 4 × 2048" in lines
    assert "inputs disagree on the samples of a step: Model's 4 × 2048 was taken, not Other's 8; if that is wrong" in lines
    uncomputed = "depends on floats, which a capture does not compute; taken as"
    assert f"moe.py:48: the result of topk {uncomputed} balanced (3 times)" in lines
    assert f"train.py:9: a value that the script reads {uncomputed} an invented value (1 time)" in lines


def test_memory_is_listed_by_category_module_and_line() -> None:
    text = describe_memory(capture(), 80 * 2**30)
    assert "optimizer states" in text
    (peak,) = memory_plain(capture())
    assert (
        peak["size_bytes"] == sum(peak["categories"].values()) == sum(peak["modules"].values()) == sum(peak["lines"].values())
    )
