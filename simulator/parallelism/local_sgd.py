"""Fields of local SGD: workers take a period of optimizer steps independently, then average their parameters."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scaleproof.simulator.common.spec import Count
from scaleproof.simulator.parallelism.strategy import Strategy


class LocalSgd(Strategy):
    """Every worker has the whole model and trains independently on its share for `period` steps; then parameters are averaged.

    outer: none replaces parameters by the average (local SGD, arXiv 1805.09767); nesterov treats the average change of a period
    as a gradient, and takes a step with momentum from the parameters at its start (DiLoCo, arXiv 2311.08105). overlap: an
    average is used one period later, and moves during that period (arXiv 2502.12996).

    One step of the Program is a period, in which each worker trains on `period` batches: times of a step are means over it.
    """

    kind: Literal["local_sgd"] = "local_sgd"
    workers: Count = 1
    period: Annotated[int, Field(gt=0, le=100_000)] = Field(1, description="steps from one average to the next")
    outer: Literal["none", "nesterov"] = "none"
    overlap: bool = Field(False, description="average while the next period goes on")

    @property
    def program_steps(self) -> int:
        """Optimizer steps between two averages."""
        return self.period
