from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.engine.max_min import Allocator, finish_times
from scaleproof.simulator.program import Use


@dataclass(frozen=True)
class Demand:
    """An activity to start: amount, maximum rate, weight, resources used (with how much each), and when."""

    amount: float
    uses: tuple[tuple[int, float], ...]
    start_s: float = 0.0
    max_rate: float = float("inf")
    weight: float = 1.0


def ends_s(capacity: list[float], demands: list[Demand], incast: list[float] | None = None) -> list[float]:
    """End time of each demand in seconds."""
    environment = simpy.Environment()
    allocator = Allocator(environment, capacity, incast)
    ends = [float("nan")] * len(demands)

    def activity(index: int, demand: Demand):  # type: ignore[no-untyped-def]
        yield environment.timeout(demand.start_s)

        def finished() -> None:
            ends[index] = environment.now

        uses = [Use(r, p) for r, p in demand.uses]
        allocator.start(demand.amount, demand.max_rate, demand.weight, uses, finished)

    for index, demand in enumerate(demands):
        environment.process(activity(index, demand))
    environment.run()
    return ends


def test_a_demands_maximum_rate_limits_it() -> None:
    assert ends_s([10.0], [Demand(100, ((0, 1),), max_rate=4)]) == pytest.approx([25.0])


def test_two_share_equally_and_the_longer_speeds_up_afterwards() -> None:
    assert ends_s([10.0], [Demand(50, ((0, 1),)), Demand(100, ((0, 1),))]) == pytest.approx([10.0, 15.0])


def test_max_min_shares_over_two_links() -> None:
    # a: link 0 only; b: both; c: link 1 only. b gets 1 of link 1, a the other 9 of link 0.
    demands = [Demand(90, ((0, 1),)), Demand(10, ((0, 1), (1, 1))), Demand(10, ((1, 1),))]
    assert ends_s([10.0, 2.0], demands) == pytest.approx([10.0, 10.0, 10.0])


def test_weights_divide_in_proportion() -> None:
    demands = [Demand(30, ((0, 1),), weight=3), Demand(10, ((0, 1),), weight=1)]
    assert ends_s([10.0], demands) == pytest.approx([4.0, 4.0])


def test_folded_equivalent_activities_take_as_long_as_separate_ones() -> None:
    separate = ends_s([10.0], [Demand(5, ((0, 1),)) for _ in range(4)] + [Demand(7, ((0, 1),))])
    folded = ends_s([10.0], [Demand(5, ((0, 4.0),)), Demand(7, ((0, 1),))])
    assert folded == pytest.approx([separate[0], separate[4]])


def test_using_a_resource_twice_counts_twice() -> None:
    assert ends_s([10.0], [Demand(10, ((0, 1), (0, 1)))]) == pytest.approx([2.0])


@pytest.mark.parametrize("slower_first", [True, False])
def test_capacity_unused_by_one_activity_goes_to_the_others(slower_first: bool) -> None:
    # the slow one takes 2 of 10, the other 8; then the last 2 of the slow one's 10 are still to do
    demands = [Demand(10, ((0, 1),), max_rate=2), Demand(32, ((0, 1),))]
    ends = ends_s([10.0], demands if slower_first else demands[::-1])
    assert ends == pytest.approx([5.0, 4.0] if slower_first else [4.0, 5.0])


