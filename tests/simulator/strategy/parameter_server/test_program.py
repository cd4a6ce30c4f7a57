"""Theoretical results for all kinds of parameter servers, on clusters for which they are simple."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.engine import Variation, simulate
from scaleproof.simulator.engine.events import simulate as by_events
from scaleproof.simulator.engine.variation import random_starts_s
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.parallelism.parameter_server import Sparse
from scaleproof.simulator.predict import predict, predicted_run, timed
from scaleproof.simulator.program import Kind, Program
from scaleproof.simulator.run.records import ServerStatistics
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.parameter_server.shards import buckets
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.programs import compiled, size_bytes
from tests.validator.verdicts import in_bulk

Make = Callable[..., Scenario]

# nothing but the network and compute takes time
PLAIN = ("cluster.network.latency=0", "cluster.node.memory_bandwidth=1 EB/s", "batch={per_worker: 64}")
ALONE: Final = ("cluster.nodes=64", "cluster.node.devices=1")
NIC_BPS = 1.25e9
# nothing but compute takes time
FREE = ("cluster.network={bandwidth: 1 EB/s, latency: 0}", "cluster.node.link={bandwidth: 1 EB/s, latency: 0}")
MODES: Final = ({"mode": "asynchronous"}, {"mode": "stale_synchronous", "bound": 2}, {"mode": "asynchronous", "units": 30})
ONE_SLOW = "unevenness={stragglers: [{ranks: 0, slowdown: 3}]}"
function_scoped = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None)


def servers(workers: int, servers: int = 1, **fields: object) -> str:
    """An override that sets a parameter-server strategy."""
    given = {"kind": "parameter_server", "workers": workers, "servers": servers} | fields
    yaml = {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}
    return "strategy={" + ", ".join(f"{name}: {value}" for name, value in yaml.items()) + "}"


def server_stats(run: Run) -> ServerStatistics:
    assert run.servers is not None
    return run.servers


def leaving_bytes(program: Program, node: int) -> float:
    """Bytes that a node's card sends in a step."""
    card = program.resources.names.index(f"network {node} out")
    uses = zip(program.uses(), program.amount.tolist(), program.kind.tolist(), strict=True)
    return sum(amount * use.per_unit for route, amount, kind in uses for use in route if use.resource == card)


# --- synchronous ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "count"), [(4, 1), (4, 4), (8, 2), (6, 8)])
def test_dedicated_servers_take_the_time_of_the_busier_side(small: Make, workers: int, count: int) -> None:
    """Per direction n·S/k bytes pass the card of a server, S that of a worker; overlap hides them but moves no fewer."""
    scenario = small(servers(workers, count), *ALONE, *PLAIN)
    least_s = max(workers / count, 1) * size_bytes(scenario) / NIC_BPS
    run = predict(scenario)
    assert run.breakdown_s["exposed_communication"] == pytest.approx(2 * least_s, rel=1e-6)
    overlapped = predict(small(servers(workers, count, overlap=True, bucket="100 KB"), *ALONE, *PLAIN))
    assert overlapped.step_time_s >= least_s


@pytest.mark.parametrize(("workers", "count"), [(4, 1), (8, 2)])
def test_a_servers_threads_copy_all_that_it_sends_and_receives(small: Make, workers: int, count: int) -> None:
    """With gRPC n·S/k bytes pass one thread of a server in each direction, however fast its card is."""
    rpc = "framework={base: tensorflow-1-servers, rpc: {send: 0.5 GB/s, receive: 0.25 GB/s}}"
    scenario = small(servers(workers, count), rpc, *ALONE, *PLAIN)
    each_s = workers / count * size_bytes(scenario) * (1 / 0.5e9 + 1 / 0.25e9)
    assert predict(scenario).breakdown_s["exposed_communication"] == pytest.approx(each_s, rel=1e-6)


