"""Data parallelism: bytes and times of averages, and waiting between workers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaleproof.simulator.analysis.collective.time import collective_time
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.predict import predict
from scaleproof.simulator.program import Kind
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.programs import compiled, moved_bytes, step_s, work_s

Make = Callable[..., Scenario]
few = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
ONE_BUCKET = "bucket: 1 GiB, first_bucket: 1 GiB, overlap: false"


def averaged(small: Make, numbers: str, *more: str) -> Scenario:
    return small(f"strategy={{kind: data_parallel, {numbers}}}", *more)


@pytest.mark.parametrize("workers", [2, 3, 5, 8])
def test_a_ring_moves_the_theoretical_bytes_through_every_card(small: Make, workers: int) -> None:
    """Each rank sends and receives 2 (n − 1) / n times the gradients: Patarasuk & Yuan 2009."""
    program = compiled(
        averaged(small, f"workers: {workers}, algorithm: ring", "cluster.node.devices=1", "batch={per_worker: 1}")
    )
    theory = 2 * (workers - 1) / workers * 4 * small().model.parameters()
    passed: dict[str, float] = {}
    for uses, amount in zip(program.uses(), program.amount.tolist(), strict=True):
        for use in uses:
            name = program.resources.names[use.resource]
            passed[name] = passed.get(name, 0.0) + use.per_unit * amount
    assert passed["network 0 out"] == pytest.approx(theory)
    assert passed["network 0 in"] == pytest.approx(theory)
    assert moved_bytes(program) == pytest.approx(theory)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving_doubling", "hierarchical"])
@pytest.mark.parametrize("network", ["{bandwidth: 1 Gbit/s, latency: 0}", "{bandwidth: 1 Tbit/s, latency: 5 ms}"])
def test_an_average_takes_the_time_of_its_algorithm(small: Make, algorithm: str, network: str) -> None:
    scenario = averaged(small, f"workers: 32, {ONE_BUCKET}, algorithm: {algorithm}", f"cluster.network={network}", "batch=32")
    run = predict(scenario)
    size_bytes = 4 * scenario.model.parameters()
    took_s = collective_time("all_reduce", size_bytes, 32, scenario.cluster, algorithm)
    assert run.breakdown_s["exposed_communication"] == pytest.approx(took_s)


@pytest.mark.parametrize("overlap", ["false", "true"])
@pytest.mark.parametrize("microbatches", [1, 2, 4, 8])
def test_gradients_of_all_microbatches_are_averaged_once(small: Make, overlap: str, microbatches: int) -> None:
    """Equal bytes and FLOPs for any number of microbatches, with software whose additions of gradients cost nothing."""
    numbers, fields = f"workers: 8, bucket: 50 KiB, overlap: {overlap}", ("batch=64", "framework=ideal")
    once, often = (compiled(averaged(small, f"{numbers}, microbatches: {count}", *fields)) for count in (1, microbatches))
    assert moved_bytes(often) == pytest.approx(moved_bytes(once))
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        assert work_s(often, phase) == pytest.approx(work_s(once, phase))
    assert (often.kind == Kind.COLLECTIVE).sum() == (once.kind == Kind.COLLECTIVE).sum()
    # a backward pass with less compute to overlap a sum with
    assert step_s(often) >= step_s(once) * (1 - 1e-9)


@pytest.mark.parametrize(("bucket", "first"), [("100 KiB", "10 KiB"), ("1 MiB", "1 MiB"), ("30 KiB", "300 KiB"), ("0", "0")])
def test_buckets_close_at_their_size_from_the_last_layer_on(small: Make, bucket: str, first: str) -> None:
    scenario = averaged(small, f"workers: 8, bucket: {bucket}, first_bucket: {first}", "batch=64")
    program = compiled(scenario)
    sizes_bytes = program.amount[program.kind == Kind.COLLECTIVE] / (2 * 7 / 8)
    tensors = [4 * tensor for layer in scenario.model.build_layers() for tensor in layer.tensors][::-1]
    limits = scenario.strategy.plan.bucket_limits_bytes
    filled: list[int] = [0]
    for tensor in tensors:
        if filled[-1] >= limits[len(filled) > 1] and filled[-1] > 0:
            filled.append(0)
        filled[-1] += tensor
    assert sizes_bytes == pytest.approx(filled)
    before = program.dependencies.lists()
    made = [max(before[row]) for row in np.flatnonzero(program.kind == Kind.COLLECTIVE).tolist()]
    assert made == sorted(made)


@few
@given(
    st.integers(2, 12), st.sampled_from([1, 2, 4]), st.sampled_from(["0", "20 KiB", "200 KiB", "1 GiB"]),
    st.sampled_from(["100 Mbit/s", "10 Gbit/s", "1 Tbit/s"]), st.integers(0, 3),
)  # fmt: skip
def test_overlap_never_slows_a_step_nor_hides_more_than_the_communication(
    small: Make, workers: int, microbatches: int, bucket: str, network: str, zero: int
) -> None:
    buckets = f"bucket: {bucket}, first_bucket: {bucket}"
    separate, overlapped = (
        predict(
            averaged(
                small, f"workers: {workers}, microbatches: {microbatches}, overlap: {flag}, {buckets}",
                f"training={{zero: {zero}}}", f"cluster.network={{bandwidth: {network}, latency: 0}}", "batch={per_worker: 4}",
            )
        )
        for flag in ("false", "true")
    )  # fmt: skip
    assert overlapped.step_time_s <= separate.step_time_s * (1 + 1e-9)
    assert overlapped.step_time_s >= max(separate.breakdown_s["compute"], separate.breakdown_s["exposed_communication"]) * (
        1 - 1e-9
    )


def test_workers_with_more_samples_are_waited_for(small: Make) -> None:
    """A step takes as long as the largest share, and all samples are counted."""
    even = predict(averaged(small, f"workers: 4, {ONE_BUCKET}", "batch=48"))
    uneven = predict(averaged(small, f"workers: 4, {ONE_BUCKET}, shares: [24, 8, 8, 8]", "batch=48"))
    most = predict(averaged(small, f"workers: 4, {ONE_BUCKET}", "batch=96"))
    assert uneven.samples == even.samples == 48
    assert uneven.step_time_s == pytest.approx(most.step_time_s)
    passes_s = {name: even.phase_s[name] for name in ("forward", "backward")}
    assert {name: uneven.phase_s[name] for name in passes_s} == pytest.approx(passes_s)
    waited_s = (24 - 12) / 12 * sum(passes_s.values())
    assert uneven.breakdown_s["waiting_for_ranks"] == pytest.approx(waited_s)


def test_queueing_behind_own_gathers_does_not_count_as_waiting_for_ranks(small: Make) -> None:
    """All layers are equal and gathers take much longer than compute: each waits for a gather, which waits for earlier ones."""
    run = predict(averaged(small, "workers: 4, prefetch: 1", "training.zero=3", "cluster.node.devices=1", "batch=4"))

    assert run.breakdown_s["exposed_communication"] > 0.5 * run.step_time_s
    assert run.breakdown_s["waiting_for_ranks"] == pytest.approx(0.0, abs=1e-9)
