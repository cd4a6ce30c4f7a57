"""Collectives message by message: engines against each other, against closed forms and against what no network can break.

Invariants of every algorithm on every topology; equal times by engine and formula; textbook formulas where nothing is shared.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scaleproof.simulator.analysis.collective.messages import expand, message_time
from scaleproof.simulator.analysis.collective.time import collective_times
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.algorithms import ALGORITHMS
from scaleproof.simulator.cluster.collectives.cost import collective_cost
from scaleproof.simulator.cluster.collectives.groups import OPS, Group, Op
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.engine import events, is_contended, replay
from scaleproof.simulator.engine.timeline import Timeline
from tests.simulator.clusters import plain

pytestmark = pytest.mark.full

SIZE = 1e8
ALPHA_S, BETA_S = 10e-6, 1 / 10e9  # of the network between nodes of one device


def between(kind: str, **fields: object) -> dict[str, object]:
    """A topology of the network."""
    return {"topology": {"kind": kind, **fields}}


CLUSTERS: dict[str, Callable[[int], Cluster]] = {
    "switch": plain,
    "nvswitch": lambda n: plain(1, n, n),
    "mesh": lambda n: plain(1, n, n, link={"topology": {"kind": "mesh"}}),
    "cube_mesh": lambda n: plain(1, n, n, link={"topology": {"kind": "hybrid_cube_mesh"}}),
    "pcie_tree": lambda n: plain(1, n, n, link={"topology": {"kind": "pcie_tree", "between_sockets": "20 GB/s"}}),
    "nodes_of_2": lambda n: plain(n // 2, 2, 2),
    "rails": lambda n: plain(n // 2, 2, 2, network=between("rail_optimised", nodes_per_group=2, spines=2)),
    "leaf_spine": lambda n: plain(n, network=between("leaf_spine", per_leaf=2, spines=3, hop_latency="1 us")),
    "oversubscribed": lambda n: plain(n, network=between("leaf_spine", per_leaf=2, oversubscription=2)),
    "fat_tree": lambda n: plain(n, network=between("fat_tree", per_leaf=2, leaves_per_pod=2, spines_per_pod=2, cores=2)),
    "torus": lambda n: plain(n, network=between("torus", dimensions=[2, n // 2])),
    "dragonfly": lambda n: plain(
        n, network=between("dragonfly", per_router=1, routers_per_group=2, groups=9, local="10 GB/s", **{"global": "10 GB/s"})
    ),
}
# those for any number of ranks
PAIRS = [(name, op) for name, algorithm in ALGORITHMS.items() for op in algorithm.ops if name not in ("in_turns", "torus_axes")]
RANKS = (2, 4, 8)


def timelines(topology: str, ranks: int, algorithm: str, op: Op) -> tuple[Timeline, Timeline]:
    """By replay, as if nothing were shared, and by events."""
    where = CLUSTERS[topology](ranks)
    program, steps = expand(op, SIZE, Group.of(ranks, where.node.devices), where, algorithm)
    return replay.simulate(program, steps), events.simulate(program, steps)


def suits(topology: str, algorithm: str) -> bool:
    """Switches that reduce need ranks attached to a switch; NVSwitch reduces inside nodes."""
    if algorithm == "symmetric_multimem":
        return topology == "nvswitch"
    if algorithm.startswith("nvls"):
        return topology in ("nodes_of_2", "rails") or (topology == "nvswitch" and algorithm == "nvls")
    return not reduces_in_network(algorithm) or topology not in ("torus", "mesh", "cube_mesh", "pcie_tree", "nvswitch")


def reduces_in_network(algorithm: str) -> bool:
    return algorithm == "in_network" or algorithm.startswith("collnet")


def moved(timeline: Timeline) -> tuple[np.ndarray, np.ndarray]:
    """Bytes out of and into each class of a program, all steps together."""
    program, steps = timeline.program, len(timeline.start_s)
    ranks = len(program.ranks.names)
    return tuple(np.bincount(end, program.amount, ranks) * steps for end in (program.rank, program.peer))  # type: ignore[return-value]


def most_used(timeline: Timeline) -> float:
    """Of all resources and all stretches of time from one message's start to another's end: what has wholly moved in it, over
    what the resource can move in it. Above one no rates can make it true."""
    program, worst = timeline.program, 0.0
    uses = program.uses()
    begin_s, end_s = timeline.start_s + program.latency_s, timeline.end_s
    for resource, capacity in enumerate(program.resources.capacity):
        found = [(task, use.per_unit) for task, used in enumerate(uses) for use in used if use.resource == resource]
        if not found:
            continue
        tasks = np.array([task for task, _ in found])
        load = (program.amount[tasks] * np.array([per_unit for _, per_unit in found]))[None, :].repeat(len(begin_s), 0).ravel()
        begin, end = begin_s[:, tasks].ravel(), end_s[:, tasks].ravel()
        order = np.argsort(end)
        begin, end, load = begin[order], end[order], load[order]
        for first in np.unique(begin)[:20]:
            inside = begin >= first * (1 - 1e-12)
            worst = max(worst, float((np.cumsum(load[inside]) / ((end[inside] - first) * capacity)).max()))
    return worst


@pytest.mark.parametrize("topology", CLUSTERS)
@pytest.mark.parametrize(("algorithm", "op"), PAIRS)
def test_message_timelines_conserve_bytes_respect_bandwidth_and_causality(topology: str, algorithm: str, op: Op) -> None:
    if not suits(topology, algorithm):
        pytest.skip("no switch that could reduce")
    for ranks in RANKS:
        _, timeline = timelines(topology, ranks, algorithm, op)
        program = timeline.program
        out, into = moved(timeline)
        assert out.sum() == pytest.approx(into.sum())
        rounds = ALGORITHMS[algorithm].rounds(op, Group.of(ranks, CLUSTERS[topology](ranks).node.devices))
        assert out.sum() == pytest.approx(SIZE * sum(step.share.sum() * step.times for step in rounds))
        assert most_used(timeline) <= 1 + 1e-9
        assert (timeline.end_s >= timeline.start_s + program.latency_s + program.amount / program.max_rate - 1e-12).all()
        for step, (starts, ends) in enumerate(zip(timeline.start_s, timeline.end_s, strict=True)):
            for task, before in enumerate(program.follows()):
                assert all(starts[task] >= ends[cause] - 1e-12 for cause in before)
            for task, before in enumerate(program.carried_lists() if step else []):
                assert all(starts[task] >= timeline.end_s[step - 1][cause] - 1e-12 for cause in before)


@pytest.mark.parametrize("topology", CLUSTERS)
def test_replay_equals_events_without_sharing_and_is_never_slower_with_it(topology: str) -> None:
    alone = 0
    for algorithm, op in PAIRS:
        for ranks in RANKS if suits(topology, algorithm) else ():
            replayed, simulated = timelines(topology, ranks, algorithm, op)
            if is_contended(replayed):
                assert replayed.end_s.max() <= simulated.end_s.max() * (1 + 1e-9)
            else:
                alone += 1
                np.testing.assert_allclose(replayed.end_s, simulated.end_s, rtol=1e-9)
    assert alone >= 8


def log2(ranks: int) -> int:
    return ranks.bit_length() - 1


# Seconds on one switch, from the textbooks: Thakur et al. 2005, Patarasuk & Yuan 2009, Chan et al. 2007.
TEXTBOOK: dict[tuple[str, Op], Callable[[int, float, float], float]] = {
    ("ring", "all_reduce"): lambda n, a, b: 2 * (n - 1) * (a + SIZE / n * b),
    ("ring", "reduce_scatter"): lambda n, a, b: (n - 1) * (a + SIZE / n * b),
    ("ring", "all_gather"): lambda n, a, b: (n - 1) * (a + SIZE / n * b),
    ("ring", "broadcast"): lambda n, a, b: (n - 1) * (a + SIZE * b),
    ("ring", "reduce"): lambda n, a, b: (n - 1) * (a + SIZE * b),
    ("whole_ring", "reduce_scatter"): lambda n, a, b: 2 * (n - 1) * (a + SIZE / n * b),
    ("ring_gather", "reduce"): lambda n, a, b: (n - 1) * (a + SIZE / n * b) + a + (n - 1) / n * SIZE * b,
    ("binomial", "broadcast"): lambda n, a, b: log2(n) * (a + SIZE * b),
    ("binomial", "reduce"): lambda n, a, b: log2(n) * (a + SIZE * b),
    ("halving_doubling", "all_reduce"): lambda n, a, b: 2 * log2(n) * a + 2 * (n - 1) / n * SIZE * b,
    ("hierarchical", "all_reduce"): lambda n, a, b: 2 * (n - 1) * (a + SIZE / n * b),
    ("pairwise", "alltoall"): lambda n, a, b: a + (n - 1) / n * SIZE * b,
    ("pairwise", "sendrecv"): lambda n, a, b: a + SIZE * b,
    ("linear", "gather"): lambda n, a, b: a + (n - 1) / n * SIZE * b,
    ("linear", "scatter"): lambda n, a, b: a + (n - 1) / n * SIZE * b,
}


@pytest.mark.parametrize(("algorithm", "op"), TEXTBOOK)
@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 32])
def test_on_one_switch_message_times_equal_textbook_formulas(algorithm: str, op: Op, ranks: int) -> None:
    where = plain(ranks)
    textbook_s = TEXTBOOK[algorithm, op](ranks, ALPHA_S, BETA_S)
    assert message_time(op, SIZE, Group.of(ranks, 1), where, algorithm, pieces=1) == pytest.approx(textbook_s, rel=1e-9)
    if op not in ALGORITHMS[algorithm].pipelined:
        assert collective_cost(op, SIZE, Group.of(ranks, 1), where, algorithm).seconds == pytest.approx(textbook_s, rel=1e-9)


@pytest.mark.parametrize("topology", CLUSTERS)
def test_the_formula_equals_the_simulated_message_time(topology: str) -> None:
    """Exactly so where messages share nothing but their ends' links, but for latency, which the formula counts along one way.

    Where they share links in between, the formula waits for the slowest message of each round, messages only for their own;
    and the busiest link is not always kept busy.
    """
    rel = 0.005 if topology in ("switch", "nvswitch", "fat_tree", "leaf_spine") else 0.4
    for algorithm, op in PAIRS:
        is_nccls = algorithm.startswith(("nvls", "collnet", "symmetric"))
        if op in ALGORITHMS[algorithm].pipelined or is_nccls or not suits(topology, algorithm):
            continue
        where = CLUSTERS[topology](8)
        group = Group.of(8, where.node.devices)
        formula_s = collective_cost(op, SIZE, group, where, algorithm).seconds
        assert message_time(op, SIZE, group, where, algorithm) == pytest.approx(formula_s, rel=rel), (algorithm, op)


@pytest.mark.parametrize(("algorithm", "op"), [("tree", "all_reduce"), ("binary_tree", "all_reduce"), ("ring", "broadcast")])
def test_pipelined_pieces_approach_the_busiest_link_bound(algorithm: str, op: Op) -> None:
    where, group = plain(8), Group.of(8, 1)
    formula_s = collective_cost(op, SIZE, group, where, algorithm).seconds
    times = [message_time(op, SIZE, group, where, algorithm, pieces) for pieces in (1, 4, 16, 64)]
    assert times == sorted(times, reverse=True)
    assert times[-1] == pytest.approx(formula_s, rel=0.2)


# Shapes of groups: ranks by number or one by one, and devices of a node, each with a card of its own.
SHAPES = {
    "one node": (8, 8), "four nodes": (8, 2), "eight nodes": (8, 1), "half of each node": ([0, 1, 4, 5, 8, 9], 4),
    "uneven nodes": ([0, 1, 2, 3, 4, 5], 4), "not a power of two": (6, 2),
}  # fmt: skip


@pytest.mark.parametrize("size_bytes", [2**20, 2**24, 2**30])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", OPS)
def test_gloos_times_agree_with_its_messages_one_by_one(op: Op, shape: str, size_bytes: int) -> None:
    ranks, devices = SHAPES[shape]
    where = plain(4 if devices > 1 else 8, devices, devices).rebuilt(collectives={"library": "gloo"})
    group = Group.of(ranks, devices)  # type: ignore[arg-type]
    cost = collective_cost(op, size_bytes, group, where)
    assert message_time(op, size_bytes, group, where, cost.algorithm) == pytest.approx(cost.seconds, rel=0.1)


@pytest.mark.parametrize("size_bytes", [2**20, 2**24, 2**30])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("algorithm", "op"),
    [
        ("hierarchical", "all_reduce"), ("hierarchical", "all_gather"), ("hierarchical", "reduce_scatter"),
        ("halving_doubling", "all_reduce"), ("halving_doubling", "all_gather"), ("ring", "all_reduce"),
        ("binomial", "broadcast"), ("binomial", "reduce"),
    ],
)  # fmt: skip
def test_times_of_mpi_and_horovod_agree_with_their_messages_one_by_one(
    algorithm: str, op: Op, shape: str, size_bytes: int
) -> None:
    """Also Horovod's sums inside nodes first. Halving and doubling over other numbers than powers of two is slower message by
    message: ranks without an additional partner send early, and take half of their partner's card from the additional one."""
    ranks, devices = SHAPES[shape]
    where, group = plain(4 if devices > 1 else 8, devices, devices), Group.of(ranks, devices)  # type: ignore[arg-type]
    if algorithm == "hierarchical" and not group.is_even:
        return
    is_uneven = algorithm == "halving_doubling" and group.size.bit_count() > 1
    seconds = collective_cost(op, size_bytes, group, where, algorithm).seconds
    found = message_time(op, size_bytes, group, where, algorithm)
    assert 0.9 * seconds <= found <= (1.18 if is_uneven else 1.1) * seconds


