"""Offloading: copies between devices and the memory of their hosts, and the optimizer's step on the hosts.

Gradients are copied to the host as soon as they are summed, next to the rest of the backward pass; the host then updates its
part of the parameters, and copies them back (ZeRO-Offload, arXiv 2101.06840). With a delayed update it does so during the next
step. Where the host has the sharded parameters as well, each is copied to the device before it is gathered, and none after the
update (ZeRO-Infinity, arXiv 2104.07857; FSDP2's CPUOffloadPolicy). Activations of blocks are copied to the host after their
forward pass, and back one block ahead of their backward pass. Each kind has a stream in each direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.communication import Collective, Communication, Dimension
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.program import (
    ACTIVATIONS_IN_STREAM,
    ACTIVATIONS_OUT_STREAM,
    STATES_IN_STREAM,
    STATES_OUT_STREAM,
    PathOf,
    Rows,
)
from scaleproof.simulator.strategy.data_parallel import zero
from scaleproof.simulator.strategy.data_parallel.buckets import SyncUnit
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.pipeline.replica import CompileContext, Replica
from scaleproof.simulator.strategy.pipeline.schedules import Pass

# Blocks whose activations are on a device in addition to those of the block that computes.
_BLOCKS_AHEAD = 1


class HostCopies:
    """Adds copies and updates of the ranks of one pipeline rank. shares: ranks that shard a parameter, by its group."""

    def __init__(self, context: CompileContext, replicas: Sequence[Replica], rank: int, shares: Mapping[str, int]) -> None:
        self.context, self.job, self.replicas, self.rank, self.shares = context, context.job, replicas, rank, shares
        self._sent: list[list[int]] = [[] for _ in replicas]

    def fetch_parameters(self, gathers: Mapping[int, Sequence[int]]) -> None:
        """Adds copies of a rank's part of the parameters to its device before each pass that needs them. gathers: rows of the
        gathers before a pass, by its task; those that pass itself if there are none."""
        tasks, after = np.array(list(zero.layer_needs(self.context, self.rank)), dtype=np.int64).reshape(-1, 2).T
        units = [self.context.unit_of[begin] for begin in self.context.schedule.begin[tasks].tolist()]
        trained, gathered = (np.array([self._part(unit, own) for unit in units]) for own in (True, False))
        # frozen parameters have no master copies
        sizes_bytes = trained * self.job.shard_bytes + (gathered - trained) * self.job.gathered_bytes
        for replica in self.replicas:
            path = host_path(replica, self.rank, to_host=False, from_drives=self.job.uses_drives)
            rows = copies(self.context, replica, self.rank, sizes_bytes, path, replica.rows[after], STATES_IN_STREAM, units)
            for task, row in zip(tasks.tolist(), rows.tolist(), strict=True):
                self.context.builder.follow(gathers.get(task) or [int(replica.rows[task])], row)

    def send_gradients(self, summed: Sequence[tuple[int, SyncUnit, Sequence[int]]]) -> None:
        """Adds copies of gradients to the host. summed: tasks that complete gradients, their units, and rows of their sums."""
        units = [unit for _, unit, _ in summed]
        sizes_bytes = np.array([self._part(unit, True) * self.job.accumulated_bytes for unit in units])
        for sent, replica in zip(self._sent, self.replicas, strict=True):
            after = np.array([max(rows, default=int(replica.rows[task])) for task, _, rows in summed])
            path = host_path(replica, self.rank, to_host=True)
            sent += copies(self.context, replica, self.rank, sizes_bytes, path, after, STATES_OUT_STREAM, units).tolist()

    def update(self, updated: float, after: Rows, label: int) -> None:
        """Adds the optimizer's step on the host over the parameters that each rank updates, and their copy to the device, for
        which the main stream waits. after: rows that it follows in addition to gradients."""
        builder, job = self.context.builder, self.job
        moved_bytes, stored_bytes = job.host_update_bytes
        for sent, replica in zip(self._sent, self.replicas, strict=True):
            rank = replica.ranks[self.rank]
            node, each = replica.places[self.rank][0], replica.on_node
            path = partial(ResourceMap.host_update, node=node, each=each, moved_bytes=moved_bytes, stored_bytes=stored_bytes)
            begins = [*sent, *after.tolist()]
            row = last = builder.background(rank, updated, path, Phase.OPTIMIZER, [] if job.delays_update else begins)
            builder.wait(rank, Phase.SEND, sent, label)
            builder.wait(rank, Phase.OPTIMIZER, [row], label)
            if "parameters" not in job.offload:
                back, size_bytes = host_path(replica, self.rank, to_host=False), np.array([updated * job.shard_bytes])
                follows = np.array([[row], [replica.last_rows[self.rank]]])
                (last,) = copies(self.context, replica, self.rank, size_bytes, back, follows, STATES_IN_STREAM).tolist()
                builder.wait(rank, Phase.RECEIVE, [last], label)
            if job.delays_update:
                builder.carry(row, [last, *begins])

    def _part(self, unit: SyncUnit, trained: bool) -> float:
        """A rank's part of the gathered parameters of a unit, or of the trained ones."""
        counts = self.context.rank_layers.by_group(unit.layers, trained=trained)
        return sum(count / self.shares[group] for group, count in counts.items())


