"""Collectives among ranks that share layers, and their exposed time within a pass."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import (
    Costing,
    costing,
    direct_costing,
    passed_on_costing,
    processors_taken,
    rendezvous_s,
)
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.common.communication import Collective, Dimension, number_of
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Axis, Exchange, Matmul, Routed
from scaleproof.simulator.model.recompute import again
from scaleproof.simulator.parallelism.mesh import DeviceMesh
from scaleproof.simulator.program.pass_communication import PassCommunication
from scaleproof.simulator.strategy.data_parallel.shared_links import LinkLevel
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.model_parallel.compute_budget import ComputeBudget, ComputePart, LayerPass
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

    def exposed_s(self, layer: Layer, samples: float, job: Job) -> list[tuple[LayerPass, Exchange, float]]:
        """Exposed seconds of each of a layer's collectives, for `samples` samples; those that recomputation repeats come last.

        Collectives that overlap with compute are exposed as far as they take longer than what is left of it, each in the same
        proportion. Those that overlap with the fewest parts come first, and repeated ones after all others, which therefore do
        not depend on recomputation.
        """
        passes = [(LayerPass(one.backward), one) for one in layer.exchanges]
        if job.recompute.kind != "none":
            repeated = layer.exchanges if job.recompute.kind == "full" else again(layer, job.recompute).exchanges
            passes += [(LayerPass.AGAIN, one) for one in repeated if not one.backward]
        exposed_s = np.array([self._collective_s(one, samples, job) for _, one in passes], dtype=object)
        overlaps = {place: overlap for place, one in enumerate(passes) if (overlap := self._overlap(*one, job)) is not None}
        if overlaps:
            budget = ComputeBudget.of(layer, samples, job)
            concurrent: dict[tuple[bool, int, tuple[int, ...]], list[int]] = {}
            for place, overlap in overlaps.items():
                among = budget.among(overlap.overlaps)
                concurrent.setdefault((passes[place][0] is LayerPass.AGAIN, len(among), among), []).append(place)
            for (_, _, among), places in sorted(concurrent.items()):
                least_s = exposed_s[places] * [overlaps[place].least for place in places]
                rest_s = exposed_s[places] - least_s
                exposed_s[places] = least_s + rest_s * budget.hide(rest_s.sum(), among)
        return [(*one, seconds) for one, seconds in zip(passes, exposed_s, strict=True)]

    def by_links_s(self, layer: Layer, samples: float, job: Job) -> NDArray[Any]:
        """Seconds of a layer's collectives, and those of them that are exposed, by the links that limit them and by pass;
        shape (levels, 2, passes). Hidden ones count for the passes that hide them."""
        result = np.full((len(LinkLevel), 2, len(LayerPass)), 0.0, dtype=object)
        for pass_, one, exposed_s in self.exposed_s(layer, samples, job):
            level, hidden_s = LinkLevel.of(self.group(one.axis)), self._collective_s(one, samples, job) - exposed_s
            result[level, :, pass_] += exposed_s
            if one.routed is not None and self.dispatch.overlap:
                forward_s, backward_s, _ = job.layer_passes_s(layer, samples)
                shares = np.array([forward_s, backward_s], dtype=object) / (forward_s + backward_s)
                result[level, 0, : LayerPass.AGAIN] += hidden_s * shares
            else:
                result[level, 0, pass_] += hidden_s
        return result

    def _collective_s(self, exchange: Exchange, samples: float, job: Job) -> float:
        """Seconds of a collective with no compute next to it."""
        size_bytes, routed = self.message_bytes(exchange, samples, job), exchange.routed
        if routed is not None:
            if self.dispatch.deduplicated:
                return self._deduplicated_s(size_bytes / routed.active, routed, job.cluster)
            return self._concurrent("alltoall", "expert", job.cluster).seconds(size_bytes)
        cost_of = passed_on_costing if exchange.passed_on else costing
        collective_s = self._concurrent(cast(Op, exchange.op), exchange.axis, job.cluster, cost_of).seconds(size_bytes)
        if job.framework.rendezvous:
            collective_s += rendezvous_s(self.group(exchange.axis), job.cluster)
        return collective_s

    def _overlap(self, pass_: LayerPass, exchange: Exchange, job: Job) -> _Overlap | None:
        """The compute that a collective of a pass overlaps with; None if the pass waits for all of it."""
        taken = processors_taken(job.cluster)
        if exchange.routed is not None:
            # with the passes of another microbatch over the layer; recomputation is a part of them that not all layers have
            latest = max(pass_, LayerPass.BACKWARD)
            return _Overlap(lambda part: part.pass_ <= latest, taken) if self.dispatch.overlap else None
        if exchange.hidden:
            name = exchange.overlapped
            return _Overlap(_among(pass_, lambda part: name in ("", part.operator and part.operator.name)), taken)
        if self.in_pieces(exchange):
            # the first piece of a gather, or the last of a scatter, has no product to overlap with
            least = 1 / self.group(exchange.axis).size
            return _Overlap(_among(pass_, lambda part: isinstance(part.operator, Matmul)), least)
        if job.framework.overlap_input_gradients and _sums_input_gradients(exchange):
            return _Overlap(_among(pass_, _makes_weight_gradients), taken)
        return None

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
        values = np.zeros((3, len(numbers), len(LayerPass)))
        for pass_, one, exposed_s in collectives.exposed_s(layer, samples, job):
            values[:, place_of[one.axis, one.op], pass_] += exposed_s, collectives.message_bytes(one, samples, job), 1
        return cast(Sequence[float], values.ravel())

    values: NDArray[Any] = job.of_layers(of_layer).reshape(3, len(numbers), len(LayerPass), len(job.layers))
    values[:, :, LayerPass.BACKWARD] += job.where_recomputed(values[:, :, LayerPass.AGAIN])
    exposed_s, message_bytes, calls = values[:, :, : LayerPass.AGAIN]
    return PassCommunication(np.array(numbers, dtype=np.int16), exposed_s, message_bytes, calls)


def _number(axis: Axis, op: str) -> int:
    """The number of the dimension and the kind of a layer's collective."""
    by_tokens = Dimension.SEQUENCE if op in ("all_gather", "reduce_scatter") else Dimension.TENSOR
    dimension = {"context": Dimension.CONTEXT, "expert": Dimension.EXPERT}.get(axis, by_tokens)
    return number_of(dimension, Collective.of(op))


class _Overlap(NamedTuple):
    """Compute that a collective overlaps with. least: share of the collective that is exposed in any case: processors that it
    takes from that compute, or a piece before or after it."""

    overlaps: Callable[[ComputePart], bool]
    least: float


def _among(pass_: LayerPass, overlaps: Callable[[ComputePart], Any]) -> Callable[[ComputePart], bool]:
    """Whether a part is one of a pass that `overlaps` selects, or time of that pass in which no operator computes."""
    return lambda part: part.pass_ is pass_ and (part.operator is None or bool(overlaps(part)))


def _makes_weight_gradients(part: ComputePart) -> bool:
    """Whether a part computes weight gradients of products that read an input that all tensor-parallel ranks have."""
    return part.of_weights and part.operator is not None and part.operator.name in _READ_INPUT


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
