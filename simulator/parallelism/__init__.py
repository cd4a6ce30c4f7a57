"""Strategies as users write them: fields, rules of options, and the plan that they describe. `simulator.strategy` compiles
them; `scenario/schema.py` has all kinds."""

from __future__ import annotations

from scaleproof.simulator.parallelism.gather_average import GatherAverage
from scaleproof.simulator.parallelism.local_sgd import LocalSgd
from scaleproof.simulator.parallelism.model_parallel import ModelParallel
from scaleproof.simulator.parallelism.parameter_server import ParameterServer
from scaleproof.simulator.parallelism.replicas import DataParallel, Hybrid, Pipeline
from scaleproof.simulator.parallelism.strategy import Strategy

__all__ = [
    "DataParallel", "GatherAverage", "Hybrid", "LocalSgd", "ModelParallel", "ParameterServer", "Pipeline", "Strategy",
]  # fmt: skip
