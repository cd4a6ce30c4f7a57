"""Collectives among ranks that share layers, and their exposed time within a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.collectives.cost import (
    concurrent_collective,
    costing,
    modelled_costing,
    rendezvous_s,
)
from scaleproof.simulator.cluster.collectives.groups import LinkLevel, Op
from scaleproof.simulator.common.communication import Collective, Dimension, number_of
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Axis, Exchange
from scaleproof.simulator.model.recompute import again
from scaleproof.simulator.parallelism.mesh import DeviceMesh
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.program.costs import PassCommunication
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.model_parallel import context, expert, tensor
from scaleproof.simulator.strategy.model_parallel.compute_budget import ComputeBudget, LayerPass, Overlap

_DIMENSIONS: Final[dict[Axis, Dimension]] = {
    "context": Dimension.CONTEXT, "expert": Dimension.EXPERT, "tables": Dimension.TABLES, "features": Dimension.FEATURES,
}  # fmt: skip


@dataclass(frozen=True)
class LayerCollectives:
    """Collectives among the ranks of a plan that share layers. mesh: of the plan."""

    plan: Plan
    mesh: DeviceMesh

    def exposed_s(self, layer: Layer, samples: float, job: Job) -> list[tuple[LayerPass, Exchange, float]]:
        """Exposed seconds of each of a layer's collectives, for `samples` samples; those that recomputation repeats come last.

        Collectives that overlap with compute are exposed as far as they take longer than what is left of it, each in the same
        proportion. Those that overlap with the fewest parts come first, and repeated ones after all others, which therefore do
        not depend on recomputation.
        """
        passes = [(LayerPass(exchange.backward), exchange) for exchange in layer.exchanges]
        if job.recompute.kind != "none":
            repeated = layer.exchanges if job.recompute.kind == "full" else again(layer, job.recompute).exchanges
            passes += [(LayerPass.AGAIN, exchange) for exchange in repeated if not exchange.backward]
        exposed_s = np.array([self._collective_s(exchange, samples, job) for _, exchange in passes], dtype=np.float64)
        overlaps = {
            place: overlap
            for place, (pass_, exchange) in enumerate(passes)
            if (overlap := self._overlap(pass_, exchange, layer, job)) is not None
        }
        if overlaps:
            budget = ComputeBudget.of_layer(layer, samples, job)
            concurrent: dict[tuple[bool, int, tuple[int, ...]], list[int]] = {}
            for place, overlap in overlaps.items():
                among = budget.among(overlap.overlaps)
                concurrent.setdefault((passes[place][0] is LayerPass.AGAIN, len(among), among), []).append(place)
            for (_, _, among), places in sorted(concurrent.items()):
                least_s = exposed_s[places] * [overlaps[place].least for place in places]
                rest_s, paired = exposed_s[places] - least_s, overlaps[places[0]].paired
                # only what passes with such compute exchange is hidden, by that compute
                exposed_s[places] = least_s + rest_s * (budget.hide(rest_s.sum() / paired, among) if paired else 1.0)
        return [(*exchange, seconds) for exchange, seconds in zip(passes, exposed_s.tolist(), strict=True)]

    def by_links_s(self, layer: Layer, samples: float, job: Job) -> NDArray[np.float64]:
        """Seconds of a layer's collectives, and those of them that are exposed, by the links that limit them and by pass;
        shape (levels, 2, passes). Hidden ones count for the passes that hide them."""
        result = np.zeros((len(LinkLevel), 2, len(LayerPass)))
        for pass_, exchange, exposed_s in self.exposed_s(layer, samples, job):
            level, hidden_s = (
                LinkLevel.of(self.mesh.passing(exchange.axis)),
                self._collective_s(exchange, samples, job) - exposed_s,
            )
            result[level, :, pass_] += exposed_s
            if exchange.routed is not None and self.plan.overlap_experts:
                forward_s, backward_s, _ = job.layer_passes_s(layer, samples)
                shares = np.array([forward_s, backward_s]) / (forward_s + backward_s)
                result[level, 0, : LayerPass.AGAIN] += hidden_s * shares
            else:
                result[level, 0, pass_] += hidden_s
        return result

    def _collective_s(self, exchange: Exchange, samples: float, job: Job) -> float:
        """Seconds of a collective with no compute next to it."""
        size_bytes, routed = self.message_bytes(exchange, samples, job), exchange.routed
        if routed is not None:
            return expert.all_to_all_s(self.plan, routed, size_bytes, self.mesh.passing("expert"), job.cluster)
        group, cost_of = self.mesh.passing(exchange.axis), context.cost_of(exchange) if exchange.axis == "context" else costing
        op, both_ways_bytes = cast(Op, exchange.op), size_bytes * (1 - exchange.one_way / exchange.elements)
        collective_s = concurrent_collective(op, group, job.cluster, cost_of)(both_ways_bytes)
        if exchange.one_way:
            # measured times are of equal parts in both directions, which slow each other; links move the rest by themselves
            by_links = concurrent_collective(op, group, job.cluster, modelled_costing)
            collective_s += by_links(size_bytes) - by_links(both_ways_bytes)
        return collective_s + (rendezvous_s(group, job.cluster) if job.framework.rendezvous else 0.0)

    def _overlap(self, pass_: LayerPass, exchange: Exchange, layer: Layer, job: Job) -> Overlap | None:
        """The compute that a collective of a pass over a layer overlaps with; None if the pass waits for all of it."""
        if exchange.axis == "expert":
            return expert.overlap(pass_, exchange, layer, self.plan, job)
        if exchange.axis == "context":
            return context.overlap(pass_, exchange, job)
        pieces = self.mesh.passing(exchange.axis).size if self.in_pieces(exchange) else 1
        return tensor.overlap(pass_, exchange, pieces, job)

    def in_pieces(self, exchange: Exchange) -> bool:
        """Whether a collective is divided into pieces that overlap with the product before or after it."""
        return self.plan.overlap_tensor and tensor.is_divisible(exchange)

    def message_bytes(self, exchange: Exchange, samples: float, job: Job) -> float:
        """Bytes of a collective's whole buffer."""
        routed, element_bytes = exchange.routed, exchange.element_bytes or job.element_bytes
        if routed is not None:
            element_bytes = expert.element_bytes(self.plan, routed, element_bytes)
        elif exchange.axis == "context" and exchange.hidden and exchange.op == "reduce_scatter":
            element_bytes = job.framework.ring.key_gradient_bytes or element_bytes
        return exchange.elements * samples * element_bytes


