"""Background traffic on links, compared with closed forms and with explicit messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.common.speed_profile import Cycle, SpeedProfiles
from scaleproof.simulator.engine import events
from scaleproof.simulator.predict import timed
from scaleproof.simulator.program import Path, Program, ProgramBuilder, Tenancy, Use
from scaleproof.simulator.scenario.schema import Scenario

Make = Callable[..., Scenario]
SERVERS = "strategy={kind: parameter_server, workers: 8, servers: 2}"
ALWAYS = Cycle(math.inf, math.inf, 0.0, 1.0)


def messages(links: Sequence[Sequence[int]], sizes: Sequence[float], count: int = 2, weight: float = 1.0) -> Program:
    """One message over each of some routes through links of 1 byte/s, all at once."""
    builder = ProgramBuilder()
    resources = [builder.resource(f"link {number}", 1.0) for number in range(count)]
    for number, (route, size) in enumerate(zip(links, sizes, strict=True)):
        rank, other = (builder.rank(f"rank {number} {side}") for side in "ab")
        path = Path(0.0, math.inf, tuple(Use(resources[link]) for link in route), weight)
        builder.transfer(rank, other, size, path, Phase.SEND, [])
        builder.wait(rank, Phase.SEND, [])
    return builder.build()


def with_tenants(program: Program, *tenancies: Tenancy) -> Program:
    return replace(program, resources=replace(program.resources, tenancies=tenancies))


def ends_s(program: Program) -> list[float]:
    return events.simulate(program, 1).end_s[0][program.peer >= 0].tolist()


@given(st.floats(0.1, 0.9), st.floats(0.5, 5.0), st.floats(0.1, 0.9), st.floats(0.0, 5.0), st.floats(0.1, 30.0))
def test_a_message_with_intermittent_traffic_equals_work_with_that_speed_profile(
    share: float, period_s: float, part: float, begins_s: float, size_bytes: float
) -> None:
    cycle = Cycle(period_s, period_s * part, begins_s, 1 - share)
    (end_s,) = ends_s(with_tenants(messages([[0]], [size_bytes]), Tenancy(0, cycle, share, 0.0)))
    assert end_s == pytest.approx(SpeedProfiles([[(cycle,)]]).lasts_s(0.0, size_bytes), rel=1e-9)


@given(st.integers(1, 3), st.lists(st.floats(0.1, 9.0), min_size=1, max_size=4), st.floats(0.5, 2.0))
def test_background_flows_get_the_share_of_own_flows(flows: int, sizes: list[float], weight: float) -> None:
    """Equal to as many additional messages on the link that last longer than all others."""
    mine = messages([[0]] * len(sizes), sizes, weight=weight)
    explicit = messages([[0]] * (len(sizes) + flows), [*sizes, *[100.0] * flows], weight=weight)
    found = ends_s(with_tenants(mine, Tenancy(0, ALWAYS, 0.0, flows * weight)))
    assert found == pytest.approx(ends_s(explicit)[: len(sizes)], rel=1e-9)


@given(
    st.lists(st.sampled_from([(0,), (1,), (0, 1)]), min_size=1, max_size=5),
    st.lists(st.floats(0.1, 9.0), min_size=5, max_size=5),
    st.integers(1, 3),
)
def test_background_flows_share_equally_on_routes_of_several_links(
    routes: list[tuple[int, ...]], sizes: list[float], flows: int
) -> None:
    sizes = sizes[: len(routes)]
    explicit = messages([*routes, *[(0,)] * flows], [*sizes, *[200.0] * flows])
    found = ends_s(with_tenants(messages(routes, sizes), Tenancy(0, ALWAYS, 0.0, flows)))
    assert found == pytest.approx(ends_s(explicit)[: len(routes)], rel=1e-9)


@given(
    st.lists(st.sampled_from([(0,), (1,), (0, 1)]), min_size=1, max_size=5),
    st.lists(st.floats(0.1, 9.0), min_size=5, max_size=5),
)
def test_intermittent_traffic_conserves_bytes(routes: list[tuple[int, ...]], sizes: list[float]) -> None:
    """The link that all pass is as busy as it can be until the last has passed."""
    program = with_tenants(
        messages([(0,)] * len(routes), sizes[: len(routes)]), Tenancy(0, Cycle(1.0, 0.5, 0.25, 1.0), 0.5, 0.0)
    )
    total = sum(sizes[: len(routes)])
    assert max(ends_s(program)) == pytest.approx(SpeedProfiles([[(Cycle(1.0, 0.5, 0.25, 0.5),)]]).lasts_s(0.0, total), rel=1e-9)


def test_several_tenants_each_take_their_share_of_the_remaining_bandwidth() -> None:
    program = messages([(0,)], [8.0])
    later = Cycle(math.inf, 2.0, 4.0, 1.0)
    (end_s,) = ends_s(with_tenants(program, Tenancy(0, ALWAYS, 0.5, 0.0), Tenancy(0, later, 0.5, 0.0)))
    # 2 bytes by 4 s, half a byte by 6 s, and the rest at half a byte a second
    assert end_s == pytest.approx(6 + (8 - 2.5) / 0.5)


def test_a_permanent_tenant_equals_a_slower_link(small: Make) -> None:
    taken = timed(small(SERVERS, "unevenness={tenants: [{share: 0.75}]}"))
    slower = timed(small(SERVERS, "cluster.network.bandwidth=2.5 Gbit/s"))
    assert taken.step_time_s == pytest.approx(slower.step_time_s, rel=1e-9)


def test_tenants_of_one_node_use_that_nodes_link(small: Make) -> None:
    """The node of a server holds up all, that of a worker not more than it."""
    even, worker, server, everywhere = (
        timed(small(SERVERS, *([f"unevenness={{tenants: [{{share: 0.75{nodes}}}]}}"] if nodes is not None else []))).step_time_s
        for nodes in (None, ", nodes: 0", ", nodes: 2", "")
    )
    assert even < worker <= everywhere * (1 + 1e-9)
    assert even < server <= everywhere * (1 + 1e-9)


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_traffic_half_of_the_time_costs_between_none_and_permanent(small: Make, mode: str) -> None:
    strategy = SERVERS.replace("servers: 2", f"servers: 2, mode: {mode}")
    even, sometimes, always = (
        timed(small(strategy, *changes)).step_time_s
        for changes in (
            (),
            ("unevenness={tenants: [{share: 0.75, lasts: 100 ms, period: 200 ms}]}",),
            ("unevenness={tenants: [{share: 0.75}]}",),
        )
    )
    assert even < sometimes < always
    # workers that wait for nobody are bunched together whenever the link is free again, and take a while to part
    mean_s = 2 / (1 / even + 1 / always)
    assert 0.98 * mean_s < sometimes < 1.2 * mean_s


def test_tenants_on_unused_links_are_rejected(small: Make) -> None:
    with pytest.raises(FieldError, match=r"unevenness\.tenants\.0: no message uses the network link of node 7"):
        timed(small(SERVERS, "unevenness={tenants: [{nodes: 7, share: 0.5}]}"))
    with pytest.raises(FieldError, match="any node"):
        timed(small("unevenness={tenants: [{flows: 1}]}"))


def test_too_many_switches_of_tenants_are_rejected(small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleproof.simulator.engine.events._MOST_SWITCHES", 1000)
    with pytest.raises(FieldError, match=r"more than 1,000 times; give longer periods"):
        timed(small(SERVERS, "unevenness={tenants: [{share: 0.5, lasts: 1 ns, period: 2 ns}]}"))
