"""Hybrid: workers are pipelines whose ranks share layers, tokens and experts.

Gradients are averaged after the last backward pass or overlapped with it, states may be sharded, or parameter servers apply the
gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from scaleproof.simulator.parallelism import Hybrid
from scaleproof.validator.strategy.base import Context, Trainer
from scaleproof.validator.strategy.data_parallel.buckets import BucketedAllreduce, BucketSum, EarlyAllreduce
from scaleproof.validator.strategy.data_parallel.threaded_sum import bucket_sum_of
from scaleproof.validator.strategy.hybrid.parallel_replica import ParallelReplica, parameter_numbers
from scaleproof.validator.strategy.hybrid.zero import FullyShardedReplica, ShardingReplica
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.strategy.parameter_server.hybrid import HybridServer, HybridWorker


def create(context: Context, strategy: Hybrid) -> Trainer:
    """The trainer of this rank's place on the mesh; servers have the ranks after it."""
    if context.rank >= strategy.plan.ranks:
        return HybridServer(context, strategy)
    if strategy.plan.servers:
        return HybridWorker(context, strategy)
    zero = context.scenario.training.zero if strategy.plan.averages else 0
    return (AveragingReplica, ShardingReplica, ShardingReplica, FullyShardedReplica)[zero](context, strategy)


class AveragingReplica(ParallelReplica):
    """Keeps replicas identical by averaging their gradients."""

    def __init__(self, context: Context, strategy: Hybrid) -> None:
        super().__init__(context, strategy)
        self.allreduces = list(self._allreduces())

    def average(self) -> None:
        """Averages gradients among ranks with the same parameters."""
        for allreduce in self.allreduces:
            allreduce.average()
        super().average()

    def close(self) -> None:
        """Ends the sums of buckets."""
        for allreduce in self.allreduces:
            allreduce.close()
        super().close()

    def _allreduces(self) -> Iterator[BucketedAllreduce]:
        """One allreduce for each set of parameters that several ranks have."""
        numbers = parameter_numbers(self.context.scenario, self.layers)
        for one in self.parameter_sets():
            team = Team.of(one.teams, one.names[0])
            parameters = [parameter for stage in one.stages for parameter in stage]
            if parameters and team.size * self.plan.workers * self.plan.context > 1:
                bucket_sum = bucket_sum_of(self.context, team, self.stage, self.thread)
                yield self._allreduce(parameters, bucket_sum, one.limits_bytes, [numbers[p] for p in parameters])

    def _allreduce(
        self,
        parameters: Sequence[nn.Parameter],
        bucket_sum: BucketSum,
        limits_bytes: tuple[float, float],
        numbers: Sequence[int],
    ) -> BucketedAllreduce:
        arguments = (parameters, self.recorder, limits_bytes, self.weight, bucket_sum, self.accumulator, self.stage, numbers)
        if self.plan.overlap:
            return EarlyAllreduce(*arguments, microbatches=self.microbatches)
        return BucketedAllreduce(*arguments)
