from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from simulator import trace
from simulator.errors import RunError
from simulator.predict import predict
from simulator.scenario import Scenario


def test_every_span_is_an_event_of_a_named_rank(small: Callable[..., Scenario], tmp_path: Path) -> None:
    run = predict(small("strategy={kind: pipeline, stages: 3, microbatches: 4}"))
    assert run.spans is not None
    trace.write(run, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == len(run.spans)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {0: "stage 0", 1: "stage 1", 2: "stage 2"}
    assert {e["pid"] for e in spans} == set(names)
    forward = [e for e in spans if e["name"] == "forward 3"]
    assert {e["args"]["stage"] for e in forward} == {0, 1, 2}
    assert all(e["dur"] >= 0 for e in spans)


def test_a_run_without_spans_has_no_timeline(small: Callable[..., Scenario], tmp_path: Path) -> None:
    with pytest.raises(RunError, match="without spans"):
        trace.write(replace(predict(small()), spans=None), tmp_path / "trace.json")


def test_a_folder_that_cannot_be_written(small: Callable[..., Scenario], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="choose another file"):
        trace.write(predict(small()), tmp_path / "file" / "trace.json")
