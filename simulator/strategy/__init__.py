"""Training strategies: one folder per kind of parallelism; each strategy is a pydantic class that compiles itself to a
Program."""

from __future__ import annotations

from typing import Annotated, Final

from scaleproof.simulator.strategy.base import Strategy, priced
from scaleproof.simulator.strategy.captured import CapturedStrategy
from scaleproof.simulator.strategy.data_parallel.gather_average import GatherAverage
from scaleproof.simulator.strategy.data_parallel.local_sgd import LocalSgd
from scaleproof.simulator.strategy.data_parallel.strategy import DataParallel
from scaleproof.simulator.strategy.hybrid import Hybrid
from scaleproof.simulator.strategy.model_parallel.strategy import ModelParallel
from scaleproof.simulator.strategy.parameter_server.strategy import ParameterServer
from scaleproof.simulator.strategy.pipeline.strategy import Pipeline
from scaleproof.simulator.strategy.registry import StrategyRegistry

KINDS: Final = StrategyRegistry(
    ParameterServer, DataParallel, LocalSgd, GatherAverage, ModelParallel, Pipeline, Hybrid, CapturedStrategy
)
AnyStrategy = Annotated[Strategy, KINDS]

__all__ = [
    "KINDS", "AnyStrategy", "CapturedStrategy", "DataParallel", "GatherAverage", "Hybrid", "LocalSgd", "ModelParallel",
    "ParameterServer", "Pipeline", "Strategy", "priced",
]  # fmt: skip