def test_a_single_rank_takes_no_time_and_too_many_messages_are_rejected() -> None:
    assert message_time("all_reduce", SIZE, Group.of(1, 1), plain(1), "ring") == 0
    with pytest.raises(InputError, match="too many"):
        message_time("alltoall", SIZE, Group.of(1024, 1), plain(1024), "pairwise")


@pytest.mark.parametrize("topology", ["switch", "nodes_of_2", "rails", "oversubscribed"])
@pytest.mark.parametrize(
    "field", [{"incast": 0.3}, {"duplex": "half"}, {"overhead": "1 ms"}, {"duplex": "half", "incast": 0.3}]
)
def test_the_formula_accounts_for_every_field_of_a_link(topology: str, field: dict[str, object]) -> None:
    """On some of the nodes, too; several receivers on a half-duplex link share it in other ways than the formula's."""
    known = CLUSTERS[topology](8)
    shape = known.model_dump(by_alias=True, exclude_none=True)["network"]["topology"]
    devices = known.node.devices
    where = plain(8 // devices, devices, devices, network={"topology": shape, **field})
    for ranks in (8, [0, 1, 2, 4]):
        group = Group.of(ranks, devices)
        for algorithm, op in (("ring", "all_gather"), ("linear", "gather"), ("pairwise", "alltoall")):
            formula_s = collective_cost(op, SIZE, group, where, algorithm).seconds  # type: ignore[arg-type]
            messages_s = message_time(op, SIZE, group, where, algorithm)  # type: ignore[arg-type]
            assert messages_s == pytest.approx(formula_s, rel=0.25), (algorithm, ranks)


def test_measured_collectives_are_timed_by_the_librarys_algorithm_message_by_message() -> None:
    measured = {"measured": [{"ranks": 2, "latency": "1 ms", "bandwidth": "1 GB/s"}], "library": "gloo"}
    where = plain(1, 2, 2, collectives=measured)
    group = Group.of(2, 2)
    times = [one for flag in (False, True) for one in collective_times("all_reduce", [2**20], group, where, messages=flag)]
    assert [one.algorithm for one in times] == ["measured", "ring"]