def add_activation_copies(context: CompileContext, replicas: Sequence[Replica]) -> None:
    """Adds copies of the activations of blocks to hosts after forward passes, and back before backward passes."""
    for replica in replicas:
        for rank in range(context.plan.stages):
            _add_activation_copies(context, replica, rank)


def _add_activation_copies(context: CompileContext, replica: Replica, rank: int) -> None:
    """The copies of one rank, which passes a block only once those of the block two before have been sent."""
    schedule, job, builder = context.schedule, context.job, context.builder
    samples = replica.samples / context.plan.microbatches
    own = np.flatnonzero((schedule.rank == rank) & (schedule.kind >= 0))
    before = np.concatenate([[0.0], job.kept_bytes(samples).cumsum()])
    kept = before[schedule.end[own]] - before[schedule.begin[own]]
    ahead = np.flatnonzero((schedule.kind[own] == Pass.FORWARD) & (kept > 0))
    back = np.flatnonzero((schedule.kind[own] == Pass.BACKWARD) & (kept > 0))
    out, into = (host_path(replica, rank, to_host) for to_host in (True, False))
    sent = copies(context, replica, rank, kept[ahead], out, replica.rows[own[ahead]], ACTIVATIONS_OUT_STREAM)
    late = ahead + 1 + _BLOCKS_AHEAD
    inside = late < len(own)
    builder.follow(replica.rows[own[late[inside]]], sent[inside])
    keys = (schedule.microbatch * len(job.layers) + schedule.begin)[own]
    row_of = dict(zip(keys[ahead].tolist(), sent.tolist(), strict=True))
    begins = np.maximum(back - 1 - _BLOCKS_AHEAD, 0)
    after = np.array([[row_of[key] for key in keys[back].tolist()], replica.rows[own[begins]]]).reshape(2, -1)
    fetched = copies(context, replica, rank, kept[back], into, after, ACTIVATIONS_IN_STREAM)
    builder.follow(replica.rows[own[back]], fetched)


def host_path(replica: Replica, rank: int, to_host: bool, from_drives: bool = False) -> PathOf:
    """The path of a copy of a rank."""
    return partial(
        ResourceMap.host_copy, place=replica.places[rank], each=replica.on_node, to_host=to_host, from_drives=from_drives
    )


def copies(
    context: CompileContext, replica: Replica, rank: int, sizes_bytes: NDArray[np.float64], path: PathOf, after: Rows,
    stream: int, units: Sequence[SyncUnit] = (),
) -> Rows:  # fmt: skip
    """Adds copies of a rank, one after another on a stream; returns their rows. after: rows, one or several for each copy."""
    ranks = np.full(len(sizes_bytes), replica.ranks[rank])
    dimension = Dimension.TO_HOST if stream in (STATES_OUT_STREAM, ACTIVATIONS_OUT_STREAM) else Dimension.FROM_HOST
    labels = Communication.of(dimension, Collective.SEND, sizes_bytes)
    if units:
        first, last = np.array([(unit.layers.start, unit.layers.stop - 1) for unit in units]).T
        labels = labels._replace(first_layer=first, last_layer=last)
    stage = rank if context.plan.stages > 1 else -1
    rows: Rows = context.builder.transfer(
        ranks, ranks, sizes_bytes, path, Phase.SEND, list(np.atleast_2d(after)), stage, stream=stream, labels=labels
    )
    return rows
