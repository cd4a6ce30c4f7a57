"""Collectives among ranks that share layers, and their exposed time within a pass."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.algorithms import Group, Op
from scaleproof.simulator.cluster.collectives.cost import (
    Costing,
    costing,
    direct_costing,
    passed_on_costing,
    processors_taken,
    rendezvous_s,
)
from scaleproof.simulator.common.communication import Collective, Dimension, number_of
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Axis, Exchange, Matmul, Routed
from scaleproof.simulator.model.recompute import again
from scaleproof.simulator.program.pass_communication import PassCommunication
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.mesh import DeviceMesh
from scaleproof.simulator.strategy.model_parallel.expert_dispatch import PLAIN, Dispatch

# The cost by size of an operation over a group.
CostOf = Callable[[Op, Group, Cluster], Costing]
# Matrix products of a block whose inputs all tensor-parallel ranks have.
_READ_INPUT: Final = frozenset({"qkv", "up"})


@dataclass(frozen=True)
class LayerCollectives:
    """Collectives among ranks that share layers.

    expert, expert_tensor: as in `Plan`. overlap_tensor: whether collectives of tensor-parallel ranks are divided into pieces
    that overlap with the products before or after them (arXiv 2305.06942). dispatch: options of expert all-to-alls.
    """

    mesh: DeviceMesh
    expert: int = 1
    overlap_tensor: bool = False
    expert_tensor: int | None = None
    dispatch: Dispatch = PLAIN
    _cache: dict[tuple[int, str, str, CostOf], ConcurrentCollective] = field(default_factory=dict, compare=False, repr=False)

    def group(self, axis: Axis) -> Group:
        """The ranks of a collective along an axis; the slowest of all such groups."""
        if axis == "expert":
            return self.mesh.expert_group(self.expert, self.expert_tensor)
        if axis == "expert_tensor":
            return self.mesh.along("tensor", self.expert_tensor or self.mesh.tensor)
        return self.mesh.along(axis, self.mesh.tensor if axis == "tensor" else self.mesh.context)

    def seconds(self, exchange: Exchange, layer: Layer, samples: float, job: Job) -> float:
        """Exposed seconds of a collective.

        An overlapped collective takes processors from concurrent operators; it is exposed as far as it takes longer than its
        part of them, where all collectives overlapped with the same operators have equal parts.
        """
        if exchange.routed is not None:
            return self._routed_s(exchange, exchange.routed, layer, samples, job)
        cost_of = passed_on_costing if exchange.passed_on else costing
        collective = self._concurrent(cast(Op, exchange.op), exchange.axis, job.cluster, cost_of)
        collective_s = collective.seconds(self.message_bytes(exchange, samples, job))
        if job.framework.rendezvous:
            collective_s += rendezvous_s(self.group(exchange.axis), job.cluster)
        if exchange.hidden:
            operators = [o for o in layer.operators if exchange.overlapped in ("", o.name)]
            operators_s = job.operators_s(layer, operators, samples)[exchange.backward]
            span = exchange.backward, exchange.overlapped
            overlapping = sum(one.hidden and (one.backward, one.overlapped) == span for one in layer.exchanges)
            return max(collective_s * processors_taken(job.cluster), collective_s - operators_s / overlapping)
        if self.in_pieces(exchange):
            # the first piece of a gather, or the last of a scatter, has no product to overlap with
            products = [o for o in layer.operators if isinstance(o, Matmul)]
            products_s = job.operators_s(layer, products, samples)[exchange.backward]
            count = sum(self.in_pieces(one) and one.backward == exchange.backward for one in layer.exchanges)
            return max(collective_s / self.group(exchange.axis).size, collective_s - products_s / count)
        if job.framework.overlap_input_gradients and _sums_input_gradients(exchange):
            return max(
                collective_s * processors_taken(job.cluster), collective_s - self._weights_s(exchange, layer, samples, job)
            )
        return collective_s

    def in_pieces(self, exchange: Exchange) -> bool:
        """Whether a collective is divided into pieces that overlap with the product before or after it."""
        is_divisible = not exchange.hidden and exchange.op in ("all_gather", "reduce_scatter")
        return self.overlap_tensor and exchange.axis == "tensor" and is_divisible

    def message_bytes(self, exchange: Exchange, samples: float, job: Job) -> float:
        """Bytes of a collective's whole buffer."""
        routed, element_bytes = exchange.routed, job.element_bytes
        if routed is not None:
            element_bytes = self.dispatch.element_bytes(routed, element_bytes)
        return exchange.elements * samples * element_bytes

    def _weights_s(self, exchange: Exchange, layer: Layer, samples: float, job: Job) -> float:
        """Seconds of the weight-gradient products that overlap with one sum of input gradients: half of the backward pass of
        the products that read the input."""
        products = [one for one in layer.operators if one.name in _READ_INPUT]
        count = sum(_sums_input_gradients(one) and one.axis == exchange.axis for one in layer.exchanges)
        return job.operators_s(layer, products, samples)[True] / 2 / count if products else 0.0

    def _routed_s(self, exchange: Exchange, routed: Routed, layer: Layer, samples: float, job: Job) -> float:
        """Exposed seconds of an all-to-all of tokens. If overlapped with another microbatch's compute, each takes processors
        from its part of it, the forward pass of one microbatch and the backward pass of another over the layer."""
        size_bytes = self.message_bytes(exchange, samples, job)
        if self.dispatch.deduplicated:
            collective_s = self._deduplicated_s(size_bytes / routed.active, routed, job.cluster)
        else:
            collective_s = self._concurrent("alltoall", "expert", job.cluster).seconds(size_bytes)
        if not self.dispatch.overlap:
            return collective_s
        compute_s = sum(job.operators_s(layer, layer.operators, samples))
        count = sum(one.routed is not None for one in layer.exchanges)
        return max(collective_s * processors_taken(job.cluster), collective_s - compute_s / count)

    def _deduplicated_s(self, token_bytes: float, routed: Routed, cluster: Cluster) -> float:
        """Seconds to send a rank's tokens once to each of their nodes, while received tokens are forwarded inside the node;
        both overlap completely (arXiv 2412.19437, section 3.2.2). token_bytes: bytes of one copy of all tokens."""
        nodes, ranks = self.dispatch.copies(routed, self.group("expert"))
        between, inside = (self._direct(span, cluster) for span in ("between nodes", "inside a node"))
        return max(between.seconds(token_bytes * nodes), inside.seconds(token_bytes * ranks))

    def _direct(self, span: Literal["between nodes", "inside a node"], cluster: Cluster) -> ConcurrentCollective:
        """All-to-alls of the expert ranks on the same rail of all nodes, or on the same node, by separate kernels."""
        key = id(cluster), "alltoall", span, direct_costing
        if key not in self._cache:
            group = self.group("expert")
            members = group.first if span == "between nodes" else np.flatnonzero(group.node_of == 0)
            ranks = Group.of(np.array(group.ranks)[members].tolist(), group.devices)
            self._cache[key] = concurrent_collective("alltoall", ranks, cluster, direct_costing)
        return self._cache[key]

    def _concurrent(self, op: Op, axis: Axis, cluster: Cluster, cost_of: CostOf = costing) -> ConcurrentCollective:
        # keyed by the cluster's id, since hashing a cluster is slow; cached entries reference it
        key = id(cluster), op, axis, cost_of
        if key not in self._cache:
            self._cache[key] = concurrent_collective(op, self.group(axis), cluster, cost_of)
        return self._cache[key]


