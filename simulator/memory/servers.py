"""Servers: what parameter servers hold, in the memory of their hosts."""

from __future__ import annotations

import math

from simulator.memory.result import RankMemory
from simulator.memory.setting import Setting
from simulator.memory.states import States, states
from simulator.strategy import ParameterServer
from simulator.strategy.parameter_server_shards import buckets


def server(setting: Setting) -> RankMemory | None:
    """That with the most: its shard with the optimizer's states, and what every worker pushes."""
    strategy = setting.strategy
    if not isinstance(strategy, ParameterServer):
        return None
    layers, workers = setting.job.layers, strategy.workers
    (whole,) = buckets(layers, strategy.servers, strategy.shard, setting.size, math.inf, None, workers)
    share = float(whole.touched.max() / max(1.0, whole.touched.sum()))
    own = States(*(share * part for part in states(layers, setting.training)))._asdict()
    return RankMemory("server", own | {"communication": own["gradients"] * (workers - 1)})
