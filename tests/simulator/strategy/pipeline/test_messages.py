"""Receives are posted after the same passes as in torch's runtime."""

from __future__ import annotations

import numpy as np
import pytest

from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.stages import ScheduleName
from scaleproof.simulator.strategy.pipeline.messages import posting_tasks
from scaleproof.simulator.strategy.pipeline.replica import rank_schedule
from scaleproof.simulator.strategy.pipeline.schedules import EQUAL, Pass, order

torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")


def _plan(schedule: ScheduleName, stages: int, microbatches: int, chunks: int) -> Plan:
    return Plan(stages=stages, microbatches=microbatches, schedule=schedule, chunks=chunks)


def _of_torch(plan: Plan) -> dict[tuple[int, int, bool], tuple[int, str, int] | None]:
    """For each receiving stage, microbatch and kind of message: the pass before the receive in the receiver's list."""
    from scaleproof.validator.strategy.pipeline.schedules import _actions

    actions = _actions(order(plan.schedule, plan.stages, plan.microbatches, plan.chunks, EQUAL), plan)
    rank_of = {stage: rank for rank, stages in enumerate(plan.stage_of) for stage in stages}
    whole = {rank: torch_schedules._add_unshard_reshard(each) for rank, each in actions.items()}
    whole = {rank: torch_schedules._add_reduce_grad(each, plan.microbatches) for rank, each in whole.items()}
    found: dict[tuple[int, int, bool], tuple[int, str, int] | None] = {}
    for each in torch_schedules._add_send_recv(whole, rank_of.__getitem__, plan.stages * plan.chunks).values():
        latest = None
        for action in each:
            name = action.computation_type.name
            if name in ("RECV_F", "RECV_B"):
                found[action.stage_index, action.microbatch_index, name == "RECV_F"] = latest
            elif action.is_compute_op and name not in ("UNSHARD", "RESHARD", "REDUCE_GRAD"):
                latest = action.stage_index, name, action.microbatch_index
    return found


_NAMES = {Pass.FORWARD: "FORWARD", Pass.BACKWARD: "FULL_BACKWARD", Pass.INPUT: "BACKWARD_INPUT", Pass.WEIGHT: "BACKWARD_WEIGHT"}


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("interleaved_1f1b", 2), ("interleaved_1f1b", 3), ("interleaved_zero_bubble", 2), ("zb_v", 2)]
)
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_receives_are_posted_in_the_order_of_torch(schedule: ScheduleName, chunks: int, stages: int, rounds: int) -> None:
    plan = _plan(schedule, stages, stages * rounds, chunks)
    tasks = rank_schedule(plan, [[range(1)]] * (stages * chunks), False, EQUAL)
    count = stages * chunks, plan.microbatches
    rank_of = {stage: rank for rank, own in enumerate(plan.stage_of) for stage in own}
    crossing = np.array([s for s in range(stages * chunks - 1) if rank_of[s] != rank_of[s + 1]])
    expected = _of_torch(plan)
    forward = (
        tasks.table(tasks.last, count, Pass.FORWARD)[crossing],
        tasks.table(tasks.first, count, Pass.FORWARD)[crossing + 1],
    )
    back = (Pass.BACKWARD, Pass.INPUT)
    backward = tasks.table(tasks.last, count, *back)[crossing + 1], tasks.table(tasks.first, count, *back)[crossing]
    made, used = (np.array(both) for both in zip(forward, backward, strict=True))
    found = posting_tasks(tasks, made, used)
    assert found.size == len(expected)
    for way, row, microbatch in np.ndindex(found.shape):
        task, user = found[way, row, microbatch], used[way, row, microbatch]
        kind = int(tasks.kind[task])
        own = None if kind < 0 else (int(tasks.stage[task]), _NAMES[Pass(kind)], int(tasks.microbatch[task]))
        assert own == expected[int(tasks.stage[user]), microbatch, way == 0]