def pass_communication(job: Job, microbatches: int) -> PassCommunication:
    """Collectives within the passes of one of `microbatches` equal parts of a worker's samples, recomputation included."""
    samples, collectives = job.samples_per_worker / microbatches, cast(LayerCollectives, job.exchange)
    kinds = {(one.axis, one.op) for layer in job.distinct_layers for one in layer.exchanges}
    place_of = {kind: place for place, kind in enumerate(sorted(kinds, key=lambda kind: _number(*kind)))}
    numbers = [_number(*kind) for kind in place_of]

    def of_layer(layer: Layer) -> Sequence[float]:
        """Seconds, bytes and calls by kind: forward, backward, and forward ones that the backward pass may repeat."""
        values = np.zeros((3, len(numbers), 3))
        repeated = layer.exchanges if job.recompute.kind == "full" else again(layer, job.recompute).exchanges
        passes = [(int(one.backward), one) for one in layer.exchanges]
        if job.recompute.kind != "none":
            passes += [(2, one) for one in repeated if not one.backward]
        for place, one in passes:
            exposed_s = collectives.seconds(one, layer, samples, job)
            values[:, place_of[one.axis, one.op], place] += exposed_s, collectives.message_bytes(one, samples, job), 1
        return cast(Sequence[float], values.ravel())

    values: NDArray[Any] = job.of_layers(of_layer).reshape(3, len(numbers), 3, len(job.layers))
    values[:, :, 1] += job.where_recomputed(values[:, :, 2])
    exposed_s, message_bytes, calls = values[:, :, :2]
    return PassCommunication(np.array(numbers, dtype=np.int16), exposed_s, message_bytes, calls)


