"""Precision of gradients: bytes and times of accumulating and reducing them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scaleproof.simulator.analysis.planner.estimate import Space, every, memory_bytes, step_times
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.engine import replay
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.scenario.training import GradientSizes, gradient_sizes
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.programs import hybrid

Make = Callable[..., Scenario]

MODEL = "model={kind: llama, layers: 8, hidden: 512, heads: 8, vocabulary: 8192, sequence: 256}"
# a framework that says nothing of gradients
PLAIN = "framework=ideal"
ON = (MODEL, "cluster=selene-a100", "batch=64", "training.precision=bf16", "training.optimizer=adam", PLAIN)
WIDE = "training.accumulate_precision=fp32"


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
        (("training.fused_accumulation=true",), (2, 2, 2, True)),
        ((WIDE, "training.reduce_precision=bf16"), (4, 2, 10)),
    ],
)
def test_bytes_of_gradients_follow_their_precision(
    small: Make, fields: tuple[str, ...], expected: tuple[int, int, int]
) -> None:
    scenario = small(*ON, *fields)
    assert gradient_sizes(scenario.training, scenario.strategy, scenario.framework) == GradientSizes(*expected)


@pytest.mark.parametrize(("fused", "added"), [("false", 10), ("true", 6)])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_each_microbatch_reads_and_writes_the_gradient_buffer(small: Make, fused: str, added: int, microbatches: int) -> None:
    strategy = hybrid(microbatches=microbatches)
    plain, adding = (small(*ON, strategy, *more) for more in ((), (WIDE, f"training.fused_accumulation={fused}")))
    device = plain.cluster.device
    assert device.kernels is not None
    moved_s = added * plain.model.parameters() / (device.memory_bandwidth_Bps * device.kernels.memory_share)
    assert timed(adding).step_time_s - timed(plain).step_time_s == pytest.approx(microbatches * moved_s)


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("workers", [1, 4])
def test_the_first_microbatch_makes_gradients_and_the_last_fills_buckets(small: Make, workers: int, microbatches: int) -> None:
    # time of the host would hide a part
    base, strategy = "framework={base: pytorch-ddp, host: {kernel: 0 s}%s}", {"workers": workers, "microbatches": microbatches}
    without = "".join((", buckets: {accesses: 0}", ", gradients: {fused: null}"))
    fields = *ON, hybrid(**strategy), "strategy.overlap=false", "training.autocast=false"
    plain, own = (small(*fields, base % more) for more in (without, ""))
    device = plain.cluster.device
    assert device.kernels is not None
    # gradient and sum are read, and the sum written; gradients are read and written twice for buckets, where replicas sum them
    moved_bytes = 3 * 2 * (microbatches - 1) + 4 * 2 * (workers > 1)
    moved_s = moved_bytes * plain.model.parameters() / (device.memory_bandwidth_Bps * device.kernels.memory_share)
    longer_s = timed(own).step_time_s - timed(plain).step_time_s
    assert longer_s == pytest.approx(moved_s, rel=0.03, abs=1e-9)


def test_additions_are_part_of_weight_gradient_passes(small: Make) -> None:
    """A zero-bubble schedule computes them separately from gradients of activations."""
    plain, adding = (job_of(small(*ON, *more)) for more in ((), (WIDE,)))
    assert adding.weights_s() - plain.weights_s() == pytest.approx(adding.costs().backward_s - plain.costs().backward_s)


@pytest.mark.parametrize(("zero", "adds"), [(0, True), (1, True), (2, False), (3, False)])
def test_only_unsharded_gradients_are_accumulated(small: Make, zero: int, adds: bool) -> None:
    plain, adding = (timed(small(*ON, f"training.zero={zero}", *more)).step_time_s for more in ((), (WIDE,)))
    assert (adding > plain) == adds


@pytest.mark.parametrize(
    ("framework", "fields", "expected"),
    [
        # summed and accumulated in 32 bits by products that add to the buffer themselves, one read more than a 16-bit write
        ("megatron-core-0.12", (), (4, 4, 6)),
        ("nemo", (), (2, 2, 2)),
        # accumulated in 32 bits by a kernel: 2 bytes of a gradient and 4 of the buffer are read, 4 are written
        ("nanotron", (), (4, 4, 10)),
        # converted where they are scattered; where they are not, the first are the sum to which others are added
        ("pytorch-fsdp2", (), (4, 4, 10, True)),
        ("pytorch-ddp", ("training.autocast=false",), (2, 2, 6, True)),
        # autocast computes gradients of 32-bit parameters
        ("pytorch-ddp", (), (4, 4, 12, True)),
        # what a scenario says comes first
        ("megatron-core-0.12", ("training.reduce_precision=bf16",), (4, 2, 6)),
        ("megatron-core-0.12", ("training.fused_accumulation=false",), (4, 4, 10)),
        ("nemo", (WIDE,), (4, 2, 6)),
    ],
)
def test_frameworks_set_the_default_gradient_precision(
    small: Make, framework: str, fields: tuple[str, ...], expected: tuple[int, int, int]
) -> None:
    scenario = small(*ON, f"framework={framework}", *fields)
    assert gradient_sizes(scenario.training, scenario.strategy, scenario.framework) == GradientSizes(*expected)


@pytest.mark.parametrize(
    ("framework", "precision", "expected"),
    [
        # Megatron-LM has 32-bit buffers for bf16 alone, and for products in 8 bits, whose gradients are bf16
        ("megatron-core-0.12", "bf16", (4, 4, 6)),
        ("megatron-core-0.12", "fp16", (2, 2, 2)),
        ("megatron-lm-2022", "fp16", (2, 2, 2)),
        ("megatron-lm-2022", "bf16", (4, 4, 6)),
        ("megatron-core-0.12", "fp32", (4, 4, 4)),
        # one precision for all, which is never below the training's
        ("{base: ideal, gradients: {accumulate: fp32}}", "fp16", (4, 2, 0)),
        ("{base: ideal, gradients: {reduce: bf16}}", "fp32", (4, 4, 0)),
        # one for all others
        ("{base: ideal, gradients: {accumulate: {any: fp32, fp16: fp16}}}", "fp16", (2, 2, 0)),
        ("{base: ideal, gradients: {accumulate: {any: fp32, fp16: fp16}}}", "bf16", (4, 2, 0)),
    ],
)
def test_framework_defaults_depend_on_training_precision(
    small: Make, framework: str, precision: str, expected: tuple[int, int, int]
) -> None:
    scenario = small(*ON, "model.flash=false", f"framework={framework}", f"training.precision={precision}")
    assert gradient_sizes(scenario.training, scenario.strategy, scenario.framework) == GradientSizes(*expected)


def test_gradient_memory_follows_the_precision(small: Make) -> None:
    def holders_bytes(framework: str, *fields: str) -> dict[str, float]:
        scenario = small(*ON, f"framework={framework}", hybrid(workers=4, overlap="true", bucket="25 MiB"), *fields)
        return dict(memory(scenario).worst.holders_bytes)

    parameters = small(*ON).model.parameters()
    buffers = "{base: ideal, memory: {gradients: buffers, copies_buckets: false}}"
    assert holders_bytes(buffers)["gradients"] == pytest.approx(2 * parameters)
    assert holders_bytes(buffers, WIDE)["gradients"] == pytest.approx(4 * parameters)
    # a bucket is summed while another is filled, in 16 bits
    buckets = (
        holders_bytes(buffers, WIDE)["communication"]
        - holders_bytes(buffers, "training.reduce_precision=fp32")["communication"]
    )
    assert buckets == pytest.approx(2 * 25 * 2**20)
    # DistributedDataParallel has buckets of its own for all gradients
    more = (
        holders_bytes("pytorch-ddp", "training.autocast=false", "training.reduce_precision=fp32")["communication"]
        - holders_bytes("pytorch-ddp", "training.autocast=false")["communication"]
    )
    assert more == pytest.approx(2 * parameters)


@pytest.mark.parametrize(
    ("framework", "fields", "tensor", "zero"),
    [
        ("torchtitan", (WIDE, "training.fused_accumulation=true"), (1, 2), (0, 1, 2, 3)),
        # copies into buckets in the last microbatch, and no additions in the first
        ("pytorch-ddp", ("training.autocast=false",), (1,), (0, 1)),
    ],
)
def test_estimates_include_gradient_accumulation(
    small: Make, framework: str, fields: tuple[str, ...], tensor: tuple[int, ...], zero: tuple[int, ...]
) -> None:
    base = small(*ON, f"framework={framework}", hybrid(workers=4, overlap="true"), *fields)
    space = Space(base, (8, 16), tensor=tensor, stages=(1, 2, 4), samples=(1, 2), zero=zero, schedules=("1f1b", "zb_h1"))
    found = every(space)
    rows = np.random.default_rng(3).choice(len(found), min(40, len(found)), replace=False)
    times, allocated_bytes = step_times(found.take(rows)), memory_bytes(found.take(rows))
    replayed_s = np.array([timed(found.scenario(row), simulate=replay.simulate).step_time_s for row in rows])
    assert (times.least_s <= replayed_s * (1 + 1e-9)).all()
    errors = np.abs(times.expected_s / replayed_s - 1)
    assert np.median(errors) <= 0.03
    assert errors.max() <= 0.10
    assert allocated_bytes == pytest.approx([memory(found.scenario(row)).worst.total_bytes for row in rows])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("training.accumulate_precision=fp16",), "gradients are bf16, not fp16; give fp32 or bf16"),
        (("training.reduce_precision=fp64",), "gradients are bf16, not fp64; give fp32 or bf16"),
        (("training.reduce_precision=half",), "'half' is not known"),
        (
            ("strategy={kind: parameter_server, workers: 4, servers: 1}", WIDE),
            "training.accumulate_precision: not supported by the strategy parameter_server",
        ),
        (
            ("strategy={kind: local_sgd, workers: 4, period: 4}", "training.fused_accumulation=true"),
            "training.fused_accumulation: not supported by the strategy local_sgd",
        ),
    ],
)
def test_invalid_gradient_precisions_are_rejected(small: Make, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        small(*ON, *overrides)
    assert message in str(caught.value)