@pytest.mark.parametrize("nodes", [2, 5, 8])
def test_colocated_servers_on_all_nodes_equal_the_ring(small: Make, nodes: int) -> None:
    """(n − 1)·S/k bytes pass each card in each phase, which with k = n is the ring's bound."""
    colocated = servers(nodes, nodes, placement="colocated")
    scenario = small(colocated, *ALONE, *PLAIN)
    each_s = (nodes - 1) / nodes * size_bytes(scenario) / NIC_BPS
    run = predict(scenario)
    assert run.breakdown_s["exposed_communication"] == pytest.approx(2 * each_s, rel=1e-6)
    ring = predict(small(f"strategy={{kind: data_parallel, workers: {nodes}, overlap: false}}", *ALONE, *PLAIN))
    assert ring.breakdown_s["exposed_communication"] == pytest.approx(2 * each_s, rel=1e-6)


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("bucket", ["100 KB", *in_bulk("20 KB", "300 KB")])
@pytest.mark.parametrize(("workers", "count"), [(1, 1), (4, 2), *in_bulk((6, 3))])
def test_overlap_is_never_slower(small: Make, mode: str, bucket: str, workers: int, count: int) -> None:
    after, overlapped = (
        predict(small(servers(workers, count, mode=mode, **fields), *ALONE, *PLAIN))
        for fields in ({}, {"overlap": True, "bucket": bucket})
    )
    assert overlapped.step_time_s <= after.step_time_s * (1 + 1e-9)
    assert overlapped.breakdown_s["compute"] == pytest.approx(after.breakdown_s["compute"], rel=0.01)


@function_scoped
@given(
    st.integers(1, 3), st.integers(1, 3), st.sampled_from([20, 60, 200]), st.sampled_from(["bytes", "tensor", "round_robin"])
)
def test_the_chosen_engine_equals_the_event_engine(small: Make, workers: int, count: int, kilo: int, shard: str) -> None:
    fields = {"overlap": True, "bucket": f"{kilo} KB", "shard": shard, "two_level": True}
    program = compiled(small(servers(workers * 3, count, **fields), "batch={per_worker: 64}", "cluster.node.devices=3"))
    chosen, reference = simulate(program, 3), by_events(program, 3)
    assert chosen.end_s == pytest.approx(reference.end_s, rel=1e-9, abs=1e-12)


# --- clocks and staleness ------------------------------------------------------------------------------------------------


@pytest.mark.full
@function_scoped
@given(st.lists(st.floats(0.2, 5.0), min_size=2, max_size=6), st.integers(0, 4), st.booleans())
def test_the_clock_gap_is_never_above_the_bound(small: Make, slowdowns: list[float], bound: int, overlap: bool) -> None:
    stragglers = ", ".join(f"{{ranks: {rank}, slowdown: {slowdown}}}" for rank, slowdown in enumerate(slowdowns))
    scenario = small(
        servers(len(slowdowns), 2, mode="stale_synchronous", bound=bound, overlap=overlap, bucket="100 KB"),
        *ALONE, "batch={per_worker: 16}", "steps=8", f"unevenness={{stragglers: [{stragglers}]}}",
    )  # fmt: skip
    gap = server_stats(predict(scenario)).clock_gap
    assert 0 <= gap.mean <= gap.max <= bound
    assert sum(gap.histogram.values()) > 0


@pytest.mark.parametrize("bound", [1, 3])
def test_fast_workers_run_ahead_up_to_the_bound(small: Make, bound: int) -> None:
    run = predict(small(servers(4, 1, mode="stale_synchronous", bound=bound), *ALONE, ONE_SLOW, "batch={per_worker: 16}"))
    assert server_stats(run).clock_gap.max == bound


@pytest.mark.parametrize("unevenness", ["unevenness={}", ONE_SLOW])
def test_a_bound_of_zero_is_synchronous(small: Make, unevenness: str) -> None:
    synchronous, stale = (
        predict(small(servers(4, 2, **fields), *ALONE, *PLAIN, unevenness, "steps=12"))
        for fields in ({}, {"mode": "stale_synchronous", "bound": 0})
    )
    assert stale.step_time_s == pytest.approx(synchronous.step_time_s, rel=1e-6)
    assert stale.breakdown_s["compute"] == pytest.approx(synchronous.breakdown_s["compute"], rel=1e-6)
    assert server_stats(stale).clock_gap.max == server_stats(synchronous).clock_gap.max == 0


