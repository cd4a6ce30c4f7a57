"""Chrome traces of timelines: every rank has its streams, every event a name, and events of a stream do not overlap."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run import chrome_trace
from scaleproof.simulator.scenario.schema import Scenario

Make = Callable[..., Scenario]
FAMILIES = (
    "{kind: data_parallel, workers: 8, bucket: 100 KiB, first_bucket: 10 KiB}",
    "{kind: parameter_server, workers: 8, servers: 3}",
    "{kind: model_parallel, stages: 2}",
    "{kind: pipeline, stages: 3, microbatches: 4}",
    "{kind: pipeline, stages: 3, microbatches: 4, schedule: gpipe}",
    "{kind: hybrid, workers: 2, stages: 3, microbatches: 6, bucket: 100 KiB}",
)


def written(scenario: Scenario, path: Path) -> list[dict[str, Any]]:
    chrome_trace.write(predict(scenario), path)
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return found


@pytest.mark.parametrize("strategy", FAMILIES)
def test_streams_are_named_and_their_spans_do_not_overlap(small: Make, strategy: str, tmp_path: Path) -> None:
    events = written(small(f"strategy={strategy}"), tmp_path / "trace.json")
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    assert {e["pid"] for e in spans} <= processes
    assert {name.split()[0] for name in threads.values()} <= {"main", "sends", "receives", "collectives"}
    for stream in threads:
        mine = sorted((e for e in spans if (e["pid"], e["tid"]) == stream), key=lambda e: (e["ts"], e["ts"] + e["dur"]))
        assert mine
        for before, after in itertools.pairwise(mine):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    assert all(e["name"] and e["dur"] > 0 for e in spans)


def test_metadata_names_the_framework(small: Make, tmp_path: Path) -> None:
    chrome_trace.write(predict(small()), tmp_path / "trace.json")
    about = json.loads((tmp_path / "trace.json").read_text())["otherData"]
    assert about["framework"] == "pytorch-ddp"
    assert about["framework_is_default"] is True
    assert (about["strategy"], about["origin"]) == ("data_parallel", "predicted")


def test_spans_have_microbatch_and_stage(small: Make, tmp_path: Path) -> None:
    events = written(small("strategy={kind: pipeline, stages: 3, microbatches: 4}"), tmp_path / "trace.json")
    assert {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        0: "stage 0", 1: "stage 1", 2: "stage 2",
    }  # fmt: skip
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    assert {e["args"]["stage"] for e in spans if e["name"] == "forward 3"} == {0, 1, 2}
    # activations go from stage to stage, gradients come back
    assert sorted(e["pid"] for e in spans if names[e["pid"], e["tid"]] == "sends" and e["name"] == "PP send 3") == [0, 1, 1, 2]
    assert all(e["args"]["size_bytes"] > 0 for e in spans if names[e["pid"], e["tid"]] == "receives")


def test_a_run_without_spans_cannot_be_exported(small: Make, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="without spans"):
        chrome_trace.write(replace(predict(small()), spans=None), tmp_path / "trace.json")


def test_a_folder_that_cannot_be_written_gives_a_one_line_error(small: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="choose another file"):
        chrome_trace.write(predict(small()), tmp_path / "file" / "trace.json")
