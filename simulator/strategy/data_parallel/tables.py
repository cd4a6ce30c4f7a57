"""Embedding tables in the memory of hosts, with the most frequent rows on devices (TorchRec's UVM caching, doi
10.1145/3523227.3547387).

Before a forward pass looks rows up, those that the device lacks are copied to it with their optimizer states; after the
backward pass has updated them, as many are copied back to make room. Tables in devices' memory need no tasks of their own:
their lookups and updates are part of the passes over the model's first layer, and all-to-alls are its collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.model.layers import ModelSpec
from scaleproof.simulator.model.recommender.parts import Recommender, lookups_of
from scaleproof.simulator.model.recommender.placement import imbalance
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.program import STATES_IN_STREAM, STATES_OUT_STREAM
from scaleproof.simulator.strategy.data_parallel.offloading import copies, host_path
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.pipeline.replica import CompileContext, Replica
from scaleproof.simulator.strategy.pipeline.schedules import Pass

# The heaviest load of a worker over the mean below which loads count as equal.
_EVEN: Final = 1.005


def lookup_words(model: ModelSpec, plan: Plan, job: Job) -> str:
    """Words for the time of lookups, and for the busiest worker of a plan of tables; empty without tables."""
    layer = next((layer for layer in job.layers if lookups_of([layer])), None)
    if layer is None or not isinstance(model, Recommender):
        return ""
    samples = job.samples_per_worker / plan.microbatches
    forward_s, backward_s = job.operators_s(layer, lookups_of([layer]), samples)
    text = f"lookups take {format_time_s(plan.microbatches * forward_s)}, their gradients and updates "
    text += format_time_s(plan.microbatches * backward_s)
    if plan.tables is None or not plan.exchanges_rows:
        return text
    heaviest, bound = imbalance(model.tables, plan.tables, plan.workers)
    if heaviest < _EVEN:
        return f"{text}; all workers have the same load"
    return f"{text}; the busiest worker has {heaviest:.3g} times the mean load, no plan of these parts less than {bound:.3g}"


def add_row_copies(context: CompileContext, replicas: Sequence[Replica]) -> None:
    """Adds copies of rows before the forward passes over the first layer, and back after its backward passes."""
    schedule, builder = context.schedule, context.builder
    looks_up = schedule.begin == 0
    ahead, back = (np.flatnonzero(looks_up & (schedule.kind == kind)) for kind in (Pass.FORWARD, Pass.BACKWARD))
    for replica in replicas:
        samples = replica.samples / context.plan.microbatches
        size_bytes = sum(lookup.missed_bytes(samples) for lookup in lookups_of(context.rank_layers.layers))
        into, out = (host_path(replica, 0, to_host) for to_host in (False, True))
        sizes_bytes = np.full(len(ahead), size_bytes)
        fetched = copies(context, replica, 0, sizes_bytes, into, replica.rows[ahead - 1], STATES_IN_STREAM)
        builder.follow(replica.rows[ahead], fetched)
        sent = copies(context, replica, 0, sizes_bytes, out, replica.rows[back], STATES_OUT_STREAM)
        builder.wait(replica.ranks[0], Phase.SEND, sent.tolist())