@pytest.mark.parametrize(("workers", "count", "placement"), [(2, 2, "colocated"), (4, 4, "colocated"), (4, 1, "dedicated")])
def test_a_bound_of_zero_keeps_workers_in_phase_in_a_long_run(small: Make, workers: int, count: int, placement: str) -> None:
    """Workers that wait for each other in each step send together, as synchronous ones do."""
    slow = (*PLAIN, "cluster.nodes=16", "cluster.node.devices=1", "cluster.network.bandwidth=1 Gbit/s")
    synchronous, stale = (
        predict(small(servers(workers, count, placement=placement, **fields), *slow), interval=False)
        for fields in ({}, {"mode": "stale_synchronous", "bound": 0})
    )
    assert stale.step_time_s == pytest.approx(synchronous.step_time_s, rel=0.02)
    assert server_stats(stale).clock_gap.max == 0


# Asynchronous scenarios in which links and servers are shared, which settle into one of many cycles.
CYCLES = {
    "asynchronous": {"workers": 8, "servers": 4, "placement": "colocated", "mode": "asynchronous"},
    "stale": {"workers": 6, "servers": 2, "mode": "stale_synchronous", "bound": 1},
}


@pytest.mark.parametrize("name", CYCLES)
@pytest.mark.parametrize("field", ["cluster.network.bandwidth", "cluster.device.memory_bandwidth"])
def test_more_resources_never_slow_asynchronous_workers(small: Make, name: str, field: str) -> None:
    """Means over phases respond to resources monotonously and continuously, within a percent."""
    fields = dict(CYCLES[name])
    one = servers(fields.pop("workers"), fields.pop("servers"), **fields)  # type: ignore[arg-type]
    amount, unit = (4.0, "Gbit/s") if "network" in field else (100.0, "GB/s")
    steps_s = [
        timed(small(one, *PLAIN, "cluster.nodes=16", "cluster.node.devices=2", f"{field}={amount * more} {unit}")).step_time_s
        for more in (1.0, 1.003, 1.01, 1.03, 1.5, 4.0)
    ]
    changes = [after / before - 1 for before, after in itertools.pairwise(steps_s)]
    assert max(changes) < 0.01
    assert min(changes[:2]) > -0.02


@pytest.mark.full
def test_a_larger_bound_is_never_slower_and_tends_to_asynchronous(small: Make) -> None:
    jitter = "unevenness={compute_jitter: 0.4}"
    modes = [*({"mode": "stale_synchronous", "bound": bound} for bound in (0, 1, 3, 50)), {"mode": "asynchronous"}]
    runs = [predict(small(servers(8, 1, **mode), *ALONE, *PLAIN, *FREE, jitter, "steps=100")) for mode in modes]
    times_s = [run.step_time_s for run in runs]
    assert times_s[:4] == sorted(times_s[:4], reverse=True)
    assert times_s[0] > 1.2 * times_s[3]
    assert times_s[3] == pytest.approx(times_s[4])


@pytest.mark.parametrize("workers", [1, 2, 5, 12])
def test_staleness_of_equal_workers_is_the_number_of_the_others(small: Make, workers: int) -> None:
    """Between two updates of its own every other worker has one: n − 1 (arXiv 1312.0786)."""
    run = predict(small(servers(workers, 2, mode="asynchronous"), *ALONE, *PLAIN))
    assert server_stats(run).version_staleness.mean == pytest.approx(workers - 1)


def test_a_slow_worker_is_the_stalest(small: Make) -> None:
    """During one step of the slow worker, the others take three each and see one update of it."""
    run = predict(small(servers(5, 1, mode="asynchronous"), *ALONE, *PLAIN, *FREE, ONE_SLOW, "steps=100"))
    staleness = server_stats(run).version_staleness
    assert staleness.max == 4 * 3
    others = 3 + 1 / 3
    assert staleness.mean == pytest.approx((12 * others + 1 * 12) / 13, rel=0.02)


# --- throughput ----------------------------------------------------------------------------------------------------------


