from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from scaleproof.commands.measuring import real_job
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.diagnosis.diagnose import of_job
from scaleproof.validator.reconciliation.jobs import comparison
from scaleproof.validator.reconciliation.jobs.job import JobFiles, MeasuredJob, measured_job
from scaleproof.validator.reconciliation.reconcile import ReconciledCase
from tests.validator.calibration.imports.logs import host, launch, step, trace
from tests.validator.reconciliation.jobs.traces import TraceWriter, write_rank


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load("ring-2", [])


@pytest.fixture(scope="module")
def predicted(scenario: Scenario) -> Run:
    return predict(scenario)


def _job(scenario: Scenario, traces: Sequence[Path], log: Path | None = None) -> MeasuredJob:
    return measured_job(scenario, JobFiles(traces, log), lambda _: None)


def _traces(run: Run, folder: Path, marks: bool = True) -> list[Path]:
    """Traces of both ranks of a run of two."""
    classes = [0, len(run.rank_names) - 1]
    return [
        write_rank(run, index, rank, [0, 1], folder / f"rank{rank}.json.gz", marks=marks) for rank, index in enumerate(classes)
    ]


@pytest.mark.parametrize("name", ["ring-2", "pipeline-2", "sharded-2"])
@pytest.mark.parametrize("marks", [True, False])
def test_the_trace_of_a_predicted_run_has_no_differences(name: str, marks: bool, tmp_path: Path) -> None:
    scenario = load("ring-2", ["training.zero=3"]) if name == "sharded-2" else load(name, [])
    run = predict(scenario)
    job = _job(scenario, _traces(run, tmp_path, marks))
    assert job.run.step_time_s == pytest.approx(run.step_time_s, rel=1e-3)
    for phase in comparison.phases(run, job.run):
        assert abs(phase.difference_s) < 1e-3 * run.step_time_s, phase
        assert not phase.words
    for ours, theirs in comparison.communication(run, job.run):
        assert theirs.calls == pytest.approx(ours.calls)
        assert theirs.size_bytes == pytest.approx(ours.size_bytes, rel=1e-3)
    assert not list(comparison.volume_warnings(run, job.run))
    explanation = ReconciledCase(scenario, run, job.run).explanation
    assert explanation is not None
    assert abs(explanation.difference_s) < 1e-3 * run.step_time_s


def test_a_slower_collective_is_found_and_explained(scenario: Scenario, predicted: Run, tmp_path: Path) -> None:
    for rank in range(2):
        writer = TraceWriter()
        for number in range(4):
            at_s = number * 1.0
            writer.host("user_annotation", f"ProfilerStep#{number}", at_s, at_s + 0.999)
            writer.kernel("gemm", at_s, at_s + 0.2)
            recorded = {"Collective name": "allreduce", "In msg nelems": 10**6, "dtype": "Float", "Group size": 2}
            # rank 1 arrives 0.1 s later
            writer.kernel("ncclDevKernel_AllReduce", at_s + 0.2 + 0.1 * rank, at_s + 1.0, **recorded)
        writer.write(tmp_path / f"rank{rank}.json.gz", rank, 2)
    job = _job(scenario, sorted(tmp_path.glob("*.gz")))
    assert job.run.step_time_s == pytest.approx(1.0)
    assert job.run.breakdown_s["exposed_communication"] == pytest.approx(0.7)
    assert job.run.breakdown_s["waiting_for_ranks"] == pytest.approx(0.05)
    assert job.run.breakdown_s["other"] == pytest.approx(0.05, abs=1e-6)
    (part,) = job.run.communication
    assert part.label == "DP all-reduce"
    assert (part.calls, part.size_bytes) == pytest.approx((1, 4e6))
    worst = comparison.phases(predicted, job.run)[0]
    assert worst.name == "exposed_communication"
    assert "DP all-reduce moves 3.81 MiB where 12.6 MiB were predicted" in worst.words
    (warning,) = comparison.volume_warnings(predicted, job.run)
    assert warning.startswith("DP moves 3.81 MiB a step, far less than the 12.6 MiB that the scenario implies")


