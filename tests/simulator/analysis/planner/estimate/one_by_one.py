"""Times of a pipeline's passes, followed one after another, to compare closed forms and simulated passes with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.pipeline_times import StageTimes, stages_of
from scaleproof.simulator.parallelism.stages import ScheduleName
from scaleproof.simulator.strategy.pipeline.schedules import Pass, order

Times = NDArray[np.float64]


class Node(NamedTuple):
    """A pass, of the three kinds forward, backward (with or without gradients of weights) and gradients of weights alone."""

    kind: Pass
    stage: int
    microbatch: int


class _Timed(NamedTuple):
    slot: int
    rank: int
    node: Node
    work_s: Times


def windows_s(schedule: ScheduleName, stages: StageTimes) -> Times:
    """Seconds from the first pass of each rank to the end of its last pass and message, shape (ranks, configurations).

    All configurations have the same number of microbatches.
    """
    own_stages, last = stages_of(schedule, stages.ranks, stages.chunks), len(stages.forward_s) - 1
    rank_of = {int(stage): rank for rank, own in enumerate(own_stages) for stage in own}
    passes, nothing_s = _passes(schedule, stages), np.zeros_like(stages.forward_s[0])
    before: dict[Node, Node] = {}
    latest: dict[int, Node] = {}
    for one in passes:
        if one.rank in latest:
            before[one.node] = latest[one.rank]
        latest[one.rank] = one.node
    ends: dict[Node, Times] = {}
    begins: dict[int, Times] = {}
    got: dict[tuple[int, bool], Times] = {}
    sent: dict[tuple[int, bool], Times] = {}
    for _, rank, node, work_s in passes:
        is_forward = node.kind == Pass.FORWARD
        before_s = begin_s = ends[before[node]] if node in before else nothing_s
        made = _input(node, last)
        if made is not None:
            made_s, source = ends[made], rank_of[made.stage]
            if not stages.overlap_sends:
                made_s = np.maximum(made_s, before_s)
            if source != rank:
                if stages.overlap_sends:
                    made_s = np.maximum(made_s, got.get((rank, is_forward), nothing_s))
                made_s = made_s + stages.send_s[min(made.stage, node.stage)]
                got[rank, is_forward] = sent[source, is_forward] = made_s
            begin_s = np.maximum(begin_s, made_s)
        if not stages.overlap_sends and node in before and _waits(schedule, before[node], node):
            # until the rank's last message has been received, which its receiver is ready for after its own pass before
            target = _output(before[node], last)
            if target is not None:
                free_s = ends[before[target]] if target in before else nothing_s
                begin_s = np.maximum(begin_s, np.maximum(before_s, free_s) + stages.send_s[min(target.stage, node.stage)])
        begins.setdefault(rank, begin_s)
        ends[node] = begin_s + work_s
    last_s = [[ends[latest[rank]], *(sent.get((rank, way), nothing_s) for way in (False, True))] for rank in latest]
    return np.array([np.max(several, axis=0) - begins[rank] for rank, several in zip(latest, last_s, strict=True)])


def _passes(schedule: ScheduleName, stages: StageTimes) -> list[_Timed]:
    """All passes, in an order in which each follows those that it depends on."""
    work_s = stages.forward_s, stages.backward_s, stages.inputs_s, stages.weights_s + np.zeros_like(stages.forward_s)
    own_stages, passes = stages_of(schedule, stages.ranks, stages.chunks), []
    rows = zip(*order(schedule, stages.ranks, int(stages.microbatches[0]), stages.chunks), strict=True)
    for rank, row in enumerate(rows):
        for kind, chunk, microbatch, slot in zip(*(one.tolist() for one in row), strict=True):
            if slot >= 0:
                stage = int(own_stages[rank, chunk])
                node = Node(Pass.BACKWARD if kind == Pass.INPUT else Pass(kind), stage, microbatch)
                passes.append(_Timed(slot, rank, node, work_s[kind][stage]))
    return sorted(passes, key=lambda one: one[:2])


def _input(node: Node, last: int) -> Node | None:
    """The pass on another stage, or the forward pass on the last stage, that a pass depends on."""
    if node.kind == Pass.FORWARD:
        return node._replace(stage=node.stage - 1) if node.stage else None
    if node.kind == Pass.WEIGHT:
        return None
    return node._replace(kind=Pass.FORWARD) if node.stage == last else node._replace(stage=node.stage + 1)


def _output(node: Node, last: int) -> Node | None:
    """The pass on another stage that depends on a pass."""
    if node.kind == Pass.FORWARD:
        return node._replace(stage=node.stage + 1) if node.stage < last else None
    return node._replace(stage=node.stage - 1) if node.stage else None


def _waits(schedule: ScheduleName, before: Node, node: Node) -> bool:
    """Whether a rank waits for the message that it has sent, when it switches between kinds of passes."""
    switches = before.kind != node.kind
    return switches and (schedule == "1f1b" or (schedule == "gpipe" and node.kind != Pass.FORWARD))
