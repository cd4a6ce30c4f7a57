"""Hybrid: workers are pipelines whose ranks share layers, tokens and experts; gradients are averaged after the last pass or
while it goes on, or servers apply them."""

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
from scaleproof.validator.strategy.model_parallel.expert_parallel import ExpertsApart
from scaleproof.validator.strategy.parameter_server.hybrid import HybridServer, Pusher
from scaleproof.validator.strategy.replica import Replica


def create(context: Context, strategy: Hybrid) -> Trainer:
    """The trainer of this rank's place on the mesh; servers come behind it."""
    if context.rank >= strategy.plan.ranks:
        return HybridServer(context, strategy)
    return (Pusher if strategy.plan.servers else Averaging)(context, strategy)


class Averaging(Replica):
    """Keeps replicas alike by averaging their gradients."""

    def __init__(self, context: Context, strategy: Hybrid) -> None:
        super().__init__(context, strategy)
        self.sums = list(self._sums(strategy.bucket_bytes))

    def average(self) -> None:
        for one in self.sums:
            one.average()

    def close(self) -> None:
        for one in self.sums:
            one.close()
        super().close()

    def _sums(self, bucket_bytes: float) -> Iterator[BucketedAllreduce]:
        """Means over workers and their tokens, of gradients that the same ranks have alike.

        Those of which ranks that share layers make a part each are summed over these as well.
        """
        tensor = self.division.tensor
        parts = tensor.of_parts(self.module) if tensor else []
        experts = [p for module in self.module.modules() if isinstance(module, ExpertsApart) for p in module.parameters()]
        apart = {*parts, *experts}
        whole = [parameter for parameter in self.module.parameters() if parameter not in apart]
        for held, axes, name, limit_bytes in (
            (whole, ("replica", "expert", "context"), "worker", bucket_bytes),
            (parts, ("replica", "expert", "context", "tensor"), "all", math.inf),
            (experts, ("replica", "context"), "replica", math.inf),
        ):
            team = Team.of(teams(self.mesh, *axes), name)
            if held and team.size * self.plan.workers * self.plan.context > 1:
                yield self._sum(held, team, limit_bytes)

    def _sum(self, held: Sequence[nn.Parameter], team: Team, limit_bytes: float) -> BucketedAllreduce:
        weight = 1 / (self.plan.workers * self.plan.context)
        bucket_sum = Allreduce(Collectives(self.recorder, team, self.stage))
        arguments = (held, self.recorder, (limit_bytes, limit_bytes), weight, bucket_sum, self.accumulator, self.stage)
        if self.plan.overlap:
            return EarlyAllreduce(*arguments, microbatches=self.microbatches)
        return BucketedAllreduce(*arguments)