def _number(axis: Axis, op: str) -> int:
    """The number of the dimension and the kind of a layer's collective."""
    by_tokens = Dimension.SEQUENCE if op in ("all_gather", "reduce_scatter") else Dimension.TENSOR
    dimension = {"context": Dimension.CONTEXT, "expert": Dimension.EXPERT}.get(axis, by_tokens)
    return number_of(dimension, Collective.of(op))


def _sums_input_gradients(exchange: Exchange) -> bool:
    """Whether the collective sums gradients of the products' inputs over tensor-parallel ranks, which weight gradients do not
    wait for."""
    return exchange.axis == "tensor" and exchange.backward and exchange.op in ("all_reduce", "reduce_scatter")


def concurrent_collective_s(op: Op, size_bytes: float, group: Group, cluster: Cluster) -> float:
    """Seconds of a collective in which all ranks of its nodes take part concurrently, each in a group equivalent to `group`."""
    return concurrent_collective(op, group, cluster).seconds(size_bytes)


def concurrent_collective(op: Op, group: Group, cluster: Cluster, cost_of: CostOf = costing) -> ConcurrentCollective:
    """The `ConcurrentCollective` of these arguments. The latest ones are cached by the identity of the cluster, which they
    reference."""
    key = op, group, id(cluster), cost_of
    if key not in _CACHE:
        _CACHE[key] = ConcurrentCollective(op, group, cluster, cost_of)
        if len(_CACHE) > _CACHE_SIZE:
            _CACHE.popitem(last=False)
    return _CACHE[key]


class ConcurrentCollective:
    """A collective in which all ranks of its nodes take part concurrently, each in a group equivalent to `group`."""

    def __init__(self, op: Op, group: Group, cluster: Cluster, cost_of: CostOf = costing) -> None:
        self._cluster = cluster
        self._cost = functools.cache(cost_of(op, group, cluster))
        cards, devices = cluster.node.cards_used, cluster.node.devices
        demand = devices / group.per_node * min(group.per_node, cards)
        self._oversubscription = max(1.0, demand / cards) if group.nodes > 1 else 1.0

    def seconds(self, size_bytes: float) -> float:
        """Seconds of the collective for `size_bytes` bytes."""
        cost = self._cost(size_bytes)
        return cost.latency_s + self._oversubscription * (cost.seconds - cost.latency_s)


_CACHE_SIZE: Final = 256
_CACHE: Final[OrderedDict[tuple[Op, Group, int, object], ConcurrentCollective]] = OrderedDict()
