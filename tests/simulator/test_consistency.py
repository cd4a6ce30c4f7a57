"""Operations of equal messages take about equal time, on every shipped cluster and on custom devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

import pytest
import yaml

from scaleproof.simulator.analysis.planner.estimate.transfers import TransferTimes
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import collective_cost
from scaleproof.simulator.cluster.collectives.groups import Group
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.engine import simulate
from scaleproof.simulator.program import ProgramBuilder
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from tests.validator.verdicts import in_bulk

NAMES: Final = catalog.names("clusters")
SIZES: Final = tuple(2**power for power in range(20, 31, 2))
# A ring of more ranks takes long to route through a torus.
MOST_DEVICES: Final = 64
MOST_NODES: Final = 4
# Two operations that are each half of a third take as long as that, or up to half as long again: what starts and what ends
# them comes twice, and NVSwitch adds up in one go. Gloo's reduce-scatter is a whole allreduce, so that it is at 1.5, and copies
# its parts. On EFA of the first generation, whose steps take the time of a middle-sized message, NCCL's tuner chooses other
# protocols for halves.
BOUND: Final = 1.5
SLOW_STEPS_BOUND: Final = 1.7
COPIES_BOUND: Final = 1.55


@cache
def cluster(name: str) -> Cluster:
    return load_cluster(catalog.ROOT / "clusters" / f"{name}.yaml")


NCCL: Final = tuple(name for name in NAMES if cluster(name).library == "nccl")


def groups(known: Cluster) -> Iterator[Group]:
    """All devices of a node, all devices of several nodes, one device of each of several nodes."""
    devices, nodes = known.node.devices, min(MOST_NODES, known.nodes)
    if devices > 1:
        yield Group.of(min(devices, MOST_DEVICES), devices)
    if nodes > 1:
        yield Group.of(range(0, nodes * devices, devices), devices)
        if devices > 1:
            yield Group.of(nodes * devices, devices)


def halves_over_whole(known: Cluster, group: Group, size_bytes: int, algorithm: str | None = None) -> float:
    """Seconds of a reduce-scatter and an all-gather over those of an allreduce."""
    whole, *halves = (
        collective_cost(op, size_bytes, group, known, chosen).seconds
        for op, chosen in (("all_reduce", algorithm), ("reduce_scatter", None), ("all_gather", None))
    )
    return sum(halves) / whole


@pytest.mark.parametrize("name", NAMES)
def test_a_reduce_scatter_and_an_all_gather_take_about_as_long_as_an_allreduce(name: str) -> None:
    """NCCL and RCCL have trees for an allreduce alone, which beat rings while steps and not bytes take the time: there they are
    compared with the allreduce that they are halves of, which is the ring's."""
    known = cluster(name)
    for group in groups(known):
        for size in SIZES:
            algorithm = "ring" if name in NCCL else None
            transport = known.network.transport if known.network is not None else ""
            bound = SLOW_STEPS_BOUND if transport == "efa-1" else COPIES_BOUND if known.library == "gloo" else BOUND
            assert halves_over_whole(known, group, size, algorithm) <= bound * (1 + 1e-9), (group, size)


# But for racks that NVLink joins, whose rings of 288 ranks take a gigabyte's time for their steps.
@pytest.mark.parametrize("name", [name for name in NCCL if cluster(name).node.devices <= 16])
def test_large_rings_are_about_as_fast_as_the_algorithm_that_nccl_chooses(name: str) -> None:
    known = cluster(name)
    for group in groups(known):
        for size in (2**26, 2**28, 2**30):
            assert halves_over_whole(known, group, size) <= BOUND, (group, size)


def readme_cluster() -> Cluster:
    """The cluster of README.md's example scenario."""
    text = (catalog.ROOT.parent / "README.md").read_text(encoding="utf-8")
    scenario = next(block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "name: mine" in block)
    return Cluster.model_validate(yaml.safe_load(scenario)["cluster"])


@pytest.mark.parametrize("cards", [1, 4, 8])
def test_reduce_scatter_and_all_gather_take_an_allreduce_on_custom_devices(cards: int) -> None:
    known = readme_cluster()
    known = known.model_copy(update={"node": known.node.model_copy(update={"cards": cards})})
    assert known.library == "fastest"
    for group in groups(known):
        for size in SIZES:
            assert halves_over_whole(known, group, size) <= BOUND, (group, size)


class Pair(NamedTuple):
    """A sending and a receiving rank, by node and device."""

    source: tuple[int, int]
    target: tuple[int, int]

    def group(self, known: Cluster) -> Group:
        devices = known.node.devices
        return Group.of([node * devices + device for node, device in self], devices)


def pairs(known: Cluster) -> Iterator[Pair]:
    """The next device, the last of the node, the same of the next node."""
    if known.node.devices > 1:
        yield Pair((0, 0), (0, 1))
        yield Pair((0, 0), (0, known.node.devices - 1))
    if known.nodes > 1:
        yield Pair((0, 0), (1, 0))


def sent_alone_s(known: Cluster, pair: Pair, size_bytes: float) -> float:
    """Seconds of a pipeline message by a program's engine."""
    builder = ProgramBuilder()
    path = ResourceMap(known, builder.resources).concurrent_messages(*pair, size_bytes)
    ranks = [builder.rank(name) for name in ("source", "target")]
    builder.transfer(*ranks, size_bytes, path, Phase.SEND, ())
    return float(simulate(builder.build(), 1).end_s.max())


def estimated_s(known: Cluster, pair: Pair, size_bytes: float) -> float:
    """Seconds of a pipeline message by estimates."""
    return TransferTimes(known).message_s(size_bytes, *pair, senders=1, stall_s=0.0)


def test_a_sendrecv_uses_the_link_between_its_ranks() -> None:
    """However many do the same at that time: MI300X are joined pair by pair."""
    known = cluster("azure-nd-mi300x-v5")
    alone, together = (collective_cost("sendrecv", 2**30, Group.of(ranks, 8), known).seconds for ranks in (2, 8))
    assert together == alone


@pytest.mark.parametrize("name", [*NCCL[::4], *in_bulk(*(name for name in NCCL if name not in NCCL[::4]))])
def test_a_pipeline_message_takes_the_time_of_a_sendrecv(name: str) -> None:
    known = cluster(name)
    for pair in pairs(known):
        for size in (1, *SIZES):
            expected_s = collective_cost("sendrecv", size, pair.group(known), known).seconds
            assert sent_alone_s(known, pair, size) == pytest.approx(expected_s, rel=1e-6), (pair, size)
            assert estimated_s(known, pair, size) == pytest.approx(expected_s, rel=1e-6), (pair, size)
