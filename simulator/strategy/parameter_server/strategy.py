"""Parameter servers: workers push gradients, servers update parameters, workers pull them."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Final, Literal

import numpy as np
from pydantic import Field

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Count
from scaleproof.simulator.common.units import Bytes, Seconds
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.program import Program
from scaleproof.simulator.program.consistency import SYNCHRONOUS, Asp, Bsp, Gate, Ssp, WorkQuota
from scaleproof.simulator.strategy.base import Strategy
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.parameter_server.program import ServedStep
from scaleproof.simulator.strategy.parameter_server.ranks import OnNode, RankClass, classes, crews, placed
from scaleproof.simulator.strategy.parameter_server.shards import Bucket, Sharding, Sparse, buckets, has_embedding

# of crews and classes of servers; as many take 10 s to build and simulate for two steps
_MOST_MESSAGES: Final = 200_000


class ParameterServer(Strategy):
    """`workers` train on their shares; `servers` hold the parameters.

    placement: dedicated servers have machines of their own, colocated ones run on the workers' machines and share their
    network cards. On a cluster of one machine all processes share it either way.

    mode: synchronous servers wait for all pushes of a step, and update once; of workers that have `backups` the last so many
    are not waited for, and dropped (arXiv 1604.00981). Others apply every push as it comes: asynchronous ones (Downpour, NIPS
    2012) answer at once, stale synchronous ones once no worker is more than `bound` steps behind (Ho et al., NIPS 2013).

    shard: what each server holds, by `bytes` an equal part, or whole tensors: each given to the server that holds the least by
    then (`tensor`), or in turn (`round_robin`, TensorFlow's default).

    overlap: gradients are pushed while the backward pass goes on and parameters pulled while the next forward pass does, in
    buckets that close at `bucket`.

    two_level: the gradients of a node's workers are first summed inside it, one of them talks to the servers, and hands the
    parameters to the rest.

    assignment: of `units` steps of single workers, which the run consists of, each worker has an equal part (fixed), or takes
    the next as it gets free (dynamic, as TensorFlow's coordinator has it). Without units the run has no end, and faster workers
    of servers that do not wait for all take more steps.

    rollout: how long a worker acts in its environment before each forward pass, with all parameters (arXiv 1602.01783).
    """

    kind: Literal["parameter_server"] = "parameter_server"
    workers_: Count = Field(1, alias="workers")
    servers_: Count = Field(1, alias="servers")
    placement: Literal["dedicated", "colocated"] = "dedicated"
    mode: Literal["synchronous", "stale_synchronous", "asynchronous"] = "synchronous"
    bound: int | None = Field(None, description="steps that the slowest worker may be behind, stale_synchronous only")
    backups: int = Field(0, description="pushes of a step that are not waited for, synchronous only")
    shard: Sharding = "bytes"
    overlap: bool = Field(False, description="push and pull beside the passes")
    bucket_bytes: Bytes = Field(25 * 2.0**20, alias="bucket", description="size at which a bucket closes, with overlap")
    two_level: bool = Field(False, description="sum inside a node first")
    sparse: Sparse | None = None
    assignment: Literal["fixed", "dynamic"] = "fixed"
    units: Count | None = Field(None, description="steps of single workers that the run consists of")
    rollout_s: Seconds = Field(0.0, alias="rollout", description="for which a worker acts before each forward pass")

    @property
    def workers(self) -> int:
        return self.workers_

    @property
    def servers(self) -> int:
        return self.servers_

    @property
    def waiting_ranks(self) -> int:
        """All workers but the backups where servers are synchronous, else none waits for another."""
        return self.workers - self.backups if self.mode == "synchronous" else 1

    @property
    def gate(self) -> Gate:
        """When the servers answer."""
        match self.mode:
            case "synchronous":
                return Bsp(self.backups)
            case "stale_synchronous":
                return Ssp(self.bound or 0)
            case "asynchronous":
                return Asp()

    def nodes_needed(self, cluster: Cluster) -> int:
        """Nodes that workers and dedicated servers take."""
        worker_nodes = -(-self.workers // cluster.node.devices)
        return worker_nodes + self.servers if self._is_dedicated(cluster) else worker_nodes

    def talks_in_nodes(self, cluster: Cluster) -> bool:
        return super().talks_in_nodes(cluster) or not self._is_dedicated(cluster)

    def _is_dedicated(self, cluster: Cluster) -> bool:
        return self.placement == "dedicated" and cluster.nodes > 1

    def check(self, layers: Sequence[Layer], samples_per_worker: int) -> None:
        """Raises FieldError where fields do not go together, or with the model."""
        super().check(layers, samples_per_worker)
        for field, message in self._problems(layers):
            raise FieldError(("strategy", field), message)

    def _problems(self, layers: Sequence[Layer]) -> Iterator[tuple[str, str]]:
        """By field what is wrong, and what to do."""
        workers, bound, backups = self.workers, self.bound, self.backups
        if self.mode == "stale_synchronous" and bound is None:
            yield (
                "bound",
                "missing: how many steps the slowest worker may be behind; give 0, which keeps all in step, or more",
            )
        if self.mode != "stale_synchronous" and bound is not None:
            yield "bound", f"{self.mode} servers keep no clock; set mode: stale_synchronous, or leave bound out"
        if bound is not None and bound < 0:
            yield "bound", f"{bound} is below zero; give 0, which keeps all in step, or more"
        if not 0 <= backups < workers:
            yield "backups", f"{backups} of {workers} workers cannot be spared: a step needs one push; give 0 to {workers - 1}"
        if backups and self.mode != "synchronous":
            yield "backups", f"{self.mode} servers wait for no push; set mode: synchronous, or leave backups out"
        if backups and self.two_level:
            yield "backups", "with two_level a node's workers push as one, and none can be spared; leave either out"
        tensors = sum(len(layer.tensors) for layer in layers)
        if self.shard != "bytes" and self.servers > tensors:
            yield "servers", f"{self.servers} servers for {tensors} whole tensors; give at most {tensors}, or shard: bytes"
        if self.sparse and not has_embedding(layers):
            yield "sparse", "the model has no layer called embedding, so all of it is dense; leave sparse out"
        yield from self._problems_of_units()

    def _problems_of_units(self) -> Iterator[tuple[str, str]]:
        if self.units is None and self.assignment == "dynamic":
            yield "units", f"missing: how many steps of single workers there are to take; give such as {20 * self.workers}"
        if self.units is not None and self.mode == "synchronous":
            yield "units", "synchronous workers all take the same steps; leave units out, or set mode: asynchronous"
        if self.units is not None and self.units < self.workers:
            yield "units", f"{self.units} units leave some of {self.workers} workers idle; give {self.workers} or more"
        if self.units is not None and self.two_level:
            yield "units", "with two_level a node's workers go together, and take no units of their own; leave either out"

    def compile(self, job: Job) -> Program:
        """One step of all workers. Raises FieldError where there are too many messages to simulate."""
        cluster = job.cluster
        limit_bytes = self.bucket_bytes if self.overlap else math.inf
        parts = buckets(job.layers, self.servers, self.shard, job.element_bytes, limit_bytes, self.sparse, self.workers)
        nodes = placed(self.workers, self.servers, cluster.node.devices, self._is_dedicated(cluster))
        alike = self._classes(job, nodes, parts)
        talking = crews(alike, nodes, self.two_level)
        messages = len(talking) * sum(one.is_server for one in alike) * len(parts)
        if messages > _MOST_MESSAGES:
            text = f"{messages} messages a step are too many to simulate; give fewer than {self.servers}, or larger buckets"
            raise FieldError(("strategy", "servers"), text)
        units = WorkQuota(self.units, self.assignment == "dynamic") if self.units else None
        step = ServedStep(job, self.gate, units, alike, talking, parts, self.rollout_s)
        return step.overlapped() if self.overlap else step.one_after_the_other()

    def _classes(self, job: Job, nodes: Mapping[int, OnNode], parts: Sequence[Bucket]) -> list[RankClass]:
        """Alike ranks on alike nodes; what is told apart, or where nodes are not joined alike, each on its own."""
        apart = self._apart(job)
        # servers are alike that get the same
        held = np.concatenate([np.stack(bucket[1:]) for bucket in parts])

        def kind(rank: int) -> Hashable:
            if rank in apart:
                return rank
            return "worker" if rank < self.workers else held[:, rank - self.workers].tobytes()

        def is_alone(node: int) -> bool:
            ranks = nodes[node]
            goes_alone = self.gate != SYNCHRONOUS and len(ranks.workers) > 0
            return goes_alone or any(rank in apart for some in ranks for rank in some)

        return classes(nodes, job.cluster.node.devices, kind, is_alone)

    def _apart(self, job: Job) -> Collection[int]:
        """Ranks that nothing is folded with. Workers that do not wait for all others part, however alike they are. Servers that
        get the same at the same time do not: the services of folded ones vary alike, their messages do not."""
        if not job.cluster.is_uniform:
            return range(self.ranks)
        apart = set(job.apart(self.ranks))
        if self.gate == SYNCHRONOUS:
            return apart
        if job.unevenness.message_jitter == 0 and not job.unevenness.changes:
            apart -= set(range(self.workers, self.ranks)) - job.unevenness.named
        return apart if self.two_level else apart | set(range(self.workers))