def test_a_completion_can_start_the_next_activity_at_once() -> None:
    environment = simpy.Environment()
    allocator = Allocator(environment, [10.0])
    ends: list[float] = []

    def another() -> None:
        ends.append(environment.now)
        if len(ends) < 4:
            allocator.start(10, math.inf, 1.0, [Use(0)], another)

    allocator.start(10, math.inf, 1.0, [Use(0)], another)
    environment.run()
    assert ends == pytest.approx([1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize("flows", [1, 2, 7])
def test_incast_reduces_capacity_for_each_further_flow(flows: int) -> None:
    ends = ends_s([10.0], [Demand(5, ((0, 1),))] * flows, incast=[0.25])
    assert ends == pytest.approx([flows * 5 / 10 * (1 + 0.25 * (flows - 1))] * flows)


def test_a_port_regains_its_capacity_with_one_flow_left() -> None:
    # together 10 / 1.5: the first 10 take 3 s; the other 10 of the second go at 10
    assert ends_s([10.0], [Demand(10, ((0, 1),)), Demand(20, ((0, 1),))], incast=[0.5]) == pytest.approx([3.0, 4.0])


def test_folded_flows_have_the_incast_loss_of_separate_flows() -> None:
    separate = ends_s([10.0], [Demand(5, ((0, 1),))] * 4, incast=[0.1])
    assert ends_s([10.0], [Demand(5, ((0, 4.0),))], incast=[0.1]) == pytest.approx(separate[:1])


amounts = st.floats(1, 1e3)
routes = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)


@given(st.lists(st.tuples(amounts, routes, st.floats(0, 10)), min_size=1, max_size=8))
def test_no_resource_exceeds_its_capacity_and_allocation_is_max_min_fair(flows: list[tuple[float, list[int], float]]) -> None:
    capacity = [1.0, 2.0, 5.0, 10.0]
    demands = [Demand(amount, tuple((r, 1.0) for r in route), start_s) for amount, route, start_s in flows]
    ends = ends_s(capacity, demands)
    for demand, end_s in zip(demands, ends, strict=True):
        alone_s = demand.amount / min(capacity[r] for r, _ in demand.uses)
        assert end_s >= (demand.start_s + alone_s) * (1 - 1e-9)
    for resource, limit in enumerate(capacity):
        users = [(d, e) for d, e in zip(demands, ends, strict=True) if any(r == resource for r, _ in d.uses)]
        if users:
            busy_s = max(e for _, e in users) - min(d.start_s for d, _ in users)
            assert sum(d.amount for d, _ in users) <= limit * busy_s * (1 + 1e-9)
    # something always runs at the full rate of some resource, so all are done before a serial schedule would be
    serial_s = sum(d.amount / min(capacity[r] for r, _ in d.uses) for d in demands)
    assert max(ends) <= (max(d.start_s for d in demands) + serial_s) * (1 + 1e-9)


@given(st.lists(st.tuples(amounts, routes), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_order_of_starting_does_not_matter(flows: list[tuple[float, list[int]]], random) -> None:  # type: ignore[no-untyped-def]
    demands = [Demand(amount, tuple((r, 1.0) for r in route)) for amount, route in flows]
    shuffled = list(range(len(demands)))
    random.shuffle(shuffled)
    ends = ends_s([1.0, 2.0, 5.0, 10.0], demands)
    again = ends_s([1.0, 2.0, 5.0, 10.0], [demands[i] for i in shuffled])
    assert [ends[i] for i in shuffled] == pytest.approx(again)


@given(st.lists(st.tuples(amounts, st.floats(0, 100)), min_size=1, max_size=8), st.sampled_from([0.0, 0.1, 2.0]))
def test_a_port_respects_its_capacity_and_incast(flows: list[tuple[float, float]], incast: float) -> None:
    demands = [Demand(amount, ((0, 1.0),), start_s) for amount, start_s in flows]
    ends = ends_s([10.0], demands, incast=[incast])
    changes = sorted({d.start_s for d in demands} | set(ends))
    carried = 0.0
    for begin, end in itertools.pairwise(changes):
        under_way = sum(d.start_s <= begin and end <= e for d, e in zip(demands, ends, strict=True))
        carried += (end - begin) * 10.0 / (1 + incast * (under_way - 1)) if under_way else 0.0
    assert carried == pytest.approx(sum(d.amount for d in demands), rel=1e-9)


demands_of_all_kinds = st.builds(
    lambda amount, uses, start_s, max_rate, weight: Demand(amount, tuple(uses.items()), start_s, max_rate, weight),
    amounts,
    st.dictionaries(st.integers(0, 3), st.sampled_from([1.0, 3.0]), min_size=1, max_size=2),
    st.sampled_from([0.0, 5.0]) | st.floats(0, 100),
    st.sampled_from([math.inf, 2.0, 7.0]),
    st.sampled_from([1.0, 2.5]),
)


@given(st.lists(demands_of_all_kinds, min_size=1, max_size=8), st.sampled_from([0.0, 0.3]))
def test_a_never_saturated_resource_has_no_effect(demands: list[Demand], incast: float) -> None:
    """The one rule for whatever is shared: what uses one resource is no special case."""
    capacity, own = [1.0, 2.0, 5.0, 10.0], [1e6] * len(demands)
    more = [replace(d, uses=(*d.uses, (len(capacity) + i, 1.0))) for i, d in enumerate(demands)]
    ends = ends_s(capacity, demands, [incast] * 4)
    assert ends_s(capacity + own, more, [incast] * (4 + len(own))) == pytest.approx(ends, rel=1e-9)


ORACLE = json.loads((Path(__file__).parents[2] / "oracles" / "max_min_flows.json").read_text())


@pytest.mark.parametrize("case", ORACLE["cases"], ids=range(len(ORACLE["cases"])))
def test_finish_times_agree_with_an_independent_simulator(case: dict[str, Any]) -> None:
    """SimGrid's results, to one part in a million."""
    flows = case["flows"]
    ends_s = finish_times(
        [link["bandwidth_Bps"] for link in case["links"]],
        [flow["route"] for flow in flows],
        [flow["bytes"] for flow in flows],
        [flow["start_s"] for flow in flows],
    )
    assert ends_s == pytest.approx(case["finish_s"], rel=1e-6)


patterns = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True),
        st.sampled_from([1.0, 3.0]),
        st.sampled_from([0.0, 0.5]),
    ),
    min_size=1,
    max_size=3,
)


