from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from scaleproof.commands.measuring import import_
from scaleproof.simulator.cluster.collectives.settings import Adjust
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.calibration.cluster_file import files
from scaleproof.validator.probe import points
from tests.validator.calibration.imports.logs import FILES, all_reduce, host, kernel, launch, nccl_log, step, trace


def _run(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    import_.mount(parser.add_subparsers(required=True))
    options = parser.parse_args(["import", *map(str, arguments)])
    code: int = options.command(options)
    return code


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "all_reduce_perf.log"
    path.write_text(nccl_log("all_reduce", ["one"] * 8, 30e-6, 200e9))
    return path


@pytest.fixture
def traces(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    for rank, path in enumerate(paths):
        path.write_text(trace([*step(1, 0.0), *step(2, 1000.0, waits=30.0 * rank)], rank))
    return paths


def test_the_table_keeps_the_times_of_earlier_imports(log: Path, traces: list[Path], tmp_path: Path) -> None:
    made = tmp_path / "made.yaml"
    assert _run("nccl-tests", log, "--out", made) == 0
    first = points.read(files.points_path(made))
    for _ in range(2):
        assert _run("kineto", *traces, "--cluster", made, "--out", made) == 0
    both = points.read(files.points_path(made))
    assert both[: len(first)] == first
    assert len({(one.what, one.size, one.ranks) for one in both}) == len(both) > len(first)


def test_without_out_the_result_is_only_printed(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(tmp_path.iterdir())
    assert _run("nccl-tests", log, "--json") == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["tool"] == "nccl-tests"
    assert reported["found"][0]["collective"] == "all_reduce"
    assert reported["notes"] == []
    assert sorted(tmp_path.iterdir()) == before


def test_skipped_parts_are_reported_on_stderr_and_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("nccl-tests", FILES / "old.log", "--out", tmp_path / "made.yaml") == 0
    assert "old.log:16: 2 results were wrong" in capsys.readouterr().err
    assert "2 results were wrong" in load_cluster(tmp_path / "made.yaml").provenance["left out or assumed"]


def test_a_matrix_is_converted_to_a_cluster_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("topo", FILES / "dgx-h100.txt", "--gpu", "h100-80gb-sxm", "--out", tmp_path / "made.yaml") == 0
    assert "6 by NV18" in capsys.readouterr().out
    assert load_cluster(tmp_path / "made.yaml").node.cards == 4


def test_a_trace_is_converted_to_a_scenario_of_equal_step_time(
    traces: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made.yaml"
    assert _run("kineto", *traces, "--out", made, "--model", "mlp-mini", "--samples", "16") == 0
    reported = capsys.readouterr()
    assert "exposed" in reported.out
    assert "precision: bf16" in reported.err
    assert load_cluster(made).collectives.measured[0].op == "all_reduce"
    scenario = load(tmp_path / "made.scenario.yaml")
    assert scenario.training.measured_step is not None
    assert scenario.training.measured_step.time_s == pytest.approx(800e-6)
    assert predict(scenario).step_time_s >= 800e-6


def test_annotated_layers_become_measured_layers_of_the_device(tmp_path: Path) -> None:
    gradient = {"Sequence number": 6, "Fwd thread id": 1}
    events = [
        host("user_annotation", "ProfilerStep#1", 0.0, 500.0),
        host("user_annotation", "mlp.linear(1024x1024)", 60.0, 40.0),
        host("cpu_op", "aten::mm", 70.0, 10.0, **{"Sequence number": 6, "Fwd thread id": 0}), launch(75.0, 2),
        host("cpu_op", "MmBackward0", 200.0, 20.0, 2, **gradient), launch(205.0, 3, 2),
        kernel("gemm", 80.0, 8.0, 2), kernel("gemm", 210.0, 12.0, 3), all_reduce(300.0, 50.0, 4, 4096),
    ]  # fmt: skip
    path, made = tmp_path / "rank0.json", tmp_path / "made.yaml"
    path.write_text(trace(events))
    assert _run("kineto", path, "--out", made, "--model", "mlp-mini", "--samples", "4", "--precision", "fp32") == 0
    (measured,) = load_cluster(made).device.measured_layers
    assert measured.signature == "mlp.linear(1024x1024)"
    assert measured.passes_s(8) == (pytest.approx(16e-6), pytest.approx(24e-6))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--model", "mlp-mini"], "--model and --samples must be given together"),
        (["--samples", "0"], "give at least 1"),
        (["--layer", "a=b"], "--layer names layers of a model"),
    ],
)
def test_incompatible_options_are_rejected(arguments: list[str], why: str, traces: list[Path]) -> None:
    with pytest.raises(InputError, match=why):
        _run("kineto", *traces, *arguments)


def test_a_chakra_trace_updates_a_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [
        {"Id": 1, "Name": "gemm", "NodeType": 4, "is_cpu_op": False, "runtime": 300},
        {"Id": 2, "Name": "c", "NodeType": 7, "is_cpu_op": False, "runtime": 200, "comm_type": 0, "comm_size": 2**20},
    ]
    paths = [tmp_path / f"trace.{rank}.json" for rank in range(4)]
    for path in paths:
        path.write_text(json.dumps({"workload_graph": nodes}))
    assert _run("chakra", *paths, "--cluster", "dgx-h100", "--out", tmp_path / "made.yaml") == 0
    (measured,) = load_cluster(tmp_path / "made.yaml").collectives.measured
    assert (measured.op, measured.ranks) == ("all_reduce", 4)
    assert measured.bandwidth_Bps == pytest.approx(2**20 / 200e-6, rel=0.01)
    assert "computation" in capsys.readouterr().out


def test_inputs_without_times_write_no_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.0.json"
    node = {"Id": 2, "Name": "c", "NodeType": 7, "comm_type": 0, "comm_size": 4096}
    path.write_text(json.dumps({"workload_graph": [node]}))
    with pytest.raises(InputError, match="no timings found"):
        _run("chakra", path, "--cluster", "dgx-h100", "--out", tmp_path / "made.yaml")
    assert not (tmp_path / "made.yaml").exists()


def test_imported_times_update_the_constants_once(log: Path, traces: list[Path], tmp_path: Path) -> None:
    """The prior is that of the shipped constants, so that a second import of the same log changes nothing; traces, whose
    collectives contain waiting, keep the constants."""
    made = tmp_path / "made.yaml"
    assert _run("nccl-tests", log, "--cluster", "dgx-h100", "--out", made) == 0
    first = load_cluster(made).collectives.adjust
    assert first != Adjust()
    for again in (["nccl-tests", log], ["kineto", *traces]):
        assert _run(*again, "--cluster", made, "--out", made) == 0
        assert load_cluster(made).collectives.adjust == first


def test_learned_constants_are_printed_with_their_intervals(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("nccl-tests", log, "--cluster", "dgx-h100", "--out", tmp_path / "made.yaml") == 0
    text = capsys.readouterr().out
    assert "constant         factor before  after  90 % interval" in text
    assert "predictions of 11 measured times are" in text
    assert _run("nccl-tests", log, "--cluster", "dgx-h100", "--out", tmp_path / "made.yaml", "--json") == 0
    reported = json.loads(capsys.readouterr().out)
    assert {row["constant"] for row in reported["found"] if "constant" in row} == set(Adjust.model_fields)
    assert reported["finding"].startswith("predictions of 11 measured times")


def test_a_network_that_contradicts_its_description_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "slow.log"
    log.write_text(nccl_log("all_reduce", ["one"] * 8 + ["two"] * 8, 60e-6, 5e9))
    assert _run("nccl-tests", log, "--cluster", "dgx-h100", "--out", tmp_path / "made.yaml") == 0
    assert "was expected; check " in capsys.readouterr().err
