"""Precision of gradients: bytes and times of accumulating and reducing them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from simulator.engine import replay
from simulator.errors import ScenarioError
from simulator.estimate import Space, every, memory_bytes, step_times
from simulator.gradients import gradient_sizes
from simulator.memory import memory
from simulator.memory.software import MEGATRON, PYTORCH
from simulator.predict import predict, timed
from simulator.scenario import Scenario
from simulator.strategy.costs import GradientSizes

Make = Callable[..., Scenario]

MODEL = "model={kind: llama, layers: 8, hidden: 512, heads: 8, vocabulary: 8192, sequence: 256}"
ON = (MODEL, "cluster=selene-a100", "batch=64", "training.precision=bf16", "training.optimizer=adam")
WIDE = "training.accumulate_precision=fp32"


def hybrid(**fields: object) -> str:
    return f"strategy={{kind: hybrid, {', '.join(f'{name}: {value}' for name, value in fields.items())}}}"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ((), (2, 2, 0)),
        (("training.reduce_precision=fp32",), (4, 4, 0)),
        # 2 bytes of a gradient and 4 of a buffer are read, 4 are written
        ((WIDE,), (4, 2, 10)),
        # 4 are read, and 4 are written in place of 2
        ((WIDE, "training.fused_accumulation=true"), (4, 2, 6)),
        (("training.accumulate_precision=bf16",), (2, 2, 6)),
        (("training.fused_accumulation=true",), (2, 2, 2)),
        ((WIDE, "training.reduce_precision=bf16"), (4, 2, 10)),
    ],
)
def test_bytes_of_gradients(small: Make, fields: tuple[str, ...], expected: tuple[int, int, int]) -> None:
    scenario = small(*ON, *fields)
    assert gradient_sizes(scenario.training, scenario.strategy) == GradientSizes(*expected)


@pytest.mark.parametrize(("fused", "added"), [("false", 10), ("true", 6)])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_every_microbatch_moves_the_buffer(small: Make, fused: str, added: int, microbatches: int) -> None:
    strategy = hybrid(microbatches=microbatches)
    plain, adding = (small(*ON, strategy, *more) for more in ((), (WIDE, f"training.fused_accumulation={fused}")))
    device = plain.cluster.device
    assert device.kernels is not None
    moved_s = added * plain.model.parameters() / (device.memory_bandwidth_Bps * device.kernels.memory_share)
    assert timed(adding).step_time_s - timed(plain).step_time_s == pytest.approx(microbatches * moved_s)


def test_additions_are_of_gradients_of_weights(small: Make) -> None:
    """A zero-bubble schedule makes them apart from gradients of activations."""
    plain, adding = (small(*ON, *more).job() for more in ((), (WIDE,)))
    assert adding.weights_s() - plain.weights_s() == pytest.approx(adding.costs().backward_s - plain.costs().backward_s)


@pytest.mark.parametrize(("zero", "adds"), [(0, True), (1, True), (2, False), (3, False)])
def test_whole_gradients_alone_are_added_to(small: Make, zero: int, adds: bool) -> None:
    plain, adding = (timed(small(*ON, f"training.zero={zero}", *more)).step_time_s for more in ((), (WIDE,)))
    assert (adding > plain) == adds


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_ranks_sum_as_many_bytes_as_the_precision_says(small: Make, zero: int) -> None:
    narrow, wide = (
        timed(small(*ON, f"training.zero={zero}", f"training.reduce_precision={name}")).breakdown_s for name in ("bf16", "fp32")
    )
    assert sum(wide.values()) > sum(narrow.values())
    assert wide["compute"] == pytest.approx(narrow["compute"])


def test_one_field_says_what_the_older_one_did(small: Make) -> None:
    older = small(*ON, hybrid(workers=4, gradient_bytes=4))
    field = small(*ON, hybrid(workers=4), "training.reduce_precision=fp32")
    assert predict(older).step_time_s == predict(field).step_time_s
    assert memory(older) == memory(field)


def test_memory_of_gradients(small: Make) -> None:
    def held(software: object, *fields: str) -> dict[str, float]:
        scenario = small(*ON, hybrid(workers=4, overlap="true"), *fields)
        return dict(memory(scenario, software).worst.holders_bytes)  # type: ignore[arg-type]

    parameters = small(*ON).model.parameters()
    megatron = replace(MEGATRON, main_gradients=False)
    assert held(megatron)["gradients"] == pytest.approx(2 * parameters)
    assert held(megatron, WIDE)["gradients"] == pytest.approx(4 * parameters)
    # a bucket is summed while another is filled, in 16 bits
    buckets = held(megatron, WIDE)["communication"] - held(megatron, "training.reduce_precision=fp32")["communication"]
    assert buckets == pytest.approx(2 * 25 * 2**20)
    # DistributedDataParallel has buckets of its own for all gradients
    more = held(PYTORCH, "training.reduce_precision=fp32")["communication"] - held(PYTORCH)["communication"]
    assert more == pytest.approx(2 * parameters)


def test_estimates_count_additions(small: Make) -> None:
    base = small(*ON, hybrid(workers=4, overlap="true"), WIDE, "training.fused_accumulation=true")
    found = every(
        Space(base, (8, 16), tensor=(1, 2), stages=(1, 2, 4), samples=(1, 2), zero=(0, 1, 2, 3), schedules=("1f1b", "zb_h1"))
    )
    rows = np.random.default_rng(3).choice(len(found), 40, replace=False)
    times, held_bytes = step_times(found.take(rows)), memory_bytes(found.take(rows))
    replayed_s = np.array([timed(found.scenario(row), simulate=replay.simulate).step_time_s for row in rows])
    assert (times.least_s <= replayed_s * (1 + 1e-9)).all()
    errors = np.abs(times.expected_s / replayed_s - 1)
    assert np.median(errors) <= 0.03
    assert errors.max() <= 0.10
    assert held_bytes == pytest.approx([memory(found.scenario(row)).worst.total_bytes for row in rows])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("training.accumulate_precision=fp16",), "gradients are bf16, not fp16; give fp32 or bf16"),
        (("training.reduce_precision=fp64",), "gradients are bf16, not fp64; give fp32 or bf16"),
        (("training.reduce_precision=half",), "'half' is not known"),
        (
            ("strategy={kind: parameter_server, workers: 4, servers: 1}", WIDE),
            "training.accumulate_precision: workers of a parameter_server exchange gradients as they are",
        ),
        (
            ("strategy={kind: local_sgd, workers: 4, period: 4}", "training.fused_accumulation=true"),
            "training.fused_accumulation: workers of a local_sgd exchange gradients as they are",
        ),
        (
            (hybrid(workers=4, gradient_bytes=4), "training.reduce_precision=fp32"),
            "strategy.gradient_bytes: training.reduce_precision says it already; leave gradient_bytes out",
        ),
    ],
)
def test_what_cannot_be_is_refused(small: Make, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        small(*ON, *overrides)
    assert message in str(caught.value)