def test_asynchronous_workers_do_not_wait_for_a_slow_one(small: Make) -> None:
    """Throughput is the sum over workers instead of n times the slowest worker's."""
    synchronous, asynchronous = (
        predict(small(servers(4, 1, mode=mode), *ALONE, *PLAIN, *FREE, ONE_SLOW, "steps=200"))
        for mode in ("synchronous", "asynchronous")
    )
    even_s = predict(small(servers(4, 1), *ALONE, *PLAIN, *FREE)).step_time_s
    assert synchronous.step_time_s == pytest.approx(3 * even_s)
    assert asynchronous.samples_per_s == pytest.approx((3 + 1 / 3) * 64 / even_s, rel=0.01)
    assert asynchronous.samples_per_s > synchronous.samples_per_s


@pytest.mark.parametrize("workers", [1, 3, 16, 40])
def test_asynchronous_steps_are_limited_by_the_servers_card_or_the_workers_own_step(small: Make, workers: int) -> None:
    """n·S/k bytes pass a server's card in each direction at the same time; a worker's own step is passes, push and pull."""
    scenario = small(servers(workers, 2, mode="asynchronous"), *ALONE, *PLAIN)
    run = predict(scenario)
    card_s = workers / 2 * size_bytes(scenario) / NIC_BPS
    alone_s = run.breakdown_s["compute"] + 2 * size_bytes(scenario) / NIC_BPS
    assert run.step_time_s >= max(card_s, alone_s) * (1 - 1e-6)
    assert run.step_time_s < 1.25 * max(card_s, alone_s)
    assert server_stats(run).busy["server NIC"] == pytest.approx(card_s / run.step_time_s, rel=0.02)
    assert server_stats(run).bottleneck == ("server NIC" if card_s > alone_s else "compute")


@pytest.mark.full
@function_scoped
@given(
    st.integers(1, 6), st.integers(1, 3), st.sampled_from(["dedicated", "colocated"]), st.integers(1, 3), st.floats(0, 0.5),
    st.sampled_from(MODES),
)  # fmt: skip
def test_breakdown_adds_up_to_the_step(
    small: Make, workers: int, count: int, placement: str, devices: int, jitter: float, mode: Mapping[str, object]
) -> None:
    run = predict(
        small(
            servers(workers, count, placement=placement, **mode), "batch={per_worker: 16}",
            "cluster.nodes=64", f"cluster.node.devices={devices}",
            f"unevenness={{compute_jitter: {jitter}}}", "steps=6",
        )
    )  # fmt: skip
    assert sum(run.breakdown_s.values()) == pytest.approx(run.step_time_s)
    assert run.breakdown_s["other"] == pytest.approx(0.0, abs=1e-6 * run.step_time_s)
    assert server_stats(run).updates_per_s == pytest.approx(workers / run.step_time_s)


def test_equivalent_servers_are_folded_without_changing_the_result(small: Make) -> None:
    """A late start of zero seconds separates servers, and changes nothing else."""
    scenarios = [
        small(servers(6, 3, mode="asynchronous"), *ALONE, *PLAIN, f"unevenness={{late: {late}}}")
        for late in ("[]", "[{ranks: [6, 7, 8], delay: 0 s}]")
    ]
    programs = [compile_step(one.strategy, job_of(one, unevenness=one.unevenness)) for one in scenarios]
    assert [int(program.ranks.is_server.sum()) for program in programs] == [1, 3]
    timelines = [simulate(program, 8, Variation(start_s=random_starts_s(program, 0))) for program in programs]
    folded, each = (predicted_run(timeline, scenario="", strategy="", samples=6) for timeline in timelines)
    assert each.step_time_s == pytest.approx(folded.step_time_s, rel=1e-9)
    assert vars(server_stats(each).queue_length) == pytest.approx(vars(server_stats(folded).queue_length))
    assert server_stats(each).version_staleness.mean == pytest.approx(server_stats(folded).version_staleness.mean)


