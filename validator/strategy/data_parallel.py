"""Data parallelism with ring allreduce: DistributedDataParallel where buckets overlap with the backward pass."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from simulator.run import Phase
from simulator.strategy import DataParallel
from validator.strategy import fully_sharded
from validator.strategy.base import Context, Trainer, WholeModel, apply_update
from validator.strategy.buckets import BucketedAllreduce, allreduce
from validator.strategy.team import Team


def create(context: Context, strategy: DataParallel) -> Trainer:
    """The trainer of this rank's worker."""
    if context.scenario.training.zero:
        return fully_sharded.create(context, strategy)
    if strategy.workers == 1:
        return Alone(context, context.rank)
    return Overlapped(context, strategy) if strategy.overlap else AfterBackward(context, strategy)


class Alone(WholeModel):
    """One worker that talks to nobody."""

    def __init__(self, context: Context, worker: int) -> None:
        super().__init__(context, worker)
        self.optimizer = context.optimizer(self.module.parameters())

    def update(self) -> None:
        apply_update(self.recorder, self.optimizer)


class AfterBackward(Alone):
    """Buckets are summed once the backward pass is over."""

    def __init__(self, context: Context, strategy: DataParallel) -> None:
        super().__init__(context, context.rank)
        self.buckets = BucketedAllreduce(
            self.module.parameters(),
            self.recorder,
            strategy.first_bucket_bytes,
            strategy.bucket_bytes,
            Team.everybody(),
        )

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        self.buckets.average()


class Overlapped(Alone):
    """Buckets are summed by DistributedDataParallel while the backward pass goes on."""

    def __init__(self, context: Context, strategy: DataParallel) -> None:
        super().__init__(context, context.rank)
        self.team = Team.everybody()
        self.computed_s = 0.0
        # autograd reaches the first layer last; noted before its gradients are handed to DistributedDataParallel
        for parameter in self.layers[0].parameters():
            parameter.register_post_accumulate_grad_hook(self._note_computed)  # type: ignore[no-untyped-call]
        # typed as whole MiB, taken as any number of them
        limits_mib: list[Any] = [limit / 2**20 for limit in (strategy.first_bucket_bytes, strategy.bucket_bytes)]
        self.module = DistributedDataParallel(self.module, bucket_cap_mb_list=limits_mib)
        # a hook's annotations would have to be classes, which postponed ones are not
        self.module.register_comm_hook(None, lambda _, bucket: self._average(bucket))

    def backward(self, loss: Tensor) -> None:
        begin_s = self.recorder.now()
        self.recorder.enter(Phase.BACKWARD)
        loss.backward()  # type: ignore[no-untyped-call]
        self.recorder.add(Phase.BACKWARD, begin_s, self.computed_s)
        self.recorder.add(Phase.SYNCHRONISE, self.computed_s, self.recorder.now())

    def _note_computed(self, _: Tensor) -> None:
        self.computed_s = self.recorder.now()
        self.recorder.enter(Phase.SYNCHRONISE)

    def _average(self, bucket: GradBucket) -> Future[Tensor]:
        """Averages one bucket over the workers, as DistributedDataParallel asks for it."""
        flat = bucket.buffer().div_(self.team.size)
        return allreduce(flat, self.recorder, self.team, bucket.index()).then(lambda summed: summed.value()[0])
