"""Ranks of parameter servers: their nodes, classes of equivalent ones, and groups of workers that push as one."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scaleproof.simulator.common.parameter_server import SYNCHRONOUS
from scaleproof.simulator.parallelism.mesh import RankClass
from scaleproof.simulator.parallelism.parameter_server import ParameterServer
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.parameter_server.shards import Bucket


class NodeRanks(NamedTuple):
    """Ranks on a node."""

    workers: Sequence[int]
    servers: Sequence[int]


class WorkerGroup(NamedTuple):
    """Worker classes that communicate with the servers as one, through `leader`: all of a node's, or one class.

    workers: the ranks of the first node.
    """

    leader: RankClass
    members: tuple[RankClass, ...]
    workers: tuple[int, ...]


def ranks_on_nodes(workers: int, servers: int, devices: int, dedicated: bool) -> dict[int, NodeRanks]:
    """Ranks on each node: workers fill nodes of `devices`; servers have separate nodes, or are distributed over the workers'
    nodes."""
    worker_nodes = -(-workers // devices)
    nodes = {node: NodeRanks(range(node * devices, min((node + 1) * devices, workers)), []) for node in range(worker_nodes)}
    for number in range(servers):
        node = worker_nodes + number if dedicated else number % worker_nodes
        ranks = nodes.setdefault(node, NodeRanks([], []))
        nodes[node] = ranks._replace(servers=[*ranks.servers, workers + number])
    return nodes


def rank_classes(
    strategy: ParameterServer, job: Job, nodes: Mapping[int, NodeRanks], buckets: Sequence[Bucket]
) -> list[RankClass]:
    """Classes of equivalent ranks: ranks of the same kind on a node, and on all nodes with ranks of the same kinds. Nodes with
    workers that do not wait for all others are separate."""
    distinguishable = _distinguishable_ranks(strategy, job)
    # servers with the same contents are equivalent
    server_contents = np.concatenate([np.stack(bucket[1:]) for bucket in buckets])

    def kind(rank: int) -> Hashable:
        if rank in distinguishable:
            return rank
        return "worker" if rank < strategy.workers else server_contents[:, rank - strategy.workers].tobytes()

    equivalent: dict[Hashable, list[int]] = {}
    for node, ranks in nodes.items():
        kinds = tuple(tuple(map(kind, role)) for role in ranks)
        is_separate = strategy.consistency != SYNCHRONOUS and len(ranks.workers) > 0
        equivalent.setdefault((kinds, node if is_separate else None), []).append(node)
    result = []
    for first, *others in equivalent.values():
        for role in nodes[first]:
            members: dict[Hashable, list[int]] = {}
            for rank in role:
                members.setdefault(kind(rank), []).append(rank)
            result += [RankClass(first, 1 + len(others), len(ranks), ranks[0]) for ranks in members.values()]
    return result


def _distinguishable_ranks(strategy: ParameterServer, job: Job) -> Collection[int]:
    """Ranks that must not be folded: all on non-uniform networks. Workers that do not wait for all others diverge, even if
    equivalent. Servers with the same contents do not: services of folded servers vary identically, but their messages do
    not."""
    if not job.cluster.is_uniform:
        return range(strategy.ranks)
    distinguishable = set(job.distinguishable_ranks(strategy.ranks))
    if strategy.consistency == SYNCHRONOUS:
        return distinguishable
    if job.unevenness.message_jitter == 0 and not job.unevenness.changes:
        distinguishable -= set(range(strategy.workers, strategy.ranks)) - job.unevenness.named
    return distinguishable if strategy.two_level else distinguishable | set(range(strategy.workers))


def worker_groups(workers: Sequence[RankClass], nodes: Mapping[int, NodeRanks], by_node: bool) -> list[WorkerGroup]:
    """Groups of worker classes: those of a node, or single classes."""
    if not by_node:
        return [WorkerGroup(worker, (worker,), ()) for worker in workers]
    by_nodes = ((node, tuple(members)) for node, members in itertools.groupby(workers, key=lambda worker: worker.node))
    return [WorkerGroup(members[0]._replace(each=1), members, tuple(nodes[node].workers)) for node, members in by_nodes]
