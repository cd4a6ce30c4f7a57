"""Parameter servers: workers push gradients, servers sum and update, workers pull parameters.

Of synchronous servers every step has the same messages in the same order. Where crews go each on its own, servers take what
comes next: see `parameter_server_server.Free`.
"""

from __future__ import annotations

import torch.distributed as dist

from scaleproof.simulator.program.consistency import SYNCHRONOUS
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import ParameterServer
from scaleproof.validator.strategy.base import Context, Trainer
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.strategy.parameter_server.links import Links
from scaleproof.validator.strategy.parameter_server.server import Free, InStep
from scaleproof.validator.strategy.parameter_server.worker import Overlapped, Worker


def create(context: Context, strategy: ParameterServer) -> Trainer:
    """The worker or the server that this rank is: workers come first."""
    together = crews(context.scenario, strategy)
    servers = range(strategy.workers, strategy.ranks)
    links = Links([crew[0] for crew in together], servers, own=dist.get_backend() == "nccl")
    # all ranks make all groups, servers as well
    team = Team.of([*together, *([server] for server in servers)], "node") if strategy.two_level else None
    trainer: Trainer
    if context.rank >= strategy.workers:
        trainer = (InStep if strategy.gate == SYNCHRONOUS else Free)(context, strategy, links, together)
    elif strategy.overlap:
        trainer = Overlapped(context, strategy, links)
    else:
        trainer = Worker(context, strategy, links, team if team is not None and team.size > 1 else None)
    # workers that wait for nobody would be as far apart as they began
    dist.barrier()
    return trainer


def crews(scenario: Scenario, strategy: ParameterServer) -> list[range]:
    """The workers that push as one, the first of them for all: each alone, or with two levels those of a node."""
    size = scenario.cluster.node.devices if strategy.two_level else 1
    return [range(first, min(first + size, strategy.workers)) for first in range(0, strategy.workers, size)]
