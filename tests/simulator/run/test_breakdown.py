"""Communication by dimension and collective: the parts add up, are what a strategy communicates, and have its bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.communication import Collective, Dimension, label_of, layers_label, named, number_of
from scaleproof.simulator.common.spans import TimeIntervals
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.records import CommunicationPart
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of

Make = Callable[..., Scenario]
STRATEGIES = {
    "ring": ("strategy={kind: data_parallel, workers: 8, bucket: 100 KiB}",),
    "fsdp": ("strategy={kind: data_parallel, workers: 8}", "training.zero=3"),
    "hybrid sharding": ("strategy={kind: data_parallel, workers: 8, shard_over: 4}", "training.zero=3"),
    "pipeline": ("strategy={kind: hybrid, workers: 2, stages: 3, microbatches: 6, bucket: 100 KiB}",),
    "servers": ("strategy={kind: parameter_server, workers: 8, servers: 3}",),
    "asynchronous servers": ("strategy={kind: parameter_server, workers: 8, servers: 3, mode: asynchronous}",),
    "gather": ("strategy={kind: gather_average, workers: 8}",),
}


def parts(run: Run) -> dict[str, CommunicationPart]:
    return {part.label: part for part in run.communication}


@pytest.mark.parametrize("overrides", STRATEGIES.values(), ids=STRATEGIES)
def test_parts_add_up_to_exposed_and_hidden_communication(small: Make, overrides: tuple[str, ...]) -> None:
    run = predict(small(*overrides), interval=False)
    assert run.communication
    assert all(part.dimension != "other" and part.calls > 0 and part.size_bytes > 0 for part in run.communication)
    exposed_s, time_s = (sum(getattr(part, name) for part in run.communication) for name in ("exposed_s", "time_s"))
    assert exposed_s == pytest.approx(run.communication_s["exposed"], abs=1e-12)
    assert time_s - exposed_s == pytest.approx(run.communication_s["hidden"], abs=1e-12)


def test_sharded_training_gathers_parameters_and_sums_no_gradients_of_replicas(small: Make) -> None:
    scenario = small("training.zero=3", "strategy.workers=8")
    run = predict(scenario, interval=False)
    assert set(parts(run)) == {"FSDP all-gather", "FSDP reduce-scatter"}
    size_bytes = sum(layer.parameters for layer in job_of(scenario).layers) * job_of(scenario).element_bytes
    assert parts(run)["FSDP reduce-scatter"].size_bytes == pytest.approx(size_bytes)
    across = predict(small("training.zero=3", "strategy.workers=8", "strategy.shard_over=4"), interval=False)
    assert set(parts(across)) == {"FSDP all-gather", "FSDP reduce-scatter", "DP all-reduce"}
    stage_1 = predict(small("training.zero=1", "strategy.workers=8"), interval=False)
    assert set(parts(stage_1)) == {"ZeRO all-gather", "ZeRO reduce-scatter"}


def test_servers_receive_the_gradients_and_send_the_parameters_of_every_worker(small: Make) -> None:
    scenario = small(*STRATEGIES["servers"])
    run = predict(scenario, interval=False)
    size_bytes = sum(layer.parameters for layer in job_of(scenario).layers) * job_of(scenario).element_bytes
    assert {label: part.size_bytes for label, part in parts(run).items()} == pytest.approx(
        {"PS push": size_bytes, "PS pull": size_bytes}
    )


def test_collectives_within_passes_count_with_their_layers_and_bytes() -> None:
    scenario = load("megatron-175b-3d-selene")
    run, plan = predict(scenario, interval=False, remedy=False), scenario.strategy.plan
    assert run.spans is not None
    found = parts(run)
    assert {part.dimension for part in run.communication} == {"SP", "TP", "DP", "PP", "embedding"}
    # in each block two all-gathers forward, three backward with the one again for weight gradients, and as many for each of the
    # two branches; two reduce-scatters forward and two backward
    blocks = 96 // plan.stages * plan.microbatches
    assert found["SP reduce-scatter"].calls == pytest.approx(4 * blocks, rel=0.01)
    assert found["SP all-gather"].calls == pytest.approx(6 * blocks, rel=0.01)
    gathered = run.spans.where(run.spans.communication == number_of(Dimension.SEQUENCE, Collective.ALL_GATHER))
    tokens_bytes = 2048 * 12288 * 2 * job_of(scenario).samples_per_worker / plan.microbatches
    per_call = gathered.message_bytes / np.maximum(1, gathered.calls)
    assert per_call == pytest.approx(tokens_bytes)
    assert (gathered.last_layer >= gathered.first_layer).all()
    assert gathered.first_layer.min() >= 0


def test_names_of_communication_are_distinct_and_layers_are_words() -> None:
    numbers = [number_of(*pair) for pair in itertools.product(Dimension, Collective)]
    assert len({label_of(number) for number in numbers}) == len(numbers)
    assert [number_of(*named(number)) for number in numbers] == numbers
    assert (layers_label(-1, -1), layers_label(3, 3), layers_label(0, 11)) == ("", "layer 3", "layers 0-11")


ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 5), st.integers(0, 2)), max_size=15)


@given(ROWS)
def test_each_instant_has_the_label_of_the_interval_that_started_first(rows: list[tuple[int, int, int, int]]) -> None:
    owner, start, length, label = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    divided, labels = TimeIntervals(owner, start.astype(float), (start + length).astype(float)).divided(label)
    expected: dict[tuple[int, int], int] = {}
    for number, begin, duration, name in sorted(rows, key=lambda row: row[1]):
        # an interval that started earlier keeps its seconds
        for second in range(begin, begin + duration):
            expected.setdefault((number, second), name)
    found = {
        (number, second): name
        for number, begin, end, name in zip(*divided, labels, strict=True)
        for second in range(int(begin), int(end))
    }
    assert found == expected
