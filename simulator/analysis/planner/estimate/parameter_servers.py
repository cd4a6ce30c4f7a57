"""Ways to train one scenario's model with parameter servers, their step times and memory.

There are a few hundred of them, so each is predicted. Only synchronous servers are covered: what others do in a step depends on
the order in which workers arrive.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.step_times import StepTimes
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model.layers import WHOLE
from scaleproof.simulator.model.recompute import NO_RECOMPUTE, Recompute
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.schema import Scenario

Placement = Literal["dedicated", "colocated"]

PLACEMENTS: Final[tuple[Placement, ...]] = "dedicated", "colocated"
# Fields of strategies with servers that are neither searched nor kept from the scenario's own strategy.
_NOT_KEPT: Final = ("kind", "mode", "bound", "backups", "assignment", "units")


class ServerChoice(NamedTuple):
    """A configuration. bucket_bytes: size at which buckets close, which are pushed during the backward pass."""

    workers: int
    servers: int
    placement: Placement
    two_level: bool
    recompute: Recompute
    bucket_bytes: float


@dataclass(frozen=True)
class ServerSpace:
    """Choices for a scenario, whose model, cluster, batch and other fields stay fixed.

    placements: where servers run. two_level: whether a node's workers sum their gradients first. `selective` in `recompute`
    means what the framework calls so.
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
        """Values of all other fields of the scenario's own strategy."""
        own, searched = self.scenario.strategy, {*ServerChoice._fields, "workers", "servers", *_NOT_KEPT}
        if not isinstance(own, ParameterServer):
            return {"overlap": True}
        return {name: getattr(own, name) for name in ParameterServer.model_fields if name not in searched}


@dataclass(frozen=True, eq=False)
class ServerConfigurations:
    """Configurations of a space by row."""

    space: ServerSpace
    choices: tuple[ServerChoice, ...]

    def __len__(self) -> int:
        return len(self.choices)

    def take(self, rows: Any) -> ServerConfigurations:
        """The configurations in some rows."""
        return ServerConfigurations(self.space, tuple(self.choices[row] for row in np.arange(len(self))[rows].tolist()))

    def row(self, row: int) -> dict[str, Any]:
        """One configuration, with the names and values of scenario fields."""
        values, scenario = self.choices[row]._asdict(), self.space.scenario
        if not self.space.kept["overlap"]:
            del values["bucket_bytes"]
        samples = scenario.total_samples // values["workers"]
        values |= {"recompute": str(values["recompute"]), "framework": scenario.framework.name, "samples": samples}
        return values

    def scenario(self, row: int) -> Scenario:
        """The scenario of one configuration. Raises FieldError if it turns out to be invalid."""
        base, (workers, servers, placement, two_level, recompute, bucket_bytes) = self.space.scenario, self.choices[row]
        strategy = ParameterServer(workers=workers, servers=servers, placement=placement, two_level=two_level)
        # validation would parse sizes and times from text
        strategy = strategy.model_copy(update=self.space.kept | {"bucket_bytes": bucket_bytes})
        none = dict.fromkeys(("accumulate_precision", "reduce_precision", "fused_accumulation"))
        training = base.training.model_copy(update={"zero": 0, "recompute": recompute, **none})
        given = {name: getattr(base, name) for name in Scenario.model_fields}
        given |= {"strategy": strategy, "training": training, "batch": base.batch.with_total(base.total_samples)}
        return Scenario(**given)

    def nodes(self) -> NDArray[np.int64]:
        """Number of machines of each configuration."""
        cluster = self.space.scenario.cluster
        of_servers = [one.servers if one.placement == "dedicated" and cluster.nodes > 1 else 0 for one in self.choices]
        of_workers = [-(-one.workers // cluster.node.devices) for one in self.choices]
        return np.array(of_workers, dtype=np.int64) + np.array(of_servers, dtype=np.int64)

    def step_times(self) -> StepTimes:
        """Predicted step times. Raises FieldError if a configuration turns out to be invalid."""
        predicted_s = np.array([timed(self.scenario(row)).step_time_s for row in range(len(self))], dtype=np.float64)
        return StepTimes(predicted_s, predicted_s)

    def memory_bytes(self) -> NDArray[np.float64]:
        """Bytes of the fullest worker in each configuration, infinite where nodes have too little memory for servers."""
        # bucket size and sums inside nodes affect neither
        keys = [(one.workers, one.servers, one.placement, one.recompute) for one in self.choices]
        known: dict[tuple[object, ...], float] = {}
        for row, key in enumerate(keys):
            if key not in known:
                use = memory(self.scenario(row))
                known[key] = use.worst.total_bytes if use.host is None or use.host.fits else math.inf
        return np.array([known[key] for key in keys], dtype=np.float64)


def valid_server_configurations(space: ServerSpace) -> ServerConfigurations:
    """All valid configurations of a space.

    Buckets are not varied where pushes wait for the whole pass. Where a machine has one worker, no gradients are summed inside
    it. On a single machine servers run on that machine only.
    """
    return ServerConfigurations(space, tuple(_choices(space)))


def _choices(space: ServerSpace) -> Iterator[ServerChoice]:
    scenario, cluster = space.scenario, space.scenario.cluster
    layers, devices = scenario.layers(WHOLE), cluster.node.devices
    meant = (one.meant_by(scenario.framework.selective) for one in space.recompute)
    recomputes = [one for one in meant if one.suits(layers)]
    buckets_bytes = space.buckets_bytes if space.kept["overlap"] else space.buckets_bytes[:1]
    most_servers = max(space.servers, default=0)
    if space.kept.get("shard", "bytes") != "bytes":
        most_servers = sum(len(layer.tensors) for layer in layers)
    for workers, servers, placement in itertools.product(space.workers, space.servers, space.placements):
        own = placement == "dedicated"
        suits = cluster.nodes > 1 if own else cluster.node.link is not None
        nodes = -(-workers // devices) + own * servers
        if not suits or scenario.total_samples % workers or servers > most_servers or nodes > cluster.nodes:
            continue
        levels = [level for level in space.two_level if not level or min(workers, devices) > 1]
        for level, recompute, bucket_bytes in itertools.product(levels, recomputes, buckets_bytes):
            yield ServerChoice(workers, servers, placement, level, recompute, bucket_bytes)
