"""A profiled run also saves torch's profile of its collectives, and has the same measurements as without."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from scaleproof.simulator.common.errors import InputError, RankError
from scaleproof.simulator.common.spans import Stream
from scaleproof.simulator.run.run import Run
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.record.torch_profiler import ProfiledCollective, matched, read_works
from tests.validator.conftest import GPT, MakeScenario

RING = {"kind": "data_parallel", "workers": 2, "bucket": "100 KiB", "first_bucket": "20 KiB"}


def work(name: str, start_s: float, *sizes_bytes: float) -> ProfiledCollective:
    return ProfiledCollective(name, start_s, 0.1, frozenset(sizes_bytes))


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def sizes_of_a_step(run: Run) -> list[float]:
    assert run.spans is not None
    spans = run.spans.where((run.spans.stream == Stream.COMMUNICATION) & (run.spans.rank == 0) & (run.spans.step == 1))
    return [float(size) for size in spans.size_bytes]


@pytest.mark.full
def test_a_profiled_run_has_a_trace_and_a_table_of_collectives_per_rank(make_scenario: MakeScenario, tmp_path: Path) -> None:
    scenario = make_scenario(RING, GPT, precision="fp64")

    run = measure(scenario, watch=MeasureOptions(folder=tmp_path, profile=True, verify=True))

    assert len(run.step_times_s) == len(run.losses) == scenario.steps, "steps that are profiled are not measured"
    assert run.verified is not None
    assert run.verified.deviation < 1e-9, "they are trained like all others"
    for rank in range(2):
        table = rows_of(tmp_path / "profile" / f"rank{rank}.csv")
        assert sorted({row["step"] for row in table}) == ["7", "8", "9"]
        assert [float(row["size_bytes"]) for row in table if row["step"] == "8"] == sizes_of_a_step(run)
        assert {row["work"] for row in table} == {"all_reduce"}
        # what gloo takes is part of what a worker waits for, except the time to notify it
        assert all(0 < float(row["work_s"]) < float(row["span_s"]) + 1.0 for row in table)
        with gzip.open(tmp_path / "profile" / f"rank{rank}.json.gz") as file:
            assert json.load(file)["traceEvents"]


def test_collectives_are_matched_by_order_and_size() -> None:
    works = [work("c", 3.0, 8.0), work("a", 1.0, 8.0), work("b", 2.0, 4.0, 16.0)]

    found = matched([8.0, 16.0, 5.0, 8.0, 8.0], works)

    assert [one and one.name for one in found] == ["a", "b", None, "c", None]


def test_sizes_are_read_from_nccl_kernels(tmp_path: Path) -> None:
    arguments = {"Collective name": "_allgather_base", "In msg nelems": 10, "Out msg nelems": 40, "dtype": "BFloat16"}
    kernel = {"cat": "kernel", "name": "ncclDevKernel_AllGather_RING_LL", "ts": 5e6, "dur": 250.0, "args": arguments}
    others: list[dict[str, Any]] = [{"ph": "M", "name": "process_name"}, {"cat": "kernel", "name": "gemm", "ts": 1, "dur": 1}]
    path = tmp_path / "trace.json.gz"
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": [kernel, *others]}, file)

    assert read_works(path) == [ProfiledCollective("_allgather_base", 5.0, 250e-6, frozenset([20.0, 80.0]))]


def test_profiling_needs_an_output_folder(make_scenario: MakeScenario) -> None:
    with pytest.raises(InputError, match="profiling writes traces; give a folder for them with --out DIR"):
        measure(make_scenario(RING), watch=MeasureOptions(profile=True))


def test_a_folder_that_cannot_be_written_gives_a_one_line_error(make_scenario: MakeScenario, tmp_path: Path) -> None:
    (tmp_path / "profile").touch()

    with pytest.raises(RankError, match=r"rank \d \(worker \d\) failed in .*the profile could not be written to .*profile: "):
        measure(make_scenario(RING, steps=2), watch=MeasureOptions(folder=tmp_path, profile=True))