@given(patterns, st.integers(2, 6), st.lists(st.tuples(routes, amounts), max_size=2))
def test_folded_flows_end_when_separate_flows_do(
    rotated: list[tuple[list[int], float, float]], links: int, more: list[tuple[list[int], float]]
) -> None:
    """Each pattern of links is used from every link on, as in an all-to-all; further flows make some of them different."""
    flows = [({(i + hop) % links for hop in hops}, size, start) for hops, size, start in rotated for i in range(links)]
    flows += [({link % links for link in route}, size, 0.0) for route, size in more]
    capacity = [1.0 + (link % 2 if links % 2 == 0 else 0) for link in range(links)]
    expected = ends_s(capacity, [Demand(size, tuple((link, 1.0) for link in used), start) for used, size, start in flows])
    found = finish_times(capacity, *map(list, zip(*[(sorted(used), size, start) for used, size, start in flows], strict=True)))
    assert found == pytest.approx(expected, rel=1e-9)


def test_an_alltoall_over_a_leaf_spine_network_takes_as_long_as_its_busiest_links() -> None:
    leaves, hosts, spines, size = 4, 4, 2, 3.0
    ranks = leaves * hosts
    pairs = [(source, target) for source in range(ranks) for target in range(ranks) if source != target]
    up, down = 2 * ranks, 2 * ranks + leaves * spines
    routes = [
        [a, ranks + b]
        + [up + a // hosts * spines + (a + b) % spines, down + b // hosts * spines + (a + b) % spines]
        * (a // hosts != b // hosts)
        for a, b in pairs
    ]
    # each leaf sends 4 · 12 messages over two links of half a rank's bandwidth
    ends = finish_times([1.0] * 2 * ranks + [0.5] * 2 * leaves * spines, routes, [size] * len(pairs), [0.0] * len(pairs))
    assert ends.max() == pytest.approx(size * 4 * 12 / 2 / 0.5)
    # three messages inside a leaf share what twelve to other leaves leave of a rank's own link
    assert ends.min() == pytest.approx(size / ((1 - 12 / 48) / 3))


def test_flows_of_zero_size_end_when_they_start() -> None:
    assert finish_times([1.0], [[], [0], [0, 0]], [5.0, 0.0, 2.0], [3.0, 4.0, 0.0]).tolist() == [3.0, 4.0, 2.0]
    assert len(finish_times([], [], [], [])) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [[0]], [1.0, 2.0], [0.0]), "one of each per flow"),
        (([0.0], [[0]], [1.0], [0.0]), "bandwidth is zero"),
        (([1.0], [[1]], [1.0], [0.0]), "flow 0 uses link 1, but links are numbered 0 to 0"),
        (([1.0], [[0]], [-1.0], [0.0]), "size is negative"),
        (([1.0], [[0]], [1.0], [float("nan")]), "start is negative or not finite"),
    ],
)
def test_invalid_networks_are_rejected(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        finish_times(*arguments)
