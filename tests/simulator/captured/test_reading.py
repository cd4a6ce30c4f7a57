"""Capture files as captured scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaleproof.simulator.captured.groups import Replicas
from scaleproof.simulator.captured.reading import script_of_capture
from scaleproof.simulator.captured.record import Capture, Category, EventKind, ProcessGroup, TrainingPass
from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.common.communication import Dimension
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from tests.simulator.captured.records import Step, capture, data_parallel, rank_class

ROWS = ((8192, 4096), "bfloat16")
WEIGHTS = ((4096, 4096), "bfloat16")
BYTES = 2 * 8192 * 4096
SENT = 4096


def test_a_file_is_predicted(tmp_path: Path) -> None:
    data_parallel().write(tmp_path / "train.zip")
    run = predict(load(tmp_path / "train.zip"))
    one = 2.0 * 8192 * 4096 * 4096
    assert (run.scenario, run.ranks, run.samples, run.tokens) == ("train", 16, 64, 64 * 2048)
    assert (run.model_flops, run.hardware_flops) == (16 * 2 * one, 16 * 3 * one)
    (part,) = run.communication
    assert (part.label, part.calls, part.size_bytes) == ("DP all-reduce", 1.0, 32 * 2**20)
    assert run.memory_bytes is not None
    assert run.memory_bytes["optimizer_states"] == 128 * 2**20
    assert run.memory_bytes["activations"] == 64 * 2**20


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "train.zip"
    for workers in (16, 8):
        data_parallel(workers).write(path)
        assert load(path).strategy.ranks == workers


def test_a_sum_that_the_script_never_waits_for_ends_before_the_optimizer_begins(tmp_path: Path) -> None:
    left, waits = (tmp_path / name for name in ("left.zip", "waits.zip"))
    data_parallel().write(left)
    data_parallel(waits=True).write(waits)
    assert script_of_capture(data_parallel(), "train").classes[0].events.never_waited == [7]
    assert script_of_capture(data_parallel(waits=True), "train").classes[0].events.never_waited == []
    first, second = (predict(load(path), interval=False) for path in (left, waits))
    assert first.step_time_s == second.step_time_s
    assert first.breakdown_s == second.breakdown_s


@pytest.mark.parametrize(
    ("name", "read", "written", "whole"),
    [
        ("all_gather", BYTES // 8, BYTES, BYTES), ("reduce_scatter", BYTES, BYTES // 8, BYTES),
        ("all_reduce", BYTES, BYTES, BYTES), ("alltoall", BYTES, BYTES, BYTES),
        ("broadcast", BYTES, 0, BYTES), ("gather", BYTES, 0, 8 * BYTES),
    ],
)  # fmt: skip
def test_sizes_of_collectives_are_those_of_whole_buffers(name: str, read: int, written: int, whole: int) -> None:
    step = Step().add(EventKind.STEP).collective(name, 0, read, written, 1, TrainingPass.BACKWARD)
    events = script_of_capture(capture(rank_class(step, range(8), [ProcessGroup("0", range(8))])), "train").classes[0].events
    (issued,) = events.rows(EventKind.COLLECTIVE)
    assert events.size_bytes[issued] == whole


def test_groups_that_sum_activations_on_the_stream_of_the_kernels_are_inside_a_replica() -> None:
    step = Step().add(EventKind.STEP)
    step.operator("aten::mm", [ROWS, WEIGHTS], ROWS, TrainingPass.FORWARD)
    step.collective("all_reduce", 0, BYTES, BYTES, 1, TrainingPass.FORWARD)
    step.add(EventKind.WORK_WAIT, work=1, stream=0)
    step.operator("aten::mm", [ROWS, WEIGHTS], ROWS, TrainingPass.BACKWARD)
    step.collective("all_reduce", 1, BYTES, BYTES, 2, TrainingPass.BACKWARD)
    groups = [ProcessGroup("0", range(2)), ProcessGroup("1", range(0, 16, 2))]
    script = script_of_capture(capture(rank_class(step, range(16), groups)), "train")
    assert script.replicas == Replicas(8, 2)
    events = script.classes[0].events
    assert [events.dimension[row] for row in events.rows(EventKind.COLLECTIVE)] == [Dimension.TENSOR, Dimension.DATA]


def test_parameters_gathered_on_a_stream_of_their_own_are_sharded_over_replicas() -> None:
    step = Step().add(EventKind.STEP)
    step.operator("aten::mm", [ROWS, WEIGHTS], ROWS, TrainingPass.FORWARD)
    step.collective("all_gather", 0, BYTES // 16, BYTES, 1, TrainingPass.FORWARD, stream=2)
    script = script_of_capture(capture(rank_class(step, range(16), [ProcessGroup("0", range(16), "mesh_dp")])), "train")
    assert script.shards
    assert script.replicas == Replicas(16)


def pipeline(file: Path) -> None:
    """Writes a capture of two stages of four workers each, which exchange activations and their gradients."""
    classes = []
    for stage, peer in ((0, 4), (1, 0)):
        step = Step().add(EventKind.STEP)
        forward = {"group": 0, "peer": peer, "tag": 0, "phase": TrainingPass.FORWARD, "stream": 0, "work": 1}
        backward = forward | {"phase": TrainingPass.BACKWARD, "work": 2}
        if stage:
            step.add(EventKind.RECEIVE, bytes_written=SENT, **forward).add(EventKind.WORK_WAIT, work=1, stream=0)
            step.operator("aten::mm", [ROWS, WEIGHTS], ROWS, TrainingPass.FORWARD)
            step.operator("aten::mm", [ROWS, WEIGHTS], ROWS, TrainingPass.BACKWARD)
            step.add(EventKind.SEND, bytes_read=SENT, **backward).add(EventKind.WORK_WAIT, work=2, stream=0)
        else:
            step.operator("aten::mm", [ROWS, WEIGHTS], ROWS, TrainingPass.FORWARD)
            step.add(EventKind.SEND, bytes_read=SENT, **forward).add(EventKind.WORK_WAIT, work=1, stream=0)
            step.add(EventKind.RECEIVE, bytes_written=SENT, **backward).add(EventKind.WORK_WAIT, work=2, stream=0)
            step.operator("aten::mm", [ROWS, WEIGHTS], ROWS, TrainingPass.BACKWARD)
        ranks = range(4 * stage, 4 * stage + 4)
        groups = [ProcessGroup("pp", range(0, 8, 4), "mesh_pp"), ProcessGroup("dp", ranks, "mesh_dp")]
        classes.append(rank_class(step, ranks, groups, name=f"stage {stage}"))
    capture(*classes).write(file)


def test_stages_of_a_pipeline_wait_for_one_another(tmp_path: Path) -> None:
    pipeline(tmp_path / "stages.zip")
    scenario = load(tmp_path / "stages.zip")
    run = predict(scenario)
    assert isinstance(scenario.strategy, CapturedStrategy)
    assert (scenario.strategy.script.replicas, run.ranks, run.samples) == (Replicas(4, 1), 8, 16)
    # both passes of both stages follow one another, so that each stage is idle for half of the step
    assert run.breakdown_s["compute"] + run.breakdown_s["slowest_rank"] == pytest.approx(run.step_time_s / 2, rel=0.05)
    more = predict(load(tmp_path / "stages.zip", {"strategy.workers": 8}), interval=False)
    assert (more.ranks, more.samples) == (16, 32)


def test_microbatches_add_up_to_the_samples_of_a_step() -> None:
    step = Step().add(EventKind.STEP).operator("aten::mm", [ROWS, WEIGHTS], ROWS, TrainingPass.FORWARD)
    script = script_of_capture(capture(rank_class(step, range(8), [], batch=(4, 4096), calls=3)), "train")
    assert (script.samples, script.tokens) == (12, None)


def test_a_capture_without_cluster_needs_one(tmp_path: Path) -> None:
    step = Step().add(EventKind.STEP).operator("aten::mm", [ROWS, WEIGHTS], ROWS, TrainingPass.FORWARD)
    capture(rank_class(step, range(8), []), cluster=None).write(tmp_path / "train.zip")
    with pytest.raises(InputError, match="--set cluster"):
        load(tmp_path / "train.zip")
    assert load(tmp_path / "train.zip", {"cluster": "dgx-a100"}).cluster.name == "dgx-a100"


def test_gradients_that_stay_until_the_next_step_are_parameters_bytes_of_their_own() -> None:
    step = Step().allocate(0, 1024, Category.GRADIENTS).add(EventKind.STEP)
    step.operator("aten::mm", [ROWS, WEIGHTS], ROWS, TrainingPass.FORWARD)
    one = script_of_capture(capture(rank_class(step, range(8), [])), "train").classes[0]
    assert [(event.number, getattr(event, "holder", "")) for event in one.before] == [(0, "gradients")]
    assert list(one.allocations) == []


@pytest.mark.parametrize(("allowed", "precision"), [(True, "tf32"), (False, "fp32"), (None, "fp32")])
def test_products_of_32_bit_floats_run_at_the_rate_of_tf32_where_the_script_allows_it(
    allowed: bool | None, precision: str, tmp_path: Path
) -> None:
    rows, weights = ((8192, 4096), "float32"), ((4096, 4096), "float32")
    arguments = {} if allowed is None else {"allow_tf32": allowed}

    def script(arguments: dict[str, bool]) -> Path:
        step = Step().add(EventKind.STEP)
        step.operator("aten::mm", [rows, weights], rows, TrainingPass.FORWARD, arguments=arguments)
        step.operator("aten::relu", [rows], rows, TrainingPass.FORWARD)
        capture(rank_class(step, range(8), [])).write(tmp_path / "train.zip")
        return tmp_path / "train.zip"

    scenario = load(script(arguments))
    # files of earlier releases do not say it
    assert bool(script_of_capture(Capture.read(tmp_path / "train.zip"), "train").warnings) == (allowed is None)
    assert scenario.training.precision == precision
    spent_s = predict(scenario, interval=False).step_time_s
    exact_s = predict(load(script({"allow_tf32": False})), interval=False).step_time_s
    # 494 of 67 TFLOP/s on an H100
    assert (exact_s > 4 * spent_s) if precision == "tf32" else (exact_s == spent_s)
    # a device without TF32 computes them exactly
    older = {"cluster.device": "v100-16gb-sxm2"}
    assert predict(load(script(arguments), older), interval=False).step_time_s == pytest.approx(
        predict(load(script({"allow_tf32": False}), older), interval=False).step_time_s
    )