def test_asynchronous_workers_that_begin_together_share_links_for_the_steps_of_a_short_run(small: Make) -> None:
    """Workers that begin together compute and send together, as if they were synchronous; those of a long run are separate,
    and one sends while others compute."""
    scenario = small(servers(4, 1, mode="asynchronous"), *ALONE, *PLAIN)
    long_s, short_s = (predict(one, interval=False).step_time_s for one in (scenario, scenario.model_copy(update={"steps": 8})))
    synchronous_s = predict(small(servers(4, 1), *ALONE, *PLAIN), interval=False).step_time_s
    assert long_s < short_s <= synchronous_s * (1 + 1e-6)


# --- backups -------------------------------------------------------------------------------------------------------------


def test_a_backup_cuts_the_wait_for_a_slow_worker(small: Make) -> None:
    """A step takes as long as the slowest worker that is waited for, and counts only samples of these workers."""
    runs = [
        predict(small(servers(4, 1, backups=backups), *ALONE, *PLAIN, *FREE, ONE_SLOW, "steps=30")) for backups in (0, 1, 2)
    ]
    even_s = predict(small(servers(4, 1), *ALONE, *PLAIN, *FREE)).step_time_s
    assert [run.step_time_s / even_s for run in runs] == pytest.approx([3, 1, 1])
    assert [run.samples for run in runs] == [256, 192, 128]
    # the slow one pushes once where the others push three times, each time too late
    assert server_stats(runs[1]).dropped == pytest.approx(1 / 10, abs=0.01)


# --- units ---------------------------------------------------------------------------------------------------------------


def of_units(small: Make, assignment: str, *more: str, units: int = 48) -> Run:
    fields = {"mode": "asynchronous", "units": units, "assignment": assignment}
    return predict(small(servers(4, 1, **fields), *ALONE, *PLAIN, *FREE, *more))


def test_dynamic_assignment_equals_fixed_with_equal_workers(small: Make) -> None:
    fixed, dynamic = (of_units(small, assignment) for assignment in ("fixed", "dynamic"))
    assert dynamic.step_time_s == pytest.approx(fixed.step_time_s)
    endless = predict(small(servers(4, 1, mode="asynchronous"), *ALONE, *PLAIN, *FREE))
    assert fixed.step_time_s == pytest.approx(endless.step_time_s)


def test_dynamic_assignment_is_faster_with_unequal_workers(small: Make) -> None:
    """Fixed parts end with the slowest worker's; dynamically taken units end within one unit of each other."""
    fixed, dynamic = (of_units(small, assignment, ONE_SLOW, units=100) for assignment in ("fixed", "dynamic"))
    even_s = predict(small(servers(4, 1), *ALONE, *PLAIN, *FREE)).step_time_s
    assert fixed.step_time_s == pytest.approx(3 * even_s)
    assert dynamic.step_time_s == pytest.approx(4 / (3 + 1 / 3) * even_s, rel=0.1)
    # those that are done wait for the slow one
    assert fixed.breakdown_s["waiting_for_ranks"] == pytest.approx(3 / 4 * 2 * even_s, rel=1e-6)


@pytest.mark.parametrize("assignment", ["fixed", "dynamic"])
@pytest.mark.parametrize("units", [4, 7, 10])
def test_all_work_units_are_executed(small: Make, assignment: str, units: int) -> None:
    fields = {"mode": "asynchronous", "units": units, "assignment": assignment}
    program = compiled(small(servers(4, 2, **fields), ONE_SLOW, "batch={per_worker: 16}"))
    timeline = simulate(program, 5)
    serves = np.flatnonzero(program.kind == Kind.SERVE)
    for server in np.unique(program.rank[serves]):
        assert np.isfinite(timeline.end_s[:, serves[program.rank[serves] == server]]).sum() == units


# --- shards, sparse parameters, levels, rollouts ---------------------------------------------------------------------------


LAYERS = [Layer(str(i), str(i), (), tensors, 1) for i, tensors in enumerate([(90,), (20, 10), (10, 10)])]


def pushed(sharding: Any, count: int, limit_bytes: float = np.inf, sparse: Sparse | None = None) -> list[list[float]]:
    return [bucket.pushed_bytes.tolist() for bucket in buckets(LAYERS, count, sharding, 4, limit_bytes, sparse, 2, 1)]


