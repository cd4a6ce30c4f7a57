"""How a rank really trains: the twin of simulator.strategy, by the same names."""

from __future__ import annotations

from simulator.errors import InputError
from simulator.strategy import AnyStrategy, Hybrid, ModelParallel, ParameterServer, Pipeline, RingAllreduce
from validator.strategy import hybrid, parameter_server, pipeline, ring_allreduce
from validator.strategy.base import Context, Trainer


def create(context: Context, strategy: AnyStrategy) -> Trainer:
    """This rank's part in training by `strategy`."""
    match strategy:
        case RingAllreduce():
            return ring_allreduce.create(context, strategy)
        case ParameterServer():
            return parameter_server.create(context, strategy)
        case Pipeline():
            return pipeline.create(context, strategy)
        case Hybrid():
            return hybrid.create(context, strategy)
        case ModelParallel():
            raise InputError("model_parallel is predicted but not measured")
