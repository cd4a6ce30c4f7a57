"""How a model is trained: one module per family, each a pydantic class that compiles itself to a Program."""

from __future__ import annotations

from typing import Annotated, Final

from simulator.strategy.base import Strategy
from simulator.strategy.data_parallel import DataParallel
from simulator.strategy.gather_average import GatherAverage
from simulator.strategy.hybrid import Hybrid
from simulator.strategy.kinds import Kinds
from simulator.strategy.local_sgd import LocalSgd
from simulator.strategy.model_parallel import ModelParallel
from simulator.strategy.parameter_server import ParameterServer
from simulator.strategy.pipeline import Pipeline

KINDS: Final = Kinds(ParameterServer, DataParallel, LocalSgd, GatherAverage, ModelParallel, Pipeline, Hybrid)
AnyStrategy = Annotated[Strategy, KINDS]

__all__ = [
    "KINDS", "AnyStrategy", "DataParallel", "GatherAverage", "Hybrid", "LocalSgd", "ModelParallel", "ParameterServer",
    "Pipeline", "Strategy",
]  # fmt: skip