def test_shards_are_equal_bytes_or_whole_tensors() -> None:
    assert pushed("bytes", 2) == [[280.0, 280.0]]
    # 90 | 20, 10, 10, 10
    assert pushed("tensor", 2) == [[360.0, 200.0]]
    # 90, 10, 10 | 20, 10
    assert pushed("round_robin", 2) == [[440.0, 120.0]]


def test_buckets_are_filled_from_the_last_tensor_and_pulled_first_layer_first() -> None:
    found = buckets(LAYERS, 1, "bytes", 4, 100.0, None, 1, 1)
    assert [(bucket.layer, bucket.pushed_bytes.tolist()) for bucket in found] == [(0, [440.0]), (1, [120.0])]


def test_a_huge_whole_tensor_loads_one_server(small: Make) -> None:
    model = "model={kind: gpt, layers: 1, hidden: 8, heads: 1, vocabulary: 100000, sequence: 8, tied: true}"
    scenario = small(servers(4, 4, shard="tensor"), *ALONE, model, *PLAIN)
    by_tensor, by_bytes = predict(scenario), predict(small(servers(4, 4), *ALONE, model, *PLAIN))
    table_bytes = 4.0 * 8 * 100000
    moved_s = by_tensor.breakdown_s["exposed_communication"]
    assert moved_s == pytest.approx(2 * 4 * table_bytes / NIC_BPS, rel=1e-6)
    assert by_bytes.breakdown_s["exposed_communication"] == pytest.approx(2 * size_bytes(scenario) / NIC_BPS, rel=1e-6)
    assert server_stats(by_tensor).utilisation.max > 3 * server_stats(by_tensor).utilisation.mean


