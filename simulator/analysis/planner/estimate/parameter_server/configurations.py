"""Servers: ways to train one scenario's model with parameter servers, as columns of numbers, a row each; and their memory.

Only servers that wait for all workers are told of: what others do in a step follows from who comes when.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.factorize import distinct
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model.recompute import NO_RECOMPUTE, Recompute
from scaleproof.simulator.scenario.schema import Batch, Scenario
from scaleproof.simulator.strategy import ParameterServer

Numbers = NDArray[np.int64]
Placement = Literal["dedicated", "colocated"]

PLACEMENTS: Final[tuple[Placement, ...]] = "dedicated", "colocated"
_KEPT: Final = "shard", "overlap", "sparse", "rollout_s"


@dataclass(frozen=True)
class ServerSpace:
    """What may be chosen for a scenario, whose model, cluster, batch and all else stay.

    placements: where servers stand. two_level: whether a node's workers sum their gradients first. buckets_bytes: where buckets
    close, which are pushed while the backward pass goes on.
    """

    scenario: Scenario
    workers: tuple[int, ...]
    servers: tuple[int, ...]
    placements: tuple[Placement, ...] = PLACEMENTS
    two_level: tuple[bool, ...] = (False, True)
    recompute: tuple[Recompute, ...] = (NO_RECOMPUTE,)
    buckets_bytes: tuple[float, ...] = (25 * 2.0**20,)

    @cached_property
    def kept(self) -> dict[str, Any]:
        """What the scenario's own strategy says of all else."""
        own = self.scenario.strategy
        return {name: getattr(own, name) for name in _KEPT} if isinstance(own, ParameterServer) else {"overlap": True}

    def strategy(self, workers: int, servers: int, placement: int, two_level: int, bucket: int) -> ParameterServer:
        """placement, bucket: numbers in their lists."""
        kept = ParameterServer(
            workers_=workers, servers_=servers, placement=self.placements[placement], two_level=bool(two_level)
        )
        # sizes and times are read from text alone
        return kept.model_copy(update=self.kept | {"bucket_bytes": self.buckets_bytes[bucket]})


@dataclass(frozen=True)
class ServerConfigurations:
    """Columns of one length. What `placement`, `recompute` and `bucket` number is in the space's lists."""

    space: ServerSpace
    workers: Numbers
    servers: Numbers
    placement: Numbers
    two_level: Numbers
    recompute: Numbers
    bucket: Numbers

    def __len__(self) -> int:
        return len(self.workers)

    def take(self, rows: Any) -> ServerConfigurations:
        """Some of them."""
        return ServerConfigurations(self.space, **{name: getattr(self, name)[rows] for name in SERVER_COLUMNS})

    def row(self, row: int) -> dict[str, Any]:
        """One of them, in the words that scenarios have."""
        space = self.space
        numbers: dict[str, Any] = {name: int(getattr(self, name)[row]) for name in SERVER_COLUMNS}
        bucket_bytes = space.buckets_bytes[numbers.pop("bucket")]
        told = {"bucket_bytes": bucket_bytes} if space.kept["overlap"] else {}
        return numbers | {
            "framework": space.scenario.framework.name,
            "samples": space.scenario.total_samples // numbers["workers"],
            "placement": space.placements[numbers["placement"]],
            "two_level": bool(numbers["two_level"]),
            "recompute": str(space.recompute[numbers["recompute"]]),
        } | told  # fmt: skip

    def strategy(self, row: int) -> ParameterServer:
        """The strategy of one."""
        names = "workers", "servers", "placement", "two_level", "bucket"
        return self.space.strategy(*(int(getattr(self, name)[row]) for name in names))

    def scenario(self, row: int) -> Scenario:
        """The scenario of one. Raises FieldError where it is not valid after all."""
        base = self.space.scenario
        none = dict.fromkeys(("accumulate_precision", "reduce_precision", "fused_accumulation"))
        update = {"zero": 0, "recompute": self.space.recompute[self.recompute[row]], **none}
        training = base.training.model_copy(update=update)
        given = {name: getattr(base, name) for name in Scenario.model_fields}
        given |= {"strategy": self.strategy(row), "training": training, "batch": Batch(total=base.total_samples)}
        return Scenario(**given)

    def nodes(self) -> Numbers:
        """Machines that each takes."""
        cluster = self.space.scenario.cluster
        dedicated = self._is(cluster, "dedicated")
        return -(-self.workers // cluster.node.devices) + np.where(dedicated, self.servers, 0)

    def _is(self, cluster: Cluster, placement: Placement) -> NDArray[np.bool_]:
        numbers = [number for number, one in enumerate(self.space.placements) if one == placement and cluster.nodes > 1]
        return np.isin(self.placement, numbers)


SERVER_COLUMNS: Final = tuple(one.name for one in fields(ServerConfigurations) if one.name != "space")


def every_served(space: ServerSpace) -> ServerConfigurations:
    """All valid ones. Buckets are not varied where pushes wait for the whole pass; where a machine has one worker, nothing is
    summed inside it; and on a single machine servers stand nowhere else."""
    found = np.array(list(_each(space)), dtype=np.int64).reshape(-1, len(SERVER_COLUMNS))
    return ServerConfigurations(space, **dict(zip(SERVER_COLUMNS, found.T, strict=True)))


def _each(space: ServerSpace) -> Iterator[tuple[int, ...]]:
    """Rows of the columns."""
    scenario, cluster = space.scenario, space.scenario.cluster
    layers, devices = scenario.model.build_layers(), cluster.node.devices
    recomputes = [number for number, one in enumerate(space.recompute) if one.suits(layers)]
    buckets = range(len(space.buckets_bytes) if space.kept["overlap"] else 1)
    most = (
        sum(len(layer.tensors) for layer in layers)
        if space.kept.get("shard", "bytes") != "bytes"
        else max(space.servers, default=0)
    )
    placements = range(len(space.placements))
    for workers, servers, placement in itertools.product(space.workers, space.servers, placements):
        nodes, own = -(-workers // devices), space.placements[placement] == "dedicated"
        suits = cluster.nodes > 1 if own else cluster.node.link is not None
        if not suits or scenario.total_samples % workers or servers > most or nodes + own * servers > cluster.nodes:
            continue
        levels = [level for level in space.two_level if not level or min(workers, devices) > 1]
        for level, recompute, bucket in itertools.product(levels, recomputes, buckets):
            yield workers, servers, placement, int(level), recompute, bucket


def served_memory_bytes(configurations: ServerConfigurations) -> NDArray[np.float64]:
    """The fullest worker's bytes in each configuration, as `simulator.memory` tells them of one: servers hold what they have in
    the memory of their hosts, and where and how many they are changes nothing for the workers."""
    c = configurations
    alike = distinct(c.workers, c.recompute)
    held = np.array([memory(c.scenario(row)).worst.total_bytes for row in alike.first.tolist()])
    return held[alike.code] if len(c) else np.empty(0)
