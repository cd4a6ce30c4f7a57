"""Ways to train one scenario's model with parameter servers, as columns of numbers with one row each; their step times and
memory.

There are a few hundred of them, so each is predicted. Only synchronous servers are covered: what others do in a step depends on
the order in which workers arrive.
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
from scaleproof.simulator.analysis.planner.estimate.step_times import StepTimes
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model.recompute import NO_RECOMPUTE, Recompute
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.scenario.training import Batch

Numbers = NDArray[np.int64]
Placement = Literal["dedicated", "colocated"]

PLACEMENTS: Final[tuple[Placement, ...]] = "dedicated", "colocated"
_KEPT_FIELDS: Final = "shard", "overlap", "sparse", "rollout_s"


@dataclass(frozen=True)
class ServerSpace:
    """Choices for a scenario, whose model, cluster, batch and other fields stay fixed.

    placements: where servers run. two_level: whether a node's workers sum their gradients first. buckets_bytes: sizes at which
    buckets close, which are pushed during the backward pass. `selective` in `recompute` means what the framework calls so.
    """

    scenario: Scenario
    workers: tuple[int, ...]
    servers: tuple[int, ...]
    placements: tuple[Placement, ...] = PLACEMENTS
    two_level: tuple[bool, ...] = (False, True)
    recompute: tuple[Recompute, ...] = (NO_RECOMPUTE,)
    buckets_bytes: tuple[float, ...] = (25 * 2.0**20,)

    def __post_init__(self) -> None:
        meant = tuple(one.meant_by(self.scenario.framework.selective) for one in self.recompute)
        object.__setattr__(self, "recompute", meant)

    @cached_property
    def kept(self) -> dict[str, Any]:
        """Values of all other fields of the scenario's own strategy."""
        own = self.scenario.strategy
        return {name: getattr(own, name) for name in _KEPT_FIELDS} if isinstance(own, ParameterServer) else {"overlap": True}


@dataclass(frozen=True, eq=False)
class ServerConfigurations:
    """Columns of equal length. `placement`, `recompute` and `bucket` are indices of the space's lists."""

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
        """The configurations in some rows."""
        return ServerConfigurations(self.space, **{name: getattr(self, name)[rows] for name in SERVER_COLUMNS})

    def row(self, row: int) -> dict[str, Any]:
        """One configuration, with the names and values of scenario fields."""
        space = self.space
        numbers: dict[str, Any] = {name: int(getattr(self, name)[row]) for name in SERVER_COLUMNS}
        bucket_bytes = space.buckets_bytes[numbers.pop("bucket")]
        bucket_fields = {"bucket_bytes": bucket_bytes} if space.kept["overlap"] else {}
        return numbers | {
            "framework": space.scenario.framework.name,
            "samples": space.scenario.total_samples // numbers["workers"],
            "placement": space.placements[numbers["placement"]],
            "two_level": bool(numbers["two_level"]),
            "recompute": str(space.recompute[numbers["recompute"]]),
        } | bucket_fields  # fmt: skip

    def strategy(self, row: int) -> ParameterServer:
        """The strategy of one configuration."""
        space = self.space
        workers, servers, placement, two_level, _, bucket = (int(getattr(self, name)[row]) for name in SERVER_COLUMNS)
        chosen = ParameterServer(
            workers_=workers, servers_=servers, placement=space.placements[placement], two_level=bool(two_level)
        )
        # validation would parse sizes and times from text
        return chosen.model_copy(update=space.kept | {"bucket_bytes": space.buckets_bytes[bucket]})

    def scenario(self, row: int) -> Scenario:
        """The scenario of one configuration. Raises FieldError if it turns out to be invalid."""
        base = self.space.scenario
        none = dict.fromkeys(("accumulate_precision", "reduce_precision", "fused_accumulation"))
        update = {"zero": 0, "recompute": self.space.recompute[self.recompute[row]], **none}
        training = base.training.model_copy(update=update)
        given = {name: getattr(base, name) for name in Scenario.model_fields}
        given |= {"strategy": self.strategy(row), "training": training, "batch": Batch(total=base.total_samples)}
        return Scenario(**given)

    def nodes(self) -> Numbers:
        """Number of machines of each configuration."""
        cluster = self.space.scenario.cluster
        is_dedicated = np.array([one == "dedicated" and cluster.nodes > 1 for one in self.space.placements])[self.placement]
        return -(-self.workers // cluster.node.devices) + np.where(is_dedicated, self.servers, 0)


SERVER_COLUMNS: Final = tuple(one.name for one in fields(ServerConfigurations) if one.name != "space")


def valid_server_configurations(space: ServerSpace) -> ServerConfigurations:
    """All valid configurations of a space.

    Buckets are not varied where pushes wait for the whole pass. Where a machine has one worker, no gradients are summed inside
    it. On a single machine servers run on that machine only.
    """
    found = np.array(list(_rows(space)), dtype=np.int64).reshape(-1, len(SERVER_COLUMNS))
    return ServerConfigurations(space, **dict(zip(SERVER_COLUMNS, found.T, strict=True)))


def _rows(space: ServerSpace) -> Iterator[tuple[int, ...]]:
    """Rows of the columns."""
    scenario, cluster = space.scenario, space.scenario.cluster
    layers, devices = scenario.model.build_layers(), cluster.node.devices
    recomputes = [number for number, one in enumerate(space.recompute) if one.suits(layers)]
    buckets = range(len(space.buckets_bytes) if space.kept["overlap"] else 1)
    most_servers = (
        sum(len(layer.tensors) for layer in layers)
        if space.kept.get("shard", "bytes") != "bytes"
        else max(space.servers, default=0)
    )
    placements = range(len(space.placements))
    for workers, servers, placement in itertools.product(space.workers, space.servers, placements):
        nodes, own = -(-workers // devices), space.placements[placement] == "dedicated"
        suits = cluster.nodes > 1 if own else cluster.node.link is not None
        if not suits or scenario.total_samples % workers or servers > most_servers or nodes + own * servers > cluster.nodes:
            continue
        levels = [level for level in space.two_level if not level or min(workers, devices) > 1]
        for level, recompute, bucket in itertools.product(levels, recomputes, buckets):
            yield workers, servers, placement, int(level), recompute, bucket


def server_step_times(configurations: ServerConfigurations) -> StepTimes:
    """Predicted step times. Raises FieldError if a configuration turns out to be invalid."""
    c = configurations
    predicted_s = np.array([timed(c.scenario(row)).step_time_s for row in range(len(c))], dtype=np.float64)
    return StepTimes(predicted_s, predicted_s)


def server_memory_bytes(configurations: ServerConfigurations) -> NDArray[np.float64]:
    """Bytes of the fullest worker in each configuration, as `simulator.memory` computes them for one. Servers use the memory of
    their hosts; their number and placement do not affect workers."""
    c = configurations
    distinct_rows = distinct(c.workers, c.recompute)
    worker_bytes = np.array([memory(c.scenario(row)).worst.total_bytes for row in distinct_rows.first.tolist()])
    return worker_bytes[distinct_rows.code] if len(c) else np.empty(0)
