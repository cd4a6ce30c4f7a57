"""Partitions of the model into stages of equal time, memory or weights."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.device.device import optimizer_bytes
from scaleproof.simulator.model.layers import Layer, block_range, cut_into_stages
from scaleproof.simulator.model.operators import Matmul
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.pipeline.schedules import PassTimes, peak_activations

_Places = NDArray[np.int64]


def cut_in_order(layers: Sequence[Layer], stages: int) -> list[range]:
    """Contiguous stages, each of which takes layers until the stages so far have their share of the weights in products, and
    leaves a block for each later stage (huggingface/nanotron, src/nanotron/models/base.py, build_model)."""
    first, last = block_range(layers)
    weights = np.cumsum([_product_weights(layer) for layer in layers])
    begins = [0]
    for stage in range(1, stages):
        reached = int(np.searchsorted(weights, weights[-1] * stage / stages * (1 - 1e-9))) + 1
        begins.append(min(max(reached, begins[-1] + 1, first + stage), last - (stages - stage)))
    return [range(a, b) for a, b in itertools.pairwise([*begins, len(layers)])]


def _product_weights(layer: Layer) -> float:
    """Elements of the weights that a layer's matrix products read; embeddings that are looked up have none."""
    return float(sum(x.columns * x.inner * x.count for x in layer.operators if isinstance(x, Matmul)))


def layer_seconds(job: Job, plan: Plan) -> list[NDArray[np.float64]]:
    """Seconds of both passes over each layer, by stage, on all of which they are the same; all blocks are recomputed if
    recomputation depends on stages."""
    job = replace(job, recomputed=None)
    costs = job.costs(plan.microbatches)
    total = costs.forward_s + costs.backward_s + costs.forward_exchange_s + costs.backward_exchange_s
    return [total] * (plan.stages * plan.chunks)


def layer_bytes(job: Job, plan: Plan, times: PassTimes) -> list[NDArray[np.float64]]:
    """Bytes of each layer, by stage: its parameters and states, and its activations for the microbatches in flight there.
    times: of the passes that the schedule orders."""
    samples = job.samples_per_worker / plan.microbatches
    states = np.array(
        [
            layer.parameter_bytes(job.parameter_bytes)
            + layer.trained_parameters * job.parameter_bytes
            + optimizer_bytes(layer.trained_parameters, job.optimizer, job.precision, job.master, job.state_bits, job.ema)
            for layer in job.layers
        ]
    )
    kept_elements = np.array(
        [sum(kept.elements * (kept.element_bytes or job.element_bytes) for kept in layer.kept) for layer in job.layers]
    )
    activations = peak_activations(plan.schedule, plan.stages, plan.microbatches, plan.chunks, times) / plan.chunks
    rank_of = {stage: rank for rank, chunks in enumerate(plan.stage_of) for stage in chunks}
    return [states + samples * float(activations[rank_of[stage]]) * kept_elements for stage in range(plan.stages * plan.chunks)]


def cut_evenly(layers: Sequence[Layer], weights: Sequence[NDArray[np.float64]]) -> list[range]:
    """Contiguous stages with the smallest maximum weight, found by bisection of a bound; within the bound, stages have nearly
    equal numbers of layers. weights: of all layers, by stage."""
    (first, last), end, stages = block_range(layers), len(layers), len(weights)
    sums = [np.concatenate([[0.0], np.cumsum(stage_weights)]) for stage_weights in weights]

    def ends(stage: int, begins: _Places, bound: float) -> tuple[_Places, _Places]:
        """First and last position at which a stage may end, for each position where it may begin: it has a block, weighs at
        most `bound`, and leaves a block for each later stage."""
        last_place = np.searchsorted(sums[stage], sums[stage][begins] + bound, side="right") - 1
        if stage == stages - 1:
            return np.full_like(begins, end), last_place
        return np.maximum(begins, first) + 1, np.minimum(last_place, last - (stages - 1 - stage))

    def stage_begins(bound: float) -> list[int] | None:
        """Positions at which stages of weight at most `bound` begin; None if they cannot cover all layers."""
        reachable = [np.array([0])]
        for stage in range(stages):
            first_place, last_place = ends(stage, reachable[-1], bound)
            marks = np.zeros(end + 2, dtype=np.int64)
            np.add.at(marks, first_place, first_place <= last_place)
            np.subtract.at(marks, last_place + 1, first_place <= last_place)
            reachable.append(np.flatnonzero(np.cumsum(marks) > 0))
        if not len(reachable[-1]):
            return None
        begins = [end]
        for stage in range(stages - 1, 0, -1):
            first_place, last_place = ends(stage, reachable[stage], bound)
            fitting = reachable[stage][(first_place <= begins[0]) & (begins[0] <= last_place)]
            begins.insert(0, int(fitting[np.abs(fitting - begins[0] * stage / (stage + 1)).argmin()]))
        return [0, *begins[:-1]]

    low, high = 0.0, max(float(total[-1]) for total in sums)
    best = [stage.start for stage in cut_into_stages(layers, stages)]
    for _ in range(60):
        middle = (low + high) / 2
        begins = stage_begins(middle)
        if begins is None:
            low = middle
        else:
            best, high = begins, middle
    return [range(a, b) for a, b in itertools.pairwise([*best, end])]
