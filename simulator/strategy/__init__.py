"""How a model is trained: one module per family, each a pydantic class that compiles itself to a Program."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simulator.strategy.base import Strategy
from simulator.strategy.hybrid import Hybrid
from simulator.strategy.model_parallel import ModelParallel
from simulator.strategy.parameter_server import ParameterServer
from simulator.strategy.pipeline import Pipeline, Pipelined
from simulator.strategy.ring_allreduce import RingAllreduce

AnyStrategy = Annotated[ParameterServer | RingAllreduce | ModelParallel | Pipeline | Hybrid, Field(discriminator="kind")]

__all__ = ["AnyStrategy", "Hybrid", "ModelParallel", "ParameterServer", "Pipeline", "Pipelined", "RingAllreduce", "Strategy"]
