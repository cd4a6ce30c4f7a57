"""All kinds of strategies that scenarios may have."""

from __future__ import annotations

from typing import Annotated, Final

from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.parallelism import (
    DataParallel,
    GatherAverage,
    Hybrid,
    LocalSgd,
    ModelParallel,
    ParameterServer,
    Pipeline,
    Strategy,
)
from scaleproof.simulator.parallelism.strategy import StrategyRegistry

KINDS: Final = StrategyRegistry(
    ParameterServer, DataParallel, LocalSgd, GatherAverage, ModelParallel, Pipeline, Hybrid, CapturedStrategy
)
AnyStrategy = Annotated[Strategy, KINDS]
