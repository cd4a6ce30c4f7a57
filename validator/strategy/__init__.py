"""How a rank really trains: the twin of simulator.strategy, by the same names."""

from __future__ import annotations

from simulator.errors import InputError
from simulator.strategy import AnyStrategy, DataParallel, Hybrid, ParameterServer, Pipeline
from validator.strategy import data_parallel, hybrid, parameter_server, pipeline
from validator.strategy.base import Context, Trainer


def create(context: Context, strategy: AnyStrategy) -> Trainer:
    """This rank's part in training by `strategy`."""
    match strategy:
        case DataParallel():
            return data_parallel.create(context, strategy)
        case ParameterServer():
            return parameter_server.create(context, strategy)
        case Pipeline():
            return pipeline.create(context, strategy)
        case Hybrid():
            return hybrid.create(context, strategy)
        case _:
            raise InputError(f"{strategy.kind} is predicted but not measured")
