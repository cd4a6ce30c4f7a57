from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaleproof.simulator.predict import predict
from scaleproof.simulator.program import Kind
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.programs import compiled, size_bytes

Make = Callable[..., Scenario]
GATHER = "strategy={{kind: gather_average, workers: {}}}"
RING = "strategy={{kind: data_parallel, workers: {}, overlap: false, bucket: 1 GiB, first_bucket: 1 GiB}}"
BYTES = (
    "batch={per_worker: 1}",
    "cluster.node.devices=1",
    "cluster.network.latency=0",
    "cluster.device.memory_bandwidth=1 EB/s",
)


@pytest.mark.parametrize("workers", [2, 3, 5, 8])
def test_the_main_worker_receives_all_gradients_and_sends_all_parameters(small: Make, workers: int) -> None:
    scenario = small(GATHER.format(workers), *BYTES)
    program = compiled(scenario)
    through = dict.fromkeys(program.resources.names, 0.0)
    for uses, amount, kind in zip(program.uses(), program.amount, program.kind, strict=True):
        for use in uses if kind == Kind.TRANSFER else []:
            through[program.resources.names[use.resource]] += use.per_unit * amount
    assert through["network 0 in"] == through["network 0 out"] == (workers - 1) * size_bytes(scenario)
    run = predict(scenario)
    assert run.step_time_s - run.breakdown_s["compute"] == pytest.approx(2 * (workers - 1) * size_bytes(scenario) / 1.25e9)


@given(workers=st.integers(3, 8), devices=st.sampled_from([1, 4]), gbit=st.sampled_from([1, 10, 100]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
def test_gather_average_is_never_faster_than_a_ring_of_more_than_two(
    small: Make, workers: int, devices: int, gbit: int
) -> None:
    no_latency = ("cluster.network.latency=0", "cluster.node.link.latency=0")
    on = ("batch={per_worker: 1}", f"cluster.node.devices={devices}", f"cluster.network.bandwidth={gbit} Gbit/s", *no_latency)
    gathered, ring = (predict(small(strategy.format(workers), *on)) for strategy in (GATHER, RING))
    assert gathered.step_time_s > ring.step_time_s


def test_two_workers_move_the_bytes_of_a_ring_in_one_direction_at_a_time(small: Make) -> None:
    gathered, ring = (compiled(small(strategy.format(2), *BYTES)) for strategy in (GATHER, RING))
    each_way = gathered.amount[gathered.kind == Kind.TRANSFER]
    # per direction and worker; what the ring sends one way it receives the other way meanwhile
    assert each_way.tolist() == [ring.amount[ring.kind == Kind.COLLECTIVE].sum()] * 2
    times_s = [predict(small(strategy.format(2), *BYTES)) for strategy in (GATHER, RING)]
    exposed_s = [run.step_time_s - run.breakdown_s["compute"] for run in times_s]
    assert exposed_s[0] == pytest.approx(2 * exposed_s[1], rel=1e-6)


def test_only_the_main_worker_sums_and_updates(small: Make) -> None:
    """(n − 1) sums of two reads and a write, and one optimizer step of the same traffic, for which all others wait."""
    at_once = ("cluster.network={bandwidth: 1 EB/s, latency: 0}", "cluster.node.link={bandwidth: 1 EB/s, latency: 0}")
    scenario = small(GATHER.format(8), *at_once)
    run = predict(scenario)
    main_s = (7 + 1) * 3 * size_bytes(scenario) / 100e9
    passes_s = run.phase_s["forward"] + run.phase_s["backward"]
    assert run.step_time_s == pytest.approx(passes_s + main_s)
    assert run.breakdown_s["waiting_for_ranks"] == pytest.approx(7 / 8 * main_s)


@pytest.mark.parametrize("workers", [4, 10, 32])
def test_equivalent_workers_are_folded_without_changing_the_result(small: Make, workers: int) -> None:
    separate = f"unevenness={{stragglers: [{{ranks: {list(range(workers))}, slowdown: 1}}]}}"
    folded, unfolded = (small(GATHER.format(workers), "batch={per_worker: 2}", *more) for more in ((), (separate,)))
    assert len(compiled(unfolded).ranks.names) == workers > len(compiled(folded).ranks.names)
    assert predict(folded).step_time_s == pytest.approx(predict(unfolded).step_time_s, rel=1e-9)


def test_the_main_worker_uses_one_card_of_its_node(small: Make) -> None:
    """A device uses its nearest network card, however many cards its node has."""
    on = ("batch={per_worker: 1}", "cluster.node.link.bandwidth=1 EB/s")
    one, four = (predict(small(GATHER.format(8), f"cluster.node.cards={cards}", *on)) for cards in (1, 4))
    # the node's bandwidth is that of all its cards
    assert four.breakdown_s["exposed_communication"] > 3 * one.breakdown_s["exposed_communication"]


def test_stragglers_are_waited_for_unless_the_main_workers_link_is_busy(small: Make) -> None:
    slow = "unevenness={{stragglers: [{{ranks: {}, slowdown: 3}}]}}"
    even, worker = predict(small(GATHER.format(8))), predict(small(GATHER.format(8), slow.format(5)))
    assert worker.step_time_s == pytest.approx(even.step_time_s), "its message comes while others are still received"
    main = predict(small(GATHER.format(8), slow.format(0)))
    assert main.step_time_s > even.step_time_s
    late = predict(small(GATHER.format(8), slow.format(5), "cluster.device.peak={fp32: 1 GFLOP/s}"))
    early = predict(small(GATHER.format(8), "cluster.device.peak={fp32: 1 GFLOP/s}"))
    assert late.step_time_s > early.step_time_s + early.breakdown_s["compute"]
