"""Pipeline schedules: in which order a stage passes its microbatches forward and backward."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

ScheduleName = Literal["gpipe", "1f1b"]


class Slots(NamedTuple):
    """The slot of each pass, each of shape (stages, microbatches). A stage's passes are in the order of their slots."""

    forward: NDArray[np.int64]
    backward: NDArray[np.int64]


def slots(schedule: ScheduleName, stages: int, microbatches: int) -> Slots:
    """When every pass begins if each takes one slot, forward or backward, and messages take no time.

    gpipe: all forward, a slot in which a stage waits for what it has sent, then all backward (arXiv 1811.06965). 1f1b: as
    many forward passes ahead as there are stages behind, then one backward and one forward in turn (arXiv 2006.09503), which
    holds fewer activations for the same bubble.
    """
    stage, microbatch = np.arange(stages)[:, None], np.arange(microbatches)
    if schedule == "gpipe":
        return Slots(stage + microbatch, 2 * stages + microbatches - 1 - stage + microbatch)
    ahead = stages - stage
    # a forward pass past those ahead follows the backward pass that made room for it
    forward = stage + microbatch * np.where(microbatch < ahead, 1, 2)
    return Slots(forward, stages + ahead - 1 + 2 * microbatch)
