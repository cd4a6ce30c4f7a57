"""The timeline's columns."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from scaleproof.reports.explorer.responses.timeline_columns import timeline_columns
from scaleproof.simulator.predict import timed
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load

COLUMNS = ("row", "track", "kind", "chunk", "stage", "microbatch", "communication", "start", "end", "number")


def columns(run: Run) -> dict[str, Any] | None:
    """With columns as lists, as the page unpacks them."""
    found = timeline_columns(run)
    columns = {name: np.frombuffer(base64.b64decode(found[name]), "<i4").tolist() for name in COLUMNS} if found else {}
    return found and found | columns


@pytest.mark.parametrize("reference", ["resnet50-servers-p100", "llama-2-7b-zero-bubble-a100", "resnet50-async-straggler-p100"])
def test_columns_have_equal_length_and_times_within_the_step(reference: str) -> None:
    found = columns(timed(load(reference)))
    assert found is not None
    assert len({len(found[name]) for name in COLUMNS}) == 1
    assert min(found["start"]) >= 0
    assert max(found["end"]) == found["parts"]
    assert all(start <= end for start, end in zip(found["start"], found["end"], strict=True))
    assert {str(kind) for kind in found["kind"]} == set(found["kinds"])
    assert max(found["row"]) < len(found["rows"]) <= 16


def test_blocking_boxes_of_a_rank_never_overlap() -> None:
    found = columns(timed(load("llama-2-7b-zero-bubble-a100")))
    assert found is not None
    row, track, start, end = (np.array(found[name]) for name in ("row", "track", "start", "end"))
    for rank in range(len(found["rows"])):
        mine = np.flatnonzero((row == rank) & (track == 0))
        order = mine[np.argsort(start[mine], kind="stable")]
        assert (end[order][:-1] <= start[order][1:] + 1).all()


def test_crowded_boxes_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    run = timed(load("llama-2-7b-zero-bubble-a100", ["strategy.microbatches=64", "batch=64"]))
    whole = columns(run)
    monkeypatch.setattr("scaleproof.reports.explorer.responses.timeline_columns._MOST_BOXES", 300)
    found = columns(run)
    assert whole is not None
    assert found is not None
    assert found["merged"]
    assert not whole["merged"]
    assert len(found["row"]) <= 300
    assert sum(found["number"]) == len(whole["row"])
    assert found["length_ms"] == whole["length_ms"]


def test_runs_without_spans_have_no_timeline() -> None:
    from dataclasses import replace

    assert columns(replace(timed(load("resnet50-ring-p100")), spans=None)) is None