def pass_communication(job: Job, microbatches: int) -> PassCommunication:
    """Collectives within the passes of one of `microbatches` equal parts of a worker's samples, recomputation included."""
    samples, collectives = job.samples_per_worker / microbatches, cast(LayerCollectives, job.exchange)
    kinds = {(exchange.axis, exchange.op) for layer in job.distinct_layers for exchange in layer.exchanges}
    place_of = {kind: place for place, kind in enumerate(sorted(kinds, key=lambda kind: _number(*kind)))}
    numbers = [_number(*kind) for kind in place_of]

    def of_layer(layer: Layer) -> Sequence[float]:
        """Seconds, bytes and calls by kind: forward, backward, and forward ones that the backward pass may repeat."""
        values = np.zeros((3, len(numbers), len(LayerPass)))
        for pass_, exchange, exposed_s in collectives.exposed_s(layer, samples, job):
            values[:, place_of[exchange.axis, exchange.op], pass_] += (
                exposed_s,
                collectives.message_bytes(exchange, samples, job),
                1,
            )
        return cast(Sequence[float], values.ravel())

    values: NDArray[Any] = job.of_layers(of_layer).reshape(3, len(numbers), len(LayerPass), len(job.layers))
    values[:, :, LayerPass.BACKWARD] += job.where_recomputed(values[:, :, LayerPass.AGAIN])
    exposed_s, message_bytes, calls = values[:, :, : LayerPass.AGAIN]
    return PassCommunication(np.array(numbers, dtype=np.int16), exposed_s, message_bytes, calls)


def _number(axis: Axis, op: str) -> int:
    """The number of the dimension and the kind of a layer's collective."""
    by_tokens = Dimension.SEQUENCE if op in ("all_gather", "reduce_scatter") else Dimension.TENSOR
    return number_of(_DIMENSIONS.get(axis, by_tokens), Collective.of(op))
