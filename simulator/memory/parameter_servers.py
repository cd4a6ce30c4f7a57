"""Memory of parameter servers on their hosts."""

from __future__ import annotations

import math

from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.result import RankMemory
from scaleproof.simulator.memory.states import States, states
from scaleproof.simulator.strategy import ParameterServer
from scaleproof.simulator.strategy.parameter_server.shards import buckets


def server(setting: MemoryInputs) -> RankMemory | None:
    """The memory of the fullest server: its shard with optimizer states, and gradients that workers push; None without
    servers."""
    strategy = setting.strategy
    if not isinstance(strategy, ParameterServer):
        return None
    layers, workers = setting.job.layers, strategy.workers
    (whole,) = buckets(layers, strategy.servers, strategy.shard, setting.size, math.inf, None, workers)
    share = float(whole.touched.max() / max(1.0, whole.touched.sum()))
    own = States(*(share * part for part in states(layers, setting.training)))._asdict()
    return RankMemory("server", own | {"communication": own["gradients"] * (workers - 1)})
