"""A little more of a quantity changes times by little, but for the steps that hardware and libraries have."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Final

import pytest

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import collective_cost
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.common import catalog
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_cluster
from tests.metamorphic.drawn import BLOCKS, drawn, seeds
from tests.validator.verdicts import in_bulk

NAMES: Final = catalog.names("clusters")
# A group of all 4,096 chips of a pod takes long to route.
MOST_DEVICES: Final = 64
QUICK: Final = ("aws-g5", "dgx-h100", "p100-25gbe")
OPERATIONS: Final[tuple[Op, ...]] = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
GROWTH: Final = 1.25
SIZES: Final = tuple(int(1024 * GROWTH**power) for power in range(64))
# NCCL switches algorithms and protocols by size, which its tuner places where it takes the new one to be as fast.
MOST_JUMP: Final = 2.1
MOST_FALL: Final = 0.4
# Channels of NCCL have speeds from a list, so that one per cent less bandwidth may be a fifth less for a collective.
MOST_STEP_CHANGE: Final = 0.1
SCENARIOS: Final = 10


@cache
def _cluster(name: str) -> Cluster:
    return load_cluster(catalog.ROOT / "clusters" / f"{name}.yaml")


@pytest.mark.parametrize("name", [*QUICK, *in_bulk(*(name for name in NAMES if name not in QUICK))])
def test_time_of_a_collective_follows_its_size(name: str) -> None:
    known = _cluster(name)
    devices, nodes = known.node.devices, 2 if known.nodes > 1 else 0
    for group in {Group.of(number, devices) for number in (min(devices, MOST_DEVICES), nodes * devices) if number > 1}:
        for operation in OPERATIONS:
            times_s = [collective_cost(operation, size, group, known).seconds for size in SIZES]
            for size, (before_s, after_s) in zip(SIZES, pairwise(times_s), strict=False):
                assert after_s <= MOST_JUMP * before_s, (operation, group, size)
                assert after_s >= (1 - MOST_FALL) * before_s, (operation, group, size)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_step_follows_bandwidths(block: int) -> None:
    for seed in seeds(block, SCENARIOS):
        fields = drawn(seed)
        scenario = load(fields)
        before_s = timed(scenario).step_time_s
        for name in ("network.bandwidth", "node.link.bandwidth"):
            changed = scenario.copied(cluster=QUANTITIES[name].slowed(scenario.cluster, 1.01))
            assert timed(changed).step_time_s == pytest.approx(before_s, rel=MOST_STEP_CHANGE), (name, fields)
