"""Schedules of torch.distributed.pipelining that run a plan's passes in the simulator's order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from torch import Tensor
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)

# private, as in torch 2.11 to 2.13; their members used below are private as well
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineSchedule, _PipelineScheduleRuntime

from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.stages import ScheduleName
from scaleproof.simulator.strategy.pipeline.schedules import Pass, PassOrder, PassTimes, order

Loss = Callable[[Tensor, Tensor], Tensor]

# Schedules of one stage per rank, which wait for sends between forward and backward passes.
_SINGLE: Final[Mapping[ScheduleName, Callable[..., _PipelineSchedule]]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
# Schedules of several stages per rank, which wait for sends at the end of a step.
_MULTI: Final[Mapping[ScheduleName, Callable[..., _PipelineSchedule]]] = {
    "interleaved_1f1b": ScheduleInterleaved1F1B,
    "looped_bfs": ScheduleLoopedBFS,
    "interleaved_zero_bubble": ScheduleInterleavedZeroBubble,
    "zb_v": ScheduleZBVZeroBubble,
    "dualpipe_v": ScheduleDualPipeV,
}
_KINDS: Final = {
    Pass.FORWARD: _ComputationType.FORWARD,
    Pass.BACKWARD: _ComputationType.FULL_BACKWARD,
    Pass.INPUT: _ComputationType.BACKWARD_INPUT,
    Pass.WEIGHT: _ComputationType.BACKWARD_WEIGHT,
}


def sends_freely(plan: Plan) -> bool:
    """Whether ranks wait for their sends only at the end of a step."""
    return plan.overlap_sends or plan.schedule not in _SINGLE


def build_schedule(plan: Plan, stages: Sequence[PipelineStage], loss: Loss, times: PassTimes) -> _PipelineSchedule:
    """The schedule of a rank with `stages`. times: durations of passes, for schedules whose order is searched for."""
    arguments = (plan.microbatches, loss)
    if not sends_freely(plan):
        return _SINGLE[plan.schedule](stages[0], *arguments, scale_grads=False)
    if plan.schedule in _MULTI:
        return _MULTI[plan.schedule](list(stages), *arguments, scale_grads=False)
    runtime = _PipelineScheduleRuntime(list(stages), *arguments, scale_grads=False)  # type: ignore[no-untyped-call]
    runtime.pipeline_order = _actions(order(plan.schedule, plan.stages, plan.microbatches, plan.chunks, times), plan)
    runtime._prepare_schedule_with_comms(runtime.pipeline_order)
    return runtime


def _actions(passes: PassOrder, plan: Plan) -> dict[int, list[_Action | None]]:
    """Each rank's passes in the format of torch's runtime, None where the rank would idle if all passes took equally long."""
    result: dict[int, list[_Action | None]] = {}
    for rank, stage_of in enumerate(plan.stage_of):
        result[rank] = [None] * (int(passes.slot[rank].max()) + 1)
        for kind, chunk, microbatch, slot in np.stack(passes, axis=-1)[rank].tolist():
            if slot >= 0:
                result[rank][slot] = _Action(stage_of[chunk], _KINDS[kind], microbatch)
    return result