@pytest.mark.parametrize("rows", [0.01, 0.1, 1.0])
def test_sparse_parameters_move_only_touched_rows(small: Make, rows: float) -> None:
    """The word embedding's V·h elements are sparse; a push has the numbers of its rows and of those of the reply, 8 bytes each.
    Positions are dense."""
    words, hidden = 256, 64
    dense = small(servers(4, 2), *ALONE)
    sparse = small(servers(4, 2, sparse=f"{{rows: {rows}}}"), *ALONE)
    each_bytes = size_bytes(dense) - 4 * words * hidden + rows * words * 4 * hidden
    # a worker pushes to both servers, a server is pulled from by all workers
    assert leaving_bytes(compiled(sparse), 0) == pytest.approx(each_bytes + rows * words * 2 * 8)
    assert leaving_bytes(compiled(sparse), 4) == pytest.approx(4 * each_bytes / 2)
    assert leaving_bytes(compiled(dense), 0) == pytest.approx(size_bytes(dense))


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("fields", [{}, {"overlap": True, "bucket": "100 KB"}, {"mode": "asynchronous"}])
def test_two_level_reduction_moves_one_workers_bytes_per_node(small: Make, devices: int, fields: Mapping[str, object]) -> None:
    one, two = (
        compiled(small(servers(8, 2, two_level=two_level, **fields), f"cluster.node.devices={devices}", "batch=512"))
        for two_level in (False, True)
    )
    for node in (0, 8 // devices):
        assert leaving_bytes(two, node) == pytest.approx(leaving_bytes(one, node) / devices)


def test_two_level_workers_of_a_node_count_as_one_for_staleness(small: Make) -> None:
    run = predict(small(servers(8, 1, mode="asynchronous", two_level=True), *PLAIN))
    assert server_stats(run).version_staleness.mean == pytest.approx(2 - 1)


def test_rollout_time_precedes_each_step(small: Make) -> None:
    without, acting = (predict(small(servers(4, 1, rollout=rollout), *ALONE, *PLAIN)) for rollout in ("0 s", "50 ms"))
    assert acting.step_time_s == pytest.approx(without.step_time_s + 0.05)
    assert acting.breakdown_s["waiting_for_input"] == pytest.approx(0.05)
    assert server_stats(acting).bottleneck == "input"


def test_actors_pull_all_parameters_before_the_rollout(small: Make) -> None:
    """Pulls overlap with the backward pass before a rollout, but not with the rollout or the passes after it."""
    fields = {"overlap": True, "bucket": "100 KB", "rollout": "50 ms"}
    scenario = small(servers(4, 1, **fields), *ALONE, *PLAIN)
    program = compiled(scenario)
    rollouts = (program.phase == Phase.INPUT) & (program.amount > 0)
    timeline = simulate(program, 3)
    pulls = (program.kind == Kind.TRANSFER) & program.ranks.is_server[program.rank]
    assert (timeline.start_s[1:, rollouts] >= timeline.end_s[:-1, pulls].max(axis=1, keepdims=True)).all()


# --- server statistics -----------------------------------------------------------------------------------------------------


def test_the_queue_of_a_synchronous_server_equals_theory(small: Make) -> None:
    """n pushes arrive at once: the last waits for n − 1 services, and the mean is half of that."""
    scenario = small(servers(5, 1), *ALONE, "batch={per_worker: 1}")
    run, cluster = predict(scenario), scenario.cluster
    sum_s = cluster.sum_s(size_bytes(scenario))
    assert server_stats(run).queue_length.max == 4
    assert server_stats(run).queue_length.mean == pytest.approx(sum_s * 5 * 4 / 2 / run.step_time_s)
    update_s = cluster.update_s(scenario.model.parameters(), "sgd", "fp32")
    assert server_stats(run).utilisation.max == pytest.approx((5 * sum_s + update_s) / run.step_time_s)


@pytest.mark.parametrize(
    ("overrides", "bottleneck"),
    [
        (("cluster.node.memory_bandwidth=1 GB/s",), "server CPU"),
        (("cluster.network.bandwidth=10 Mbit/s",), "server NIC"),
        (("strategy.servers=16", "cluster.network.bandwidth=10 Mbit/s"), "worker NIC"),
        (("cluster.device.peak.fp32=1 GFLOP/s",), "compute"),
        (("input={storage: {bandwidth: 1 KB/s, sample: 1 KB, shared_by: cluster}}",), "input"),
    ],
)
def test_the_bottleneck_is_the_busiest_resource(small: Make, overrides: tuple[str, ...], bottleneck: str) -> None:
    run = predict(small(servers(8, 1, mode="asynchronous"), *ALONE, "batch={per_worker: 8}", *overrides))
    assert server_stats(run).bottleneck == bottleneck


# --- errors ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mode": "stale_synchronous"}, "strategy.bound: missing: .* give 0 or more"),
        ({"mode": "stale_synchronous", "bound": -1}, "strategy.bound: -1 is negative; give 0 or more"),
        ({"mode": "asynchronous", "bound": 1}, "strategy.bound: has no effect on asynchronous servers; set mode"),
        ({"backups": 4}, "strategy.backups: 4 backups of 4 workers.* give 0 to 3"),
        ({"backups": -1}, "strategy.backups: -1 backups of 4 workers.* give 0 to 3"),
        ({"mode": "asynchronous", "backups": 1}, "strategy.backups: has no effect on asynchronous servers; set mode"),
        ({"two_level": True, "backups": 1}, "strategy.backups: two_level"),
        ({"assignment": "dynamic", "mode": "asynchronous"}, "strategy.units: missing: .* for example 80"),
        ({"units": 8}, "strategy.units: has no effect on synchronous workers.* set mode: asynchronous"),
        ({"units": 3, "mode": "asynchronous"}, "strategy.units: 3 units .* give 4 or more"),
        ({"units": 8, "mode": "asynchronous", "two_level": True}, "strategy.units: two_level"),
        ({"servers": 200, "shard": "tensor", "placement": "colocated"}, "200 servers for 77 whole tensors; give at most 77"),
        ({"sparse": "{rows: 0}"}, "strategy.sparse.rows: must be greater than 0"),
    ],
)
def test_incompatible_fields_are_rejected(small: Make, fields: Mapping[str, object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        small(servers(4, **fields))


def test_models_without_embedding_reject_sparse(small: Make) -> None:
    mlp = "model={kind: mlp, inputs: 8, layers: 2, hidden: 8, outputs: 2}"
    with pytest.raises(
        ScenarioError, match=r"strategy\.sparse: only tables of recommenders, token embeddings of.*leave sparse out"
    ):
        small(servers(4, sparse="{rows: 0.1}"), mlp)
