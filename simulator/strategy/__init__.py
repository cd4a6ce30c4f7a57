"""How a model is trained: one module per family, each a pydantic class that compiles itself to a Program."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simulator.strategy.base import Strategy
from simulator.strategy.data_parallel import DataParallel
from simulator.strategy.hybrid import Hybrid
from simulator.strategy.model_parallel import ModelParallel
from simulator.strategy.parameter_server import ParameterServer
from simulator.strategy.pipeline import Pipeline, Pipelined

AnyStrategy = Annotated[ParameterServer | DataParallel | ModelParallel | Pipeline | Hybrid, Field(discriminator="kind")]

__all__ = ["AnyStrategy", "DataParallel", "Hybrid", "ModelParallel", "ParameterServer", "Pipeline", "Pipelined", "Strategy"]
