"""How a model is trained: one module per family, each a pydantic class that compiles itself to a Program."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simulator.strategy.base import Strategy
from simulator.strategy.data_parallel import DataParallel
from simulator.strategy.gather_average import GatherAverage
from simulator.strategy.hybrid import Hybrid
from simulator.strategy.local_sgd import LocalSgd
from simulator.strategy.model_parallel import ModelParallel
from simulator.strategy.parameter_server import ParameterServer
from simulator.strategy.pipeline import Pipeline

AnyStrategy = Annotated[
    ParameterServer | DataParallel | LocalSgd | GatherAverage | ModelParallel | Pipeline | Hybrid, Field(discriminator="kind")
]

__all__ = [
    "AnyStrategy", "DataParallel", "GatherAverage", "Hybrid", "LocalSgd", "ModelParallel", "ParameterServer", "Pipeline",
    "Strategy",
]  # fmt: skip