def test_a_slow_rank_is_named_before_the_network(tmp_path: Path) -> None:
    """The others wait for it in their collectives, which the network has no part in."""
    ranks, slow = 16, 11
    fields = ["cluster=dgx-h100", "strategy.workers=16", "batch=64"]
    scenario = load("ring-2", fields)
    run = predict(load("ring-2", [*fields, f"unevenness={{stragglers: [{{ranks: [{slow}], slowdown: 1.25}}]}}"]))
    classes = [max(0, rank - ranks // 2 + 1) for rank in range(ranks)]
    assert run.rank_names[classes[slow]] == f"worker {slow}"
    paths = [tmp_path / f"rank{rank}.json.gz" for rank in range(ranks)]
    traces = [write_rank(run, classes[rank], rank, list(range(ranks)), path) for rank, path in enumerate(paths)]
    job = _job(scenario, traces)
    case = ReconciledCase(scenario, predict(scenario), job.run)
    text = real_job.describe(case, False, "traces", of_job(job.ranks, []))
    assert text.startswith(f"rank {slow} (GPU 0) computes 25.0 % slower than its peers; it costs")
    assert f"ranks wait for rank {slow}" in text
    assert "--probe collective" not in text


def test_a_log_gives_the_step_time_and_the_trace_its_parts(scenario: Scenario, predicted: Run, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    seconds = 2 * predicted.step_time_s
    line = " iteration {:4}/ 9 | elapsed time per iteration (ms): {:.6f} | lm loss: 1.0 |\n"
    log.write_text("".join(line.format(number, 1e3 * seconds) for number in range(1, 9)))
    run = _job(scenario, _traces(predicted, tmp_path), log).run
    assert run.step_time_s == pytest.approx(seconds)
    assert sum(run.breakdown_s.values()) == pytest.approx(seconds, rel=1e-3)
    assert run.phase_s["forward"] == pytest.approx(2 * predicted.phase_s["forward"], rel=1e-3)
    assert run.provenance["files"] == "--trace rank0.json.gz rank1.json.gz --log train.log"


def test_a_traced_cpu_run_has_operators_as_compute_and_gloo_as_communication(scenario: Scenario, tmp_path: Path) -> None:
    events = []
    for number in range(3):
        at = number * 100.0
        sized = {"Input Dims": [[1000]], "Input type": ["float"]}
        events += [
            host("user_annotation", f"ProfilerStep#{number}", at, 100.0),
            host("cpu_op", "aten::linear", at + 10, 40.0),
            host("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", at + 50, 20.0),
            host("user_annotation", "gloo:all_reduce", at + 60, 30.0, 2, **sized),
        ]
    path = tmp_path / "rank0.json"
    path.write_text(trace(events))
    run = _job(scenario, [path]).run
    assert run.phase_s == pytest.approx(
        {phase.label: 0.0 for phase in Phase} | {"forward": 40e-6, "backward": 20e-6, "synchronise": 20e-6}
    )
    assert run.communication[0].size_bytes == 4000


def test_a_chakra_trace_is_one_step(scenario: Scenario, tmp_path: Path) -> None:
    sized = [{"name": "comm_type", "int64Val": "0"}, {"name": "comm_size", "int64Val": "4000"}]
    nodes = [
        {"id": 1, "name": "gemm", "type": "COMP_NODE", "startTimeMicros": 0, "durationMicros": 60},
        {"id": 2, "name": "c", "type": "COMM_COLL_NODE", "startTimeMicros": 50, "durationMicros": 50, "attr": sized},
    ]
    paths = [tmp_path / f"chakra.{rank}.et.json" for rank in range(2)]
    for path in paths:
        path.write_text(json.dumps(nodes))
    run = _job(scenario, paths).run
    assert run.step_time_s == pytest.approx(100e-6)
    assert run.breakdown_s["exposed_communication"] == pytest.approx(40e-6)
    assert [part.label for part in run.communication] == ["DP all-reduce"]


def _bad(tmp_path: Path, events: list[dict[str, object]], name: str = "rank0.json", rank: int = 0, world: int = 2) -> Path:
    path = tmp_path / name
    path.write_text(trace(events, rank, world))
    return path


def test_unusable_traces_are_refused_in_one_line(scenario: Scenario, tmp_path: Path) -> None:
    two = [*step(1, 0.0), *step(2, 1000.0)]
    unmarked = [event for event in two if "Step" not in event["name"]]
    with pytest.raises(InputError, match=r"no steps found, neither ProfilerStep marks nor an optimizer that repeats"):
        _job(scenario, [_bad(tmp_path, unmarked)])
    with pytest.raises(InputError, match=r"the job has 4 ranks, ring-2 describes 2; add --set gpus=4"):
        _job(scenario, [_bad(tmp_path, two, world=4)])
    with pytest.raises(InputError, match="are both of rank 0; give one trace per rank"):
        _job(scenario, [_bad(tmp_path, two), _bad(tmp_path, two, "rank1.json")])
    with pytest.raises(InputError, match="is of rank 5, but ring-2 has ranks 0 to 1"):
        _job(scenario, [_bad(tmp_path, two, rank=5)])
    with pytest.raises(InputError, match="nothing runs in ProfilerStep#3"):
        _job(scenario, [_bad(tmp_path, [*two, host("user_annotation", "ProfilerStep#3", 9e6, 1.0), launch(0.0, 99)])])
    with pytest.raises(InputError, match="traces of 1 to 2 steps; give the traces of one profiled window"):
        _job(scenario, [_bad(tmp_path, two), _bad(tmp_path, [*two, *step(3, 2000.0)], "rank1.json", rank=1)])
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(json.dumps(two).encode())[:20])
    with pytest.raises(InputError, match=r"cut\.json\.gz"):
        _job(scenario, [tmp_path / "cut.json.gz"])


def test_traces_without_gpu_kernels_are_refused_for_gpus(tmp_path: Path) -> None:
    gpus = load("llama-2-7b-fsdp-a100", [])
    world = gpus.strategy.training_ranks
    events = [host("user_annotation", "ProfilerStep#1", 0.0, 100.0), host("cpu_op", "aten::linear", 10.0, 40.0)]
    with pytest.raises(InputError, match=r"no kernels of a GPU, but .*; profile with ProfilerActivity\.CUDA"):
        _job(gpus, [_bad(tmp_path, events, world=world)])
