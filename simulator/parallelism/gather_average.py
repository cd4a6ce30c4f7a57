"""Fields of gather and average: one worker collects all gradients and distributes parameters."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from scaleproof.simulator.common.spec import Count
from scaleproof.simulator.parallelism.strategy import Strategy


class GatherAverage(Strategy):
    """All workers send their gradients to worker 0, which also trains; it averages, updates, and sends parameters to all.

    Nothing overlaps: with n workers, (n − 1) times the gradients enter the main worker over its link, and (n − 1) times the
    parameters leave it, where a ring moves 2 · (n − 1) / n times the gradients over each link.
    """

    kind: Literal["gather_average"] = "gather_average"
    workers: Count = Field(1, description="worker 0 included")
