"""Fields of parameter servers: workers push gradients, servers update parameters, workers pull them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Literal

from pydantic import Field

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.parameter_server import Asp, Bsp, ConsistencyModel, Ssp, WorkQuota
from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import Bytes, Seconds
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.parallelism.option_rules import Rule
from scaleproof.simulator.parallelism.strategy import Strategy

Sharding = Literal["bytes", "tensor", "round_robin"]

# What options need, and the errors elsewhere
STALE: Final = Rule(
    "mode == 'stale_synchronous'", "has no effect on {mode} servers", "set mode: stale_synchronous, or leave bound out"
)
SYNCHRONOUS: Final = Rule(
    "mode == 'synchronous'", "has no effect on {mode} servers", "set mode: synchronous, or leave backups out"
)
SINGLE_PUSHES: Final = Rule(
    "not two_level",
    "two_level makes a node's workers push as one, so single pushes cannot be dropped", "leave out one of both",
)  # fmt: skip
UNEQUAL_STEPS: Final = Rule(
    "mode != 'synchronous'",
    "has no effect on synchronous workers, which take equal steps", "leave units out, or set mode: asynchronous",
)  # fmt: skip
SINGLE_UNITS: Final = Rule(
    "not two_level", "two_level makes a node's workers take steps together, not single units", "leave out one of both"
)


class Sparse(Spec):
    """Workers push and pull only the rows of embeddings that their samples touch, each with an index of 8 bytes.

    Rows belong to the largest tensor of each layer that is called embedding; the row width is the greatest common divisor of
    all tensors of that layer and the next. Positions and token types are touched by every sample and stay dense. An output head
    that shares the embedding's weights has gradients for all rows: nothing is sparse then.
    """

    rows: float = Field(gt=0, le=1, description="share of an embedding's rows that a worker touches in a step")


class ParameterServer(Strategy):
    """`workers` train on their shares of the samples; `servers` store the parameters.

    placement: dedicated servers have separate nodes, colocated ones run on the workers' nodes and share their network cards. On
    a cluster of one node all processes share it either way.

    mode: synchronous servers wait for all pushes of a step and update once; with `backups`, that number of last pushes is not
    waited for, and dropped (arXiv 1604.00981). Other servers apply every push on arrival: asynchronous ones (Downpour, NIPS
    2012) reply immediately, stale synchronous ones once no worker is more than `bound` steps behind (Ho et al., NIPS 2013).

    shard: content of each server: an equal part of each tensor (`bytes`), or whole tensors, each assigned to the server with
    the least content so far (`tensor`), or in rotation (`round_robin`, TensorFlow's default).

    overlap: gradients are pushed during the backward pass and parameters pulled during the next forward pass, in buckets that
    close at `bucket`.

    two_level: the gradients of a node's workers are first summed inside it; one of them communicates with the servers and
    broadcasts the parameters to the others.

    assignment: of the `units` steps of single workers in the run, each worker has an equal part (fixed), or takes the next one
    when it is free (dynamic, as in TensorFlow's coordinator). Without units the run has no end, and faster workers of servers
    that do not wait for all take more steps.

    rollout: time in which a worker acts in its environment before each forward pass, with all parameters (arXiv 1602.01783).
    """

    kind: Literal["parameter_server"] = "parameter_server"
    workers: Count = 1
    servers: Count = 1
    placement: Literal["dedicated", "colocated"] = "dedicated"
    mode: Literal["synchronous", "stale_synchronous", "asynchronous"] = "synchronous"
    bound: Annotated[int | None, STALE] = Field(
        None, description="number of steps that the slowest worker may be behind, stale_synchronous only"
    )
    backups: Annotated[int, SYNCHRONOUS, SINGLE_PUSHES] = Field(
        0, description="number of pushes of a step that servers do not wait for, synchronous only"
    )
    shard: Sharding = "bytes"
    overlap: bool = Field(False, description="overlap pushes and pulls with passes")
    bucket_bytes: Bytes = Field(25 * 2.0**20, alias="bucket", description="size at which a bucket closes, with overlap")
    two_level: bool = Field(False, description="sum gradients inside a node first")
    sparse: Sparse | None = None
    assignment: Literal["fixed", "dynamic"] = "fixed"
    units: Annotated[Count | None, UNEQUAL_STEPS, SINGLE_UNITS] = Field(
        None, description="total number of steps, each of one worker, in the run"
    )
    rollout_s: Seconds = Field(
        0.0, alias="rollout", description="time in which a worker acts in its environment before each forward pass"
    )

    @property
    def waiting_ranks(self) -> int:
        """All workers except backups if servers are synchronous; else 1, since workers do not wait for each other."""
        return self.workers - self.backups if self.mode == "synchronous" else 1

    @property
    def consistency(self) -> ConsistencyModel:
        """Consistency model: when the servers reply."""
        match self.mode:
            case "synchronous":
                return Bsp(self.backups)
            case "stale_synchronous":
                return Ssp(self.bound or 0)
            case "asynchronous":
                return Asp()

    @property
    def quota(self) -> WorkQuota | None:
        """The units of work of a run; None if it has no end."""
        return WorkQuota(self.units, self.assignment == "dynamic") if self.units else None

    def pushers(self, devices: int) -> list[range]:
        """The workers of each pusher: one worker, or with two levels those of a node. devices: of a node."""
        size = devices if self.two_level else 1
        return [range(first, min(first + size, self.workers)) for first in range(0, self.workers, size)]

    def nodes_needed(self, cluster: Cluster) -> int:
        """Number of nodes of workers and dedicated servers."""
        worker_nodes = -(-self.workers // cluster.node.devices)
        return worker_nodes + self.servers if self.is_dedicated(cluster) else worker_nodes

    def communicates_in_nodes(self, cluster: Cluster) -> bool:
        """Whether workers on the same node communicate, or servers have workers on their node."""
        return super().communicates_in_nodes(cluster) or not self.is_dedicated(cluster)

    def is_dedicated(self, cluster: Cluster) -> bool:
        """Whether servers have separate nodes."""
        return self.placement == "dedicated" and cluster.nodes > 1

    def check(self, layers: Sequence[Layer], samples_per_worker: int) -> None:
        """Raises FieldError if fields contradict each other or the model."""
        super().check(layers, samples_per_worker)
        for field, message in self._problems(layers):
            raise FieldError(("strategy", field), message)

    def _problems(self, layers: Sequence[Layer]) -> Iterator[tuple[str, str]]:
        """Fields with problems, and messages that say what to do."""
        workers, bound, backups, tensors = self.workers, self.bound, self.backups, sum(len(layer.tensors) for layer in layers)
        if self.mode == "stale_synchronous" and bound is None:
            yield (
                "bound",
                "missing: number of steps that the slowest worker may be behind; give 0 or more (0 keeps all workers in step)",
            )
        if bound is not None and bound < 0:
            yield "bound", f"{bound} is negative; give 0 or more (0 keeps all workers in step)"
        if not 0 <= backups < workers:
            yield "backups", f"{backups} backups of {workers} workers: a step needs at least one push; give 0 to {workers - 1}"
        if self.shard != "bytes" and self.servers > tensors:
            yield "servers", f"{self.servers} servers for {tensors} whole tensors; give at most {tensors}, or shard: bytes"
        if self.sparse and not any(is_embedding(layer) for layer in layers):
            yield (
                "sparse",
                "only the token embeddings of described models are sparse, and this model has none: tables of a module of your "
                "own are pushed and pulled whole; leave sparse out",
            )
        if self.units is None and self.assignment == "dynamic":
            yield "units", f"missing: total number of steps of single workers; give for example {20 * workers}"
        if self.units is not None and self.units < workers:
            yield "units", f"{self.units} units leave some of {workers} workers idle; give {workers} or more"


def is_embedding(layer: Layer) -> bool:
    """Whether a layer looks up rows of a table."""
    return layer.name.rpartition(".")[2] == "embedding" and bool(layer.tensors)
