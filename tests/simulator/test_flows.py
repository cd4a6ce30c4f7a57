from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.flows import Allocator, finish_times
from simulator.program import Use


@dataclass(frozen=True)
class Demand:
    """An activity to start: amount, maximum rate, weight, resources used (with how much each), and when."""

    amount: float
    uses: tuple[tuple[int, float], ...]
    start_s: float = 0.0
    max_rate: float = float("inf")
    weight: float = 1.0


def ends_s(capacity: list[float], demands: list[Demand]) -> list[float]:
    """When each demand is done."""
    environment = simpy.Environment()
    allocator = Allocator(environment, capacity)
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


def test_one_user_has_all() -> None:
    assert ends_s([10.0], [Demand(100, ((0, 1),))]) == pytest.approx([10.0])


def test_its_own_maximum_holds() -> None:
    assert ends_s([10.0], [Demand(100, ((0, 1),), max_rate=4)]) == pytest.approx([25.0])


def test_two_share_equally_and_the_longer_speeds_up() -> None:
    assert ends_s([10.0], [Demand(50, ((0, 1),)), Demand(100, ((0, 1),))]) == pytest.approx([10.0, 15.0])


def test_a_later_start_slows_the_first() -> None:
    assert ends_s([10.0], [Demand(100, ((0, 1),)), Demand(25, ((0, 1),), start_s=5)]) == pytest.approx([12.5, 10.0])


def test_max_min_over_two_links() -> None:
    # a: link 0 only; b: both; c: link 1 only. b gets 1 of link 1, a the other 9 of link 0.
    demands = [Demand(90, ((0, 1),)), Demand(10, ((0, 1), (1, 1))), Demand(10, ((1, 1),))]
    assert ends_s([10.0, 2.0], demands) == pytest.approx([10.0, 10.0, 10.0])


def test_weights_divide_in_proportion() -> None:
    demands = [Demand(30, ((0, 1),), weight=3), Demand(10, ((0, 1),), weight=1)]
    assert ends_s([10.0], demands) == pytest.approx([4.0, 4.0])


def test_alike_activities_folded_into_one_take_as_long_as_all_of_them() -> None:
    apart = ends_s([10.0], [Demand(5, ((0, 1),)) for _ in range(4)] + [Demand(7, ((0, 1),))])
    folded = ends_s([10.0], [Demand(5, ((0, 4.0),)), Demand(7, ((0, 1),))])
    assert folded == pytest.approx([apart[0], apart[4]])


def test_using_a_resource_twice_counts_twice() -> None:
    assert ends_s([10.0], [Demand(10, ((0, 1), (0, 1)))]) == pytest.approx([2.0])


amounts = st.floats(1, 1e3)
routes = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)


@given(st.lists(st.tuples(amounts, routes, st.floats(0, 10)), min_size=1, max_size=8))
def test_no_resource_is_overdrawn_and_nobody_is_slower_than_need_be(flows: list[tuple[float, list[int], float]]) -> None:
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
def test_order_of_starting_changes_nothing(flows: list[tuple[float, list[int]]], random) -> None:  # type: ignore[no-untyped-def]
    demands = [Demand(amount, tuple((r, 1.0) for r in route)) for amount, route in flows]
    shuffled = list(range(len(demands)))
    random.shuffle(shuffled)
    ends = ends_s([1.0, 2.0, 5.0, 10.0], demands)
    again = ends_s([1.0, 2.0, 5.0, 10.0], [demands[i] for i in shuffled])
    assert [ends[i] for i in shuffled] == pytest.approx(again)


ORACLE = json.loads((Path(__file__).parent.parent / "oracles" / "max_min_flows.json").read_text())


@pytest.mark.parametrize("case", ORACLE["cases"], ids=range(len(ORACLE["cases"])))
def test_finish_times_agree_with_an_independent_simulator(case: dict[str, Any]) -> None:
    """SimGrid's answers, to one part in a million."""
    flows = case["flows"]
    ends_s = finish_times(
        [link["bandwidth_Bps"] for link in case["links"]],
        [flow["route"] for flow in flows],
        [flow["bytes"] for flow in flows],
        [flow["start_s"] for flow in flows],
    )
    assert ends_s == pytest.approx(case["finish_s"], rel=1e-6)


def test_flows_that_have_nothing_to_move_end_when_they_start() -> None:
    assert finish_times([1.0], [[], [0], [0, 0]], [5.0, 0.0, 2.0], [3.0, 4.0, 0.0]).tolist() == [3.0, 4.0, 2.0]
    assert len(finish_times([], [], [], [])) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [[0]], [1.0, 2.0], [0.0]), "one of each per flow"),
        (([0.0], [[0]], [1.0], [0.0]), "bandwidth is zero"),
        (([1.0], [[1]], [1.0], [0.0]), "flow 0 passes link 1, and there are 1"),
        (([1.0], [[0]], [-1.0], [0.0]), "size is negative"),
        (([1.0], [[0]], [1.0], [float("nan")]), "start is negative or not finite"),
    ],
)
def test_what_no_network_has(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        finish_times(*arguments)
