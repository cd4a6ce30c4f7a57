"""Emulated loading: ranks wait for their batches as long as predicted, and for none that could be loaded ahead."""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.predict import predict
from scaleproof.simulator.prediction.loading import readers
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import measure
from scaleproof.validator.train import loading
from scaleproof.validator.train.loading import EmulatedLoading, durations_s
from tests.validator.conftest import CLUSTER
from tests.validator.train.test_emulated_compute import RING, FakeTime
from tests.validator.train.test_emulated_compute import scenario as paced_scenario
from tests.validator.verdicts import in_bulk

PIPELINE = {"kind": "pipeline", "stages": 2, "microbatches": 2}
SERVERS = {"kind": "parameter_server", "workers": 2, "servers": 1}
PERIODS = {"kind": "local_sgd", "workers": 2, "period": 2}
DECODED = {"decode": "50 ms", "cores": 1}
STORED = {"storage": {"sample": "1 MB", "bandwidth": "20 MB/s", "shared_by": "cluster"}}


def scenario(input_: dict[str, Any], strategy: dict[str, Any] = RING, steps: int = 5, **more: Any) -> Scenario:
    one = paced_scenario(strategy, steps=steps)
    return Scenario.model_validate({name: getattr(one, name) for name in one.model_fields_set} | {"input": input_} | more)


@pytest.mark.parametrize(
    ("strategy", "prefetch"), [(RING, 0), (RING, 1), *in_bulk((PIPELINE, 1), (SERVERS, 0), (SERVERS, 1), (PERIODS, 1))]
)
def test_ranks_wait_for_batches_about_as_long_as_predicted(strategy: dict[str, Any], prefetch: int) -> None:
    one = scenario(DECODED | STORED | {"prefetch": prefetch}, strategy)
    predicted, measured = predict(one, interval=False), measure(one)
    assert 0.95 * predicted.step_time_s < measured.step_time_s < 1.4 * predicted.step_time_s
    assert measured.phase_s["input"] == pytest.approx(predicted.phase_s["input"], rel=0.4)
    assert measured.spans is not None
    if strategy == PIPELINE:
        waits = measured.spans.where(measured.spans.phase == Phase.INPUT)
        assert set(waits.rank.tolist()) == {0}, "the first stage reads"


def test_ranks_that_compute_wait_for_their_batches() -> None:
    model = {"kind": "mlp", "layers": 2, "inputs": 32, "hidden": 32, "outputs": 32}
    one = scenario(DECODED | {"prefetch": 0}, compute="real", model=model, cluster=CLUSTER)
    run = measure(one)
    assert run.phase_s["input"] > 0.09
    assert run.step_time_s > 0.1


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(loading, "time", fake)
    return fake


def _waits_s(fake_time: FakeTime, loader: EmulatedLoading, steps_s: list[float]) -> list[float]:
    """The wait before each step of some durations, in seconds."""
    waits_s = []
    for step_s in steps_s:
        begin_s = fake_time.now_s
        loader.wait()
        waits_s.append(round(fake_time.now_s - begin_s, 9))
        fake_time.now_s += step_s
    return waits_s


def test_without_prefetch_loading_begins_with_the_step(fake_time: FakeTime) -> None:
    assert _waits_s(fake_time, EmulatedLoading([2.0, 3.0], 0), [1.0, 9.0, 0.0]) == [3.0, 3.0, 3.0]


def test_one_batch_ahead_is_loaded_during_the_step(fake_time: FakeTime) -> None:
    assert _waits_s(fake_time, EmulatedLoading([3.0], 1), [1.0, 9.0, 1.0, 1.0]) == [3.0, 2.0, 0.0, 2.0]


def test_several_batches_ahead_bridge_short_steps(fake_time: FakeTime) -> None:
    assert _waits_s(fake_time, EmulatedLoading([3.0], 2), [9.0, 1.0, 1.0, 1.0]) == [3.0, 0.0, 0.0, 1.0]


def test_a_reading_rank_shares_storage_and_cores_with_the_readers_next_to_it() -> None:
    one = scenario(DECODED | STORED, {"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 1})
    together = one.cluster.model_copy(update={"node": one.cluster.node.model_copy(update={"installed": 4})})
    found = readers(one)
    assert [reader.samples for reader in found] == [2, 2]
    assert {reader.node for reader in found} == {min(reader.ranks) for reader in found}, "each rank has a node of its own"
    assert durations_s(one, found[0]) == pytest.approx([2 * 2e6 / 20e6, 2 * 0.05])
    near = one.model_copy(update={"cluster": together})
    assert durations_s(near, readers(near)[0]) == pytest.approx([2 * 2e6 / 20e6, 2 * 2 * 0.05])
    later = [rank for rank in range(4) if all(rank not in reader.ranks for reader in found)]
    assert [EmulatedLoading.of(one, rank) for rank in later] == [None] * 2
    assert EmulatedLoading.of(one, found[1].ranks[0]) is not None
    assert EmulatedLoading.of(one.model_copy(update={"input": None}), 0) is None


def test_the_samples_of_a_period_are_one_batch_and_each_branch_reads() -> None:
    assert [reader.samples for reader in readers(scenario(DECODED, PERIODS))] == [4, 4]
    siamese = {"kind": "siamese", "tower": {"kind": "mlp", "layers": 2, "inputs": 8, "hidden": 8, "outputs": 8}}
    towers = scenario(DECODED, {"kind": "model_parallel", "stages": 2}, model=siamese)
    assert {rank for reader in readers(towers) for rank in reader.ranks} == {0, 1}
