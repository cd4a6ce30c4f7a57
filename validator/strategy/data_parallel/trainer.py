"""Data parallelism with allreduce: DistributedDataParallel where buckets overlap with the backward pass."""

from __future__ import annotations

from typing import Any
from weakref import WeakMethod

from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.parallelism import DataParallel
from scaleproof.simulator.parallelism.replicas import compared_workers
from scaleproof.validator.strategy.base import Context, Trainer
from scaleproof.validator.strategy.data_parallel.buckets import Bucket, BucketedAllreduce, EarlyAllreduce
from scaleproof.validator.strategy.data_parallel.gradient_precision import GradientPrecision
from scaleproof.validator.strategy.data_parallel.microbatched import MicrobatchedReplica, weight_of
from scaleproof.validator.strategy.data_parallel.threaded_sum import bucket_sum_of
from scaleproof.validator.strategy.data_parallel.zero import ShardedWorker
from scaleproof.validator.strategy.data_parallel.zero_3 import FullySharded
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.train.data import Batch
from scaleproof.validator.train.models.fine_tuning import trained_parameters


def create(context: Context, strategy: DataParallel) -> Trainer:
    """The trainer of this rank's worker."""
    if strategy.workers == 1:
        return MicrobatchedReplica(context, strategy)
    if context.scenario.training.zero:
        return (FullySharded if context.scenario.training.zero == 3 else ShardedWorker)(context, strategy)
    # DistributedDataParallel uses one precision for gradients, and its backward pass has no interruptions
    by_ddp = strategy.overlap and GradientPrecision.of(context.scenario.training).is_uniform
    by_ddp = by_ddp and not strategy.plan.exchanges_rows and compared_workers(context.scenario.model, strategy) == 1
    return Ddp(context, strategy) if by_ddp else OwnBuckets(context, strategy)


class OwnBuckets(MicrobatchedReplica):
    """Sums buckets after the backward pass, or with `overlap` during that of the last microbatch."""

    def __init__(self, context: Context, strategy: DataParallel) -> None:
        super().__init__(context, strategy)
        arguments = (
            trained_parameters(self.module),
            self.recorder,
            strategy.plan.bucket_limits_bytes,
            weight_of(context),
            bucket_sum_of(context, Team.everybody()),
            self.accumulator,
        )
        self.buckets = (
            EarlyAllreduce(*arguments, microbatches=self.microbatches) if strategy.overlap else BucketedAllreduce(*arguments)
        )

    def train_on(self, part: Batch, microbatch: int) -> None:
        """Trains on a microbatch; averages gradients after the last one."""
        super().train_on(part, microbatch)
        if self.is_last(microbatch):
            self.buckets.average()

    def close(self) -> None:
        """Ends the sums of buckets."""
        self.buckets.close()
        super().close()


class Ddp(MicrobatchedReplica):
    """DistributedDataParallel sums buckets during the backward pass."""

    def __init__(self, context: Context, strategy: DataParallel) -> None:
        super().__init__(context, strategy)
        self.weight = weight_of(context)
        self.bucket_sum = bucket_sum_of(context, Team.everybody())
        self.number = {id(parameter): place for place, parameter in enumerate(trained_parameters(self.module))}
        self.computed: Any = None
        # autograd reaches the first trained layer last; its hooks run before those of DistributedDataParallel
        first = next(own for own in map(trained_parameters, self.layers.values()) if own)
        self.hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(self._note_computed)  # type: ignore[no-untyped-call]
            for parameter in first
        ]
        # undocumented, as in torch 2.11 to 2.13; annotated as integers of MiB, but fractions work
        limits_mib: list[Any] = [limit / 2**20 for limit in strategy.plan.bucket_limits_bytes]
        # buffers are constants
        self.parallel = DistributedDataParallel(self.module, bucket_cap_mb_list=limits_mib, broadcast_buffers=False)
        self.module = self.parallel
        # torch's reducer keeps the hook where the garbage collector does not see it, so the hook must not keep the trainer
        sum_bucket: Any = WeakMethod(self._sum)
        # a lambda, as torch checks annotations and does not accept postponed ones
        self.parallel.register_comm_hook(None, lambda _, bucket: sum_bucket()(bucket))

    def train_on(self, part: Batch, microbatch: int) -> None:
        """Trains on a microbatch; DistributedDataParallel averages gradients in the backward pass of the last one."""
        if not self.is_last(microbatch):
            with self.parallel.no_sync():
                super().train_on(part, microbatch)
            return
        loss = self.context.scaled(self.loss_of(part, microbatch))
        begin = self.recorder.now()
        self.recorder.enter(Phase.BACKWARD)
        loss.backward()  # type: ignore[no-untyped-call]
        self.recorder.add(Phase.BACKWARD, begin, self.computed, microbatch=microbatch)
        self.recorder.add(Phase.SYNCHRONISE, self.computed, self.recorder.now())

    def close(self) -> None:
        """Removes the hooks of parameters and ends the sums of buckets."""
        for hook in self.hooks:
            hook.remove()
        self.bucket_sum.close()
        super().close()

    def _note_computed(self, _: Tensor) -> None:
        self.computed = self.recorder.now()
        self.recorder.enter(Phase.SYNCHRONISE)

    def _sum(self, filled: GradBucket) -> Future[Tensor]:
        """Sums one bucket over the workers, as DistributedDataParallel's communication hook."""
        numbers = [self.number[id(parameter)] for parameter in filled.parameters()]
        flat = filled.buffer().mul_(self.weight)
        return self.bucket_sum.begin(Bucket(flat, filled.gradients(), numbers))
