"""Seconds of gathers and sums that ranks run layer by layer next to their passes. Arrays have configurations last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers, taken

Times = NDArray[np.float64]


class LayerGatherTimes(NamedTuple):
    """Seconds of a rank's gathers before a pass over each stage and of its sums after it, shape (distinct stages,
    configurations).

    again_s: gathers before a backward pass. opening_s: the first gather of gathers_s; last_s: the last sum of sums_s. layers:
    number of layers of each stage, shape (distinct stages, 1).
    """

    gathers_s: Times
    again_s: Times
    opening_s: Times
    sums_s: Times
    last_s: Times
    layers: Numbers

    @classmethod
    def of(cls, seconds: Iterable[Times], layers: Numbers) -> LayerGatherTimes:
        """seconds: all other fields, in their order."""
        gathers_s, again_s, opening_s, sums_s, last_s = seconds
        return cls(gathers_s, again_s, opening_s, sums_s, last_s, layers)

    def take(self, at: Numbers) -> LayerGatherTimes:
        """Times of some configurations."""
        return LayerGatherTimes.of((taken(each, at, axis=1) for each in self[:5]), self.layers)


def one_rank_s(works_s: Times, collectives_s: Sequence[Times], microbatches: Numbers) -> Times:
    """Seconds of a step of a rank that is alone in its pipeline. works_s: forward and backward passes; collectives_s: gathers
    before each of both, and sums after the backward pass; all of shape (layers, configurations)."""
    forward_s, backward_s = works_s
    gathers_s, again_s, sums_s = collectives_s
    none_s = np.zeros_like(sums_s)
    layers = [*zip(forward_s, gathers_s, none_s, strict=True), *zip(backward_s[::-1], again_s[::-1], sums_s[::-1], strict=True)]
    end_s, before_s, moved_s, last_s, whole_s = np.zeros((5, len(microbatches)))
    for _ in range(2):
        one_s = whole_s
        for work_s, gather_s, sum_s in layers:
            gathered_s = np.maximum(moved_s, before_s) + gather_s
            # gathers ahead of time precede the sum of the layer before
            moved_s = np.where(last_s > 0, np.maximum(gathered_s, end_s) + last_s, gathered_s)
            end_s, before_s, last_s = np.maximum(end_s, gathered_s) + work_s, end_s, sum_s
        whole_s = np.maximum(end_s, moved_s) + last_s
    result: Times = one_s + (microbatches - 1) * (whole_s - one_s)
    return result


def first_wait_s(opening_s: Times, gathers_s: Times, passed_s: Times, layers: int) -> Times:
    """Seconds by which a step's first pass over the first stage is longer for the gathers before it: the gather of its first
    layer, or of all layers if the passes over those before the last do not hide it. Later stages gather while they wait for
    it."""
    return np.maximum(opening_s, gathers_s - passed_s * (1 - 1 / layers))


def gather_tables(gathers: LayerGatherTimes, work_s: Times, block: int) -> Times:
    """Seconds that the recurrence over passes needs of each pass, by code, shape (8, codes · blocks, block).

    Rows: the first gather; the second; all other gathers and the sums among them, −∞ with a single layer; the sum of the last
    layer but one, −∞ for none; the pass; one layer of it; the same, −∞ with fewer than three layers; the last sum.
    """
    layers, kinds = gathers.layers, len(work_s)
    none, others, between = np.zeros_like(gathers.sums_s), np.maximum(1, layers - 1), np.maximum(0, layers - 2)
    several = layers > 1
    never_s = np.where(several, 0.0, -np.inf)
    gather_s, again_s = (gathers.gathers_s - gathers.opening_s) / others, gathers.again_s / layers
    sum_s = (gathers.sums_s - gathers.last_s) / others
    sums_s = np.where(several & (sum_s > 0), sum_s, -np.inf)
    forward = gathers.opening_s, gather_s * several, between * gather_s + never_s, none - np.inf, none
    backward = again_s, again_s * several, between * (again_s + sum_s) + never_s, sums_s, gathers.last_s
    inputs = again_s, again_s * several, between * again_s + never_s, none - np.inf, none
    # no waiting
    weights = none - np.inf, none, none - np.inf, none - np.inf, gathers.sums_s
    *tables, last = (np.array(each[:kinds]) for each in zip(forward, backward, inputs, weights, strict=True))
    schedule_level = np.array([layers, layers, layers, np.ones_like(layers)])[:kinds]
    layer_s = work_s / schedule_level
    return np.array([*tables, work_s, layer_s, np.where(schedule_level > 2, layer_s, -np.inf), last]).reshape(8, -1, block)
