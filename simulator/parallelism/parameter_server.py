"""Fields of parameter servers: workers push gradients, servers update parameters, workers pull them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import Field

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.parameter_server import Asp, Bsp, ConsistencyModel, Ssp, WorkQuota
from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import Bytes, Seconds
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.recommender.lookups import Looked, Lookup, LookupDistribution, RowTable
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
    """Workers pull, have and push only the rows of embeddings that their samples touch, each with an index of 8 bytes.

    Rows belong to the tables of recommenders, to embeddings of a user's module with `sparse=True` (also without this option),
    and to the largest tensor of each layer that is called embedding; their width is then the greatest common divisor of all
    tensors of that layer and the next. Positions and token types are touched by every sample and stay dense. An output head
    that shares the embedding's weights has gradients for all rows, so nothing is sparse.
    """

    rows: float | None = Field(
        None, gt=0, le=1, description="share of an embedding's rows that a worker touches in a step; by its lookups if absent"
    )
    skew: float = Field(
        0.0, ge=0, le=10, description="exponent of Zipf's law of lookups in a user's module; 0 if all rows are equally frequent"
    )


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

    def worker_layers(self, layers: Sequence[Layer], samples_per_worker: float) -> Sequence[Layer]:
        """The layers with the rows of tables that a worker pulls in a step."""
        return with_pulled_rows(layers, self.sparse, samples_per_worker)

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
        if self.sparse:
            yield from _problems_of_rows(self.sparse, sent_tables(layers, self.sparse))
        if self.units is None and self.assignment == "dynamic":
            yield "units", f"missing: total number of steps of single workers; give for example {20 * workers}"
        if self.units is not None and self.units < workers:
            yield "units", f"{self.units} units leave some of {workers} workers idle; give {workers} or more"


def _problems_of_rows(sparse: Sparse, tables: Sequence[RowTable]) -> Iterator[tuple[str, str]]:
    """Fields of `sparse` with problems. tables: those of which rows are sent."""
    if not tables:
        yield (
            "sparse",
            "only tables of recommenders, token embeddings of described models, and embeddings of a module of your own with "
            "sparse=True are sent by rows, and this model has none; build nn.Embedding so, or leave sparse out",
        )
    if sparse.rows is None and not all(table.looked.pooling for table in tables):
        yield "sparse.rows", "missing: share of the embedding's rows that a worker touches in a step; give for example 0.1"
    if sparse.skew and (sparse.rows is not None or not all(table.name for table in tables)):
        yield "sparse.skew", "is of lookups in a module of your own, in place of rows; leave it out"


def sent_rows(layers: Sequence[Layer], number: int, sparse: Sparse | None) -> list[RowTable]:
    """The tables among the tensors of layer `number` of which workers push and pull rows. The number of lookups in those that
    are found by the name of the layer is unknown, and given as 0."""
    layer = layers[number]
    tables = [table for table in layer.row_tables if sparse or table.name]
    if tables or not sparse or not layer.tensors or layer.name.rpartition(".")[2] != "embedding":
        return tables
    most, following = max(layer.tensors), layers[number + 1].tensors if number + 1 < len(layers) else ()
    width = math.gcd(*layer.tensors, *following)
    return [RowTable(layer.tensors.index(most), Looked(LookupDistribution(most // width, 0.0), width, 0.0))]


def sent_tables(layers: Sequence[Layer], sparse: Sparse | None) -> list[RowTable]:
    """The tables of a model of which workers push and pull rows, in order of layers."""
    return [table for number in range(len(layers)) for table in sent_rows(layers, number, sparse)]


def with_pulled_rows(layers: Sequence[Layer], sparse: Sparse | None, samples: float) -> list[Layer]:
    """The layers as workers have them: of tables of which rows are sent, the rows that the samples of a step touch. samples: of
    one worker."""
    return [_with_pulled_rows(layer, sent_rows(layers, number, sparse), sparse, samples) for number, layer in enumerate(layers)]


def _with_pulled_rows(layer: Layer, tables: Sequence[RowTable], sparse: Sparse | None, samples: float) -> Layer:
    if not tables:
        return layer
    tensors, rows = list(layer.tensors), [touched_rows(table, sparse, samples) for table in tables]
    for table, pulled in zip(tables, rows, strict=True):
        tensors[table.tensor] = round(pulled * table.looked.width)
    operators = [
        replace(operator, parts=tuple(part._replace(pulled=own) for part, own in zip(operator.parts, rows, strict=True)))
        if isinstance(operator, Lookup)
        else operator
        for operator in layer.operators
    ]
    signature = f"{layer.signature}, {sum(tensors)} elements pulled"
    return replace(layer, signature=signature, operators=tuple(operators), tensors=tuple(tensors), row_tables=tuple(tables))


def touched_rows(table: RowTable, sparse: Sparse | None, samples: float, workers: int = 1) -> float:
    """Expected number of different rows of a table that samples of some workers look up. samples: of one worker."""
    distribution = table.looked.distribution
    if sparse and sparse.rows is not None:
        return distribution.rows * min(1.0, workers * sparse.rows)
    if table.name:
        distribution = distribution._replace(skew=sparse.skew if sparse else 0.0)
    return distribution.distinct(workers * samples * table.looked.pooling)
