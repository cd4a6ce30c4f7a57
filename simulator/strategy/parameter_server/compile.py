"""Parameter servers: workers push gradients, servers update parameters, workers pull them."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Final

import numpy as np

from scaleproof.simulator.common.consistency import SYNCHRONOUS
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.parallelism.parameter_server import ParameterServer
from scaleproof.simulator.program import Program
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.parameter_server.program import ServedStep
from scaleproof.simulator.strategy.parameter_server.ranks import OnNode, RankClass, classes, placed, worker_groups
from scaleproof.simulator.strategy.parameter_server.shards import Bucket, buckets

# Limit of messages between worker groups and server classes; at the limit, two steps need 10 s to build and simulate.
_MAX_MESSAGES: Final = 200_000


def compile_parameter_server(strategy: ParameterServer, job: Job) -> Program:
    """One step of all workers. Raises FieldError if there are too many messages to simulate."""
    cluster = job.cluster
    limit_bytes = strategy.bucket_bytes if strategy.overlap else math.inf
    bucket_list = buckets(
        job.layers, strategy.servers, strategy.shard, job.parameter_bytes, limit_bytes, strategy.sparse, strategy.workers
    )
    nodes = placed(strategy.workers, strategy.servers, cluster.node.devices, strategy.is_dedicated(cluster))
    rank_classes = _classes(strategy, job, nodes, bucket_list)
    groups = worker_groups(rank_classes, nodes, strategy.two_level)
    messages = len(groups) * sum(one.is_server for one in rank_classes) * len(bucket_list)
    if messages > _MAX_MESSAGES:
        text = f"{messages} messages per step are too many to simulate; use fewer servers, or larger buckets"
        raise FieldError(("strategy", "servers"), text)
    step = ServedStep(job, strategy.consistency, strategy.quota, rank_classes, groups, bucket_list, strategy.rollout_s)
    return step.overlapped() if strategy.overlap else step.sequential()


def _classes(
    strategy: ParameterServer, job: Job, nodes: Mapping[int, OnNode], bucket_list: Sequence[Bucket]
) -> list[RankClass]:
    """Equivalent ranks on equivalent nodes; distinguishable ranks, or all on non-uniform networks, are separate."""
    distinguishable = _distinguishable_ranks(strategy, job)
    # servers with the same contents are equivalent
    server_contents = np.concatenate([np.stack(bucket[1:]) for bucket in bucket_list])

    def kind(rank: int) -> Hashable:
        if rank in distinguishable:
            return rank
        return "worker" if rank < strategy.workers else server_contents[:, rank - strategy.workers].tobytes()

    def is_separate(node: int) -> bool:
        ranks = nodes[node]
        is_async = strategy.consistency != SYNCHRONOUS and len(ranks.workers) > 0
        return is_async or any(rank in distinguishable for ranks_of_role in ranks for rank in ranks_of_role)

    return classes(nodes, job.cluster.node.devices, kind, is_separate)


def _distinguishable_ranks(strategy: ParameterServer, job: Job) -> Collection[int]:
    """Ranks that must not be folded. Workers that do not wait for all others diverge, even if equivalent. Servers with the
    same contents do not: services of folded servers vary identically, but their messages do not."""
    if not job.cluster.is_uniform:
        return range(strategy.ranks)
    distinguishable = set(job.distinguishable_ranks(strategy.ranks))
    if strategy.consistency == SYNCHRONOUS:
        return distinguishable
    if job.unevenness.message_jitter == 0 and not job.unevenness.changes:
        distinguishable -= set(range(strategy.workers, strategy.ranks)) - job.unevenness.named
    return distinguishable if strategy.two_level else distinguishable | set(range(strategy.workers))
