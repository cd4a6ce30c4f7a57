"""Pipeline schedules: in which order a stage passes its microbatches forward and backward."""

from __future__ import annotations

from typing import Literal, NamedTuple

ScheduleName = Literal["gpipe", "1f1b"]


class Op(NamedTuple):
    """One pass of one microbatch through a stage."""

    forward: bool
    microbatch: int


def order(schedule: ScheduleName, stage: int, stages: int, microbatches: int) -> list[Op]:
    """The passes of `stage` in order.

    gpipe: all forward, then all backward (arXiv 1811.06965). 1f1b: as many forward passes ahead as there are stages behind,
    then one backward and one forward in turn (arXiv 2006.09503), which holds fewer activations for the same bubble.
    """
    ahead = microbatches if schedule == "gpipe" else min(microbatches, stages - stage)
    ops = [Op(True, m) for m in range(ahead)]
    for m in range(microbatches):
        ops.append(Op(False, m))
        if ahead + m < microbatches:
            ops.append(Op(True, ahead + m))
    return ops
