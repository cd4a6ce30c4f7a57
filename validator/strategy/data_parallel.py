"""Data parallelism with allreduce: DistributedDataParallel where buckets overlap with the backward pass."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from simulator.run import Phase
from simulator.strategy import DataParallel
from validator import model
from validator.data import Batch, share_of
from validator.strategy import fully_sharded
from validator.strategy.base import Context, Trainer, WholeModel, apply_update
from validator.strategy.buckets import Bucket, BucketedAllreduce
from validator.strategy.carried import exchange_of
from validator.strategy.team import Team


def create(context: Context, strategy: DataParallel) -> Trainer:
    """The trainer of this rank's worker."""
    if context.scenario.training.zero:
        return fully_sharded.create(context, strategy)
    if strategy.workers == 1:
        return Alone(context, strategy)
    return Overlapped(context, strategy) if strategy.overlap else AfterBackward(context, strategy)


class Alone(WholeModel):
    """One worker that talks to nobody. Gradients of all its microbatches are added up before they are applied."""

    def __init__(self, context: Context, strategy: DataParallel) -> None:
        super().__init__(context, context.rank)
        self.microbatches = strategy.microbatches
        self.optimizer = context.optimizer(self.module.parameters())

    def step(self, index: int) -> None:
        batch = self.batches[index]
        size = len(batch.targets) // self.microbatches
        for number in range(self.microbatches):
            part = slice(number * size, (number + 1) * size)
            self.train_on(Batch(batch.inputs[part], batch.targets[part]), number)
        self.update()

    def train_on(self, part: Batch, microbatch: int) -> None:
        """Adds a microbatch's gradients to those of the others."""
        loss = self.loss_of(part, microbatch)
        with self.recorder.span(Phase.BACKWARD, microbatch=microbatch):
            loss.backward()  # type: ignore[no-untyped-call]

    def loss_of(self, part: Batch, microbatch: int) -> Tensor:
        """A microbatch's part of the mean over the worker's samples."""
        with self.recorder.span(Phase.FORWARD, microbatch=microbatch):
            loss = model.loss(self.module(part.inputs), part.targets)
        self.note_loss(loss, len(part.targets))
        return loss / self.microbatches

    def update(self) -> None:
        apply_update(self.recorder, self.optimizer)

    def is_last(self, microbatch: int) -> bool:
        return microbatch == self.microbatches - 1


class AfterBackward(Alone):
    """Buckets are summed once the backward pass is over."""

    def __init__(self, context: Context, strategy: DataParallel) -> None:
        super().__init__(context, strategy)
        team = Team.everybody()
        self.buckets = BucketedAllreduce(
            self.module.parameters(),
            self.recorder,
            strategy.first_bucket_bytes,
            strategy.bucket_bytes,
            team,
            weight=weight_of(context),
            exchange=exchange_of(context, team, strategy.compression, strategy.algorithm),
        )

    def train_on(self, part: Batch, microbatch: int) -> None:
        super().train_on(part, microbatch)
        if self.is_last(microbatch):
            self.buckets.average()


class Overlapped(Alone):
    """Buckets are summed by DistributedDataParallel while the backward pass goes on."""

    def __init__(self, context: Context, strategy: DataParallel) -> None:
        super().__init__(context, strategy)
        self.weight = weight_of(context)
        self.exchange = exchange_of(context, Team.everybody(), strategy.compression, strategy.algorithm)
        self.number = {id(parameter): place for place, parameter in enumerate(self.module.parameters())}
        self.computed: Any = None
        # autograd reaches the first layer last; noted before its gradients are handed to DistributedDataParallel
        first = next(held for held in (list(layer.parameters()) for layer in self.layers.values()) if held)
        for parameter in first:
            parameter.register_post_accumulate_grad_hook(self._note_computed)  # type: ignore[no-untyped-call]
        # typed as whole MiB, taken as any number of them
        limits_mib: list[Any] = [limit / 2**20 for limit in (strategy.first_bucket_bytes, strategy.bucket_bytes)]
        # buffers are constants
        self.parallel = DistributedDataParallel(self.module, bucket_cap_mb_list=limits_mib, broadcast_buffers=False)
        self.module = self.parallel
        # a hook's annotations would have to be classes, which postponed ones are not
        self.parallel.register_comm_hook(None, lambda _, bucket: self._sum(bucket))

    def train_on(self, part: Batch, microbatch: int) -> None:
        if not self.is_last(microbatch):
            with self.parallel.no_sync():
                super().train_on(part, microbatch)
            return
        loss = self.loss_of(part, microbatch)
        begin = self.recorder.now()
        self.recorder.enter(Phase.BACKWARD)
        loss.backward()  # type: ignore[no-untyped-call]
        self.recorder.add(Phase.BACKWARD, begin, self.computed, microbatch=microbatch)
        self.recorder.add(Phase.SYNCHRONISE, self.computed, self.recorder.now())

    def _note_computed(self, _: Tensor) -> None:
        self.computed = self.recorder.now()
        self.recorder.enter(Phase.SYNCHRONISE)

    def _sum(self, filled: GradBucket) -> Future[Tensor]:
        """Sums one bucket over the workers, as DistributedDataParallel asks for it."""
        numbers = [self.number[id(parameter)] for parameter in filled.parameters()]
        flat = filled.buffer().mul_(self.weight)
        return self.exchange.begin(Bucket(filled.index(), flat, filled.gradients(), numbers))


def weight_of(context: Context) -> float:
    """What the mean gradient of this worker's samples counts for in the mean over all."""
    share = share_of(context.scenario, context.rank)
    return float(share.stop - share.start) / context.scenario.total_samples
