"""What ranks that share layers exchange within a pass, and for how long a pass is held up by it."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, cast

import numpy as np

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.algorithms import Group, Op
from scaleproof.simulator.cluster.collectives.cost import Costing, costing, direct_costing, processors_taken, rendezvous_s
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Axis, Exchange, Matmul, Routed
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.mesh import DeviceMesh
from scaleproof.simulator.strategy.model_parallel.expert_dispatch import PLAIN, Dispatch

# Products of a block that read what tensor-parallel ranks have in common.
_READ_INPUT: Final = frozenset({"qkv", "up"})


@dataclass(frozen=True)
class Exchanges:
    """expert, expert_tensor: as in `Plan`. overlap_tensor: whether collectives of tensor-parallel ranks are cut into
    pieces that move while the products before or after them compute (arXiv 2305.06942). dispatch: how tokens get to experts."""

    grid: DeviceMesh
    expert: int = 1
    overlap_tensor: bool = False
    expert_tensor: int | None = None
    dispatch: Dispatch = PLAIN
    _known: dict[tuple[int, str, str], ConcurrentCollective] = field(default_factory=dict, compare=False, repr=False)

    def group(self, axis: Axis) -> Group:
        """The ranks that exchange along an axis, of the groups that set the pace."""
        if axis == "expert":
            return self.grid.expert_group(self.expert, self.expert_tensor)
        if axis == "expert_tensor":
            return self.grid.along("tensor", self.expert_tensor or self.grid.tensor)
        return self.grid.along(axis, self.grid.tensor if axis == "tensor" else self.grid.context)

    def seconds(self, exchange: Exchange, layer: Layer, samples: float, job: Job) -> float:
        """What is hidden takes processors from what it runs beside, and holds the pass up where it takes longer than its part
        of that, which all have alike that are hidden there."""
        if exchange.routed is not None:
            return self._routed_s(exchange, exchange.routed, layer, samples, job)
        moved_s = self._crowd(cast(Op, exchange.op), exchange.axis, job.cluster).seconds(
            exchange.elements * samples * job.element_bytes
        )
        if job.framework.rendezvous:
            moved_s += rendezvous_s(self.group(exchange.axis), job.cluster)
        if exchange.hidden:
            beside = [o for o in layer.operators if exchange.beside in ("", o.name)]
            beside_s = job.operators_s(layer, beside, samples)[exchange.backward]
            place = exchange.backward, exchange.beside
            hidden = sum(one.hidden and (one.backward, one.beside) == place for one in layer.exchanges)
            return max(moved_s * processors_taken(job.cluster), moved_s - beside_s / hidden)
        if self.overlap_tensor and _in_pieces(exchange):
            # the first piece to come, or the last to go, has nothing to move beside
            products = [o for o in layer.operators if isinstance(o, Matmul)]
            products_s = job.operators_s(layer, products, samples)[exchange.backward]
            alike = sum(_in_pieces(one) and one.backward == exchange.backward for one in layer.exchanges)
            return max(moved_s / self.group(exchange.axis).size, moved_s - products_s / alike)
        if job.framework.overlap_input_gradients and _sums_input_gradients(exchange):
            return max(moved_s * processors_taken(job.cluster), moved_s - self._weights_s(exchange, layer, samples, job))
        return moved_s

    def _weights_s(self, exchange: Exchange, layer: Layer, samples: float, job: Job) -> float:
        """Seconds of the weight-gradient products that run next to one of a layer's sums of input gradients: half of the
        backward pass over the products that read the input."""
        products = [one for one in layer.operators if one.name in _READ_INPUT]
        alike = sum(_sums_input_gradients(one) and one.axis == exchange.axis for one in layer.exchanges)
        return job.operators_s(layer, products, samples)[True] / 2 / alike if products else 0.0

    def _routed_s(self, exchange: Exchange, routed: Routed, layer: Layer, samples: float, job: Job) -> float:
        """What an all-to-all of tokens holds the pass up for. Next to another microbatch's compute each takes processors from
        its part of that, as hidden exchanges do: both passes over the layer, one of either microbatch, run at the same time."""
        size_bytes = exchange.elements * samples * self.dispatch.element_bytes(routed, job.element_bytes)
        if self.dispatch.deduplicated:
            moved_s = self._deduplicated_s(size_bytes / routed.active, routed, job.cluster)
        else:
            moved_s = self._crowd("alltoall", "expert", job.cluster).seconds(size_bytes)
        if not self.dispatch.overlap:
            return moved_s
        compute_s = sum(job.operators_s(layer, layer.operators, samples))
        alike = sum(one.routed is not None for one in layer.exchanges)
        return max(moved_s * processors_taken(job.cluster), moved_s - compute_s / alike)

    def _deduplicated_s(self, token_bytes: float, routed: Routed, cluster: Cluster) -> float:
        """Seconds to send a rank's tokens once to each of their nodes while those that have come are forwarded inside the node;
        both are fully overlapped (arXiv 2412.19437, section 3.2.2). token_bytes: of one copy of all tokens."""
        nodes, ranks = self.dispatch.copies(routed, self.group("expert"))
        between, inside = (self._direct(place, cluster) for place in ("between nodes", "inside a node"))
        return max(between.seconds(token_bytes * nodes), inside.seconds(token_bytes * ranks))

    def _direct(self, place: Literal["between nodes", "inside a node"], cluster: Cluster) -> ConcurrentCollective:
        """All-to-alls of the expert ranks on the same rail of all nodes, or on the same node, by kernels of their own."""
        key = id(cluster), "alltoall", place
        if key not in self._known:
            group = self.group("expert")
            chosen = group.first if place == "between nodes" else np.flatnonzero(group.node_of == 0)
            ranks = Group.of(np.array(group.ranks)[chosen].tolist(), group.devices)
            self._known[key] = crowd_of("alltoall", ranks, cluster, direct_costing)
        return self._known[key]

    def _crowd(self, op: Op, axis: Axis, cluster: Cluster) -> ConcurrentCollective:
        # by the cluster's id, since hashing all that is in one takes longer; its crowd keeps it
        key = id(cluster), op, axis
        if key not in self._known:
            self._known[key] = crowd_of(op, self.group(axis), cluster)
        return self._known[key]


def _sums_input_gradients(exchange: Exchange) -> bool:
    """Whether tensor-parallel ranks sum gradients of what their products read, which weight gradients do not wait for."""
    return exchange.axis == "tensor" and exchange.backward and exchange.op in ("all_reduce", "reduce_scatter")


def _in_pieces(exchange: Exchange) -> bool:
    """Whether it may be cut into pieces beside the product before or after it."""
    return exchange.axis == "tensor" and not exchange.hidden and exchange.op in ("all_gather", "reduce_scatter")


def crowded_s(op: Op, size_bytes: float, group: Group, cluster: Cluster) -> float:
    """Seconds of a collective that all ranks of its nodes take part in, each in a group of its own like `group`."""
    return crowd_of(op, group, cluster).seconds(size_bytes)


def crowd_of(
    op: Op, group: Group, cluster: Cluster, cost_of: Callable[[Op, Group, Cluster], Costing] = costing
) -> ConcurrentCollective:
    """The `ConcurrentCollective` of these arguments. Those used last are cached by the identity of the cluster, which each
    references."""
    key = op, group, id(cluster), cost_of
    if key not in _CROWDS:
        _CROWDS[key] = ConcurrentCollective(op, group, cluster, cost_of)
        if len(_CROWDS) > _MOST_CROWDS:
            _CROWDS.popitem(last=False)
    return _CROWDS[key]


class ConcurrentCollective:
    """Such a collective, of any size."""

    def __init__(
        self, op: Op, group: Group, cluster: Cluster, cost_of: Callable[[Op, Group, Cluster], Costing] = costing
    ) -> None:
        self._cluster = cluster
        self._cost = functools.cache(cost_of(op, group, cluster))
        cards, devices = cluster.node.cards_used, cluster.node.devices
        wanted = devices / group.per_node * min(group.per_node, cards)
        self._crowding = max(1.0, wanted / cards) if group.nodes > 1 else 1.0

    def seconds(self, size_bytes: float) -> float:
        cost = self._cost(size_bytes)
        return cost.latency_s + self._crowding * (cost.seconds - cost.latency_s)


_MOST_CROWDS: Final = 256
_CROWDS: Final[OrderedDict[tuple[Op, Group, int, object], ConcurrentCollective]] = OrderedDict()
