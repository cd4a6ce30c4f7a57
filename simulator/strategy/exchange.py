"""What ranks that share layers exchange within a pass, and for how long a pass is held up by it."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import cast

from simulator.cluster import Cluster
from simulator.cluster.algorithms import Group, Op
from simulator.cluster.cost import costing, processors_taken
from simulator.model.layers import Layer
from simulator.model.operators import Axis, Exchange, Matmul
from simulator.strategy.costs import Job
from simulator.strategy.grid import Grid


@dataclass(frozen=True)
class Exchanges:
    """expert, expert_tensor: as in `Plan`. overlap_tensor: whether collectives of tensor-parallel ranks are cut into
    pieces that move while the products before or after them compute (arXiv 2305.06942)."""

    grid: Grid
    expert: int = 1
    overlap_tensor: bool = False
    expert_tensor: int | None = None
    _known: dict[tuple[int, Op, str], _Crowd] = field(default_factory=dict, compare=False, repr=False)

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
        moved_s = self._crowd(cast(Op, exchange.op), exchange.axis, job.cluster).seconds(
            exchange.elements * samples * job.element_bytes
        )
        if exchange.hidden:
            beside = [o for o in layer.operators if exchange.beside in ("", o.name)]
            beside_s = job.cluster.device.operators_s(layer, beside, samples, job.precision)[exchange.backward]
            place = exchange.backward, exchange.beside
            hidden = sum(one.hidden and (one.backward, one.beside) == place for one in layer.exchanges)
            return max(moved_s * processors_taken(job.cluster), moved_s - beside_s / hidden)
        if self.overlap_tensor and _in_pieces(exchange):
            # the first piece to come, or the last to go, has nothing to move beside
            products = [o for o in layer.operators if isinstance(o, Matmul)]
            products_s = job.cluster.device.operators_s(layer, products, samples, job.precision)[exchange.backward]
            alike = sum(_in_pieces(one) and one.backward == exchange.backward for one in layer.exchanges)
            return max(moved_s / self.group(exchange.axis).size, moved_s - products_s / alike)
        return moved_s

    def _crowd(self, op: Op, axis: Axis, cluster: Cluster) -> _Crowd:
        # by the cluster's id, since hashing all that is in one takes longer; its crowd keeps it
        key = id(cluster), op, axis
        if key not in self._known:
            self._known[key] = _Crowd(op, self.group(axis), cluster)
        return self._known[key]


def _in_pieces(exchange: Exchange) -> bool:
    """Whether it may be cut into pieces beside the product before or after it."""
    return exchange.axis == "tensor" and not exchange.hidden and exchange.op in ("all_gather", "reduce_scatter")


def crowded_s(op: Op, size_bytes: float, group: Group, cluster: Cluster) -> float:
    """Seconds of a collective that all ranks of its nodes take part in, each in a group of its own like `group`."""
    return _Crowd(op, group, cluster).seconds(size_bytes)


class _Crowd:
    """Such a collective, of any size."""

    def __init__(self, op: Op, group: Group, cluster: Cluster) -> None:
        self._cluster = cluster
        self._cost = functools.cache(costing(op, group, cluster))
        cards, devices = cluster.node.cards_used, cluster.node.devices
        wanted = devices / group.per_node * min(group.per_node, cards)
        self._crowding = max(1.0, wanted / cards) if group.nodes > 1 else 1.0

    def seconds(self, size_bytes: float) -> float:
        cost = self._cost(size_bytes)
        return cost.latency_s + self._crowding * (cost.seconds - cost.latency_s)
