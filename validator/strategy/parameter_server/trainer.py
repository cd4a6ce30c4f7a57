"""Parameter servers: workers push gradients, servers sum and update, workers pull parameters.

With synchronous servers every step has the same messages in the same order. Otherwise servers take what arrives next: see
`server.AsynchronousServer`.
"""

from __future__ import annotations

import torch.distributed as dist

from scaleproof.simulator.common.parameter_server import SYNCHRONOUS
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.validator.launch.rank import barrier
from scaleproof.validator.strategy.base import Context, Trainer
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.strategy.parameter_server.links import Links
from scaleproof.validator.strategy.parameter_server.node_worker import NodeWorker
from scaleproof.validator.strategy.parameter_server.server import AsynchronousServer, SynchronousServer
from scaleproof.validator.strategy.parameter_server.work_units import UnitGrants, UnitRequests
from scaleproof.validator.strategy.parameter_server.worker import OverlappedWorker, Worker


def create(context: Context, strategy: ParameterServer) -> Trainer:
    """This rank's worker or server: workers have the lower ranks."""
    groups = strategy.pushers(context.scenario.cluster.node.devices)
    servers = range(strategy.workers, strategy.ranks)
    links = Links([pusher[0] for pusher in groups], servers, own=dist.get_backend() == "nccl")
    # every rank must create all groups, servers included
    levels = ("node", "node replies") if strategy.overlap else ("node",)
    teams = [Team.of([*groups, *([server] for server in servers)], axis) for axis in levels if strategy.two_level]
    is_shared = bool(teams) and teams[0].size > 1
    requests = grants = None
    if strategy.quota is not None and strategy.quota.shared:
        group = dist.new_group(backend="gloo")
        requests = UnitRequests(group, servers)
        grants = UnitGrants(group, strategy.quota.count, is_first=context.rank == servers[0])
    trainer: Trainer
    if context.rank >= strategy.workers:
        if strategy.consistency == SYNCHRONOUS:
            trainer = SynchronousServer(context, strategy, links, groups)
        else:
            trainer = AsynchronousServer(context, strategy, links, groups, grants)
    elif is_shared and strategy.overlap:
        trainer = NodeWorker(context, strategy, links, *teams)
    elif strategy.overlap:
        trainer = OverlappedWorker(context, strategy, links, None, requests)
    else:
        trainer = Worker(context, strategy, links, teams[0] if is_shared else None, requests)
    # asynchronous workers would stay as far from one another as they began
    barrier()
    return trainer
