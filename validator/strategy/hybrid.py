"""Hybrid: workers are pipelines whose ranks share layers, tokens and experts.

Gradients are averaged after the last backward pass or overlapped with it, or parameter servers apply them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import nn

from scaleproof.simulator.strategy import Hybrid
from scaleproof.validator.strategy.base import Context, Trainer
from scaleproof.validator.strategy.data_parallel.buckets import Allreduce, BucketedAllreduce, EarlyAllreduce
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.layout.mesh import teams
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.strategy.model_parallel.expert_parallel import ShardedExperts
from scaleproof.validator.strategy.parameter_server.hybrid import HybridServer, HybridWorker
from scaleproof.validator.strategy.replica import Replica


def create(context: Context, strategy: Hybrid) -> Trainer:
    """The trainer of this rank's place on the mesh; servers have the ranks after it."""
    if context.rank >= strategy.plan.ranks:
        return HybridServer(context, strategy)
    return (HybridWorker if strategy.plan.servers else AveragingReplica)(context, strategy)


class AveragingReplica(Replica):
    """Keeps replicas identical by averaging their gradients."""

    def __init__(self, context: Context, strategy: Hybrid) -> None:
        super().__init__(context, strategy)
        self.allreduces = list(self._allreduces(strategy.bucket_bytes))

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

    def _allreduces(self, bucket_bytes: float) -> Iterator[BucketedAllreduce]:
        """One allreduce for each set of parameters with identical copies on the same ranks: means over workers and tokens.

        Gradients of which each tensor-parallel rank computes a part are summed over these ranks as well.
        """
        tensor = self.division.tensor
        parts = tensor.of_parts(self.module) if tensor else []
        experts = [p for module in self.module.modules() if isinstance(module, ShardedExperts) for p in module.parameters()]
        divided = {*parts, *experts}
        whole = [parameter for parameter in self.module.parameters() if parameter not in divided]
        for parameters, axes, name, limit_bytes in (
            (whole, ("replica", "expert", "context"), "worker", bucket_bytes),
            (parts, ("replica", "expert", "context", "tensor"), "all", math.inf),
            (experts, ("replica", "context"), "replica", math.inf),
        ):
            team = Team.of(teams(self.mesh, *axes), name)
            if parameters and team.size * self.plan.workers * self.plan.context > 1:
                yield self._allreduce(parameters, team, limit_bytes)

    def _allreduce(self, parameters: Sequence[nn.Parameter], team: Team, limit_bytes: float) -> BucketedAllreduce:
        weight = 1 / (self.plan.workers * self.plan.context)
        bucket_sum = Allreduce(Collectives(self.recorder, team, self.stage))
        arguments = (parameters, self.recorder, (limit_bytes, limit_bytes), weight, bucket_sum, self.accumulator, self.stage)
        if self.plan.overlap:
            return EarlyAllreduce(*arguments, microbatches=self.microbatches)
        return BucketedAllreduce(*arguments)
