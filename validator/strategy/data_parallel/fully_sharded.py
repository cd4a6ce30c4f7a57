"""ZeRO stages 2 and 3 by torch's `fully_shard`: workers shard optimizer states and gradients, in stage 3 parameters as well.

Stage 3 gathers each layer's parameters before its passes, `prefetch` layers ahead; stage 2 gathers all of them after a step
(arXiv 1910.02054). With `shard_over` each group of workers shards, and gradients are summed within and then over the groups
(hybrid sharding, arXiv 2304.11277).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.futures import Future

from scaleproof.simulator.strategy import DataParallel
from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.strategy.base import Context
from scaleproof.validator.strategy.data_parallel.microbatched import Microbatched
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.train.data import Batch


class FullySharded(Microbatched):
    """A worker with a shard of every layer."""

    def __init__(self, context: Context, strategy: DataParallel) -> None:
        super().__init__(context, strategy)
        plan, self.zero = strategy.plan, context.scenario.training.zero
        self.scatters_microbatches = plan.scatter == "microbatch"
        shape = (plan.workers // plan.sharing, plan.sharing)
        mesh = init_device_mesh(context.device.type, shape, mesh_dim_names=("replica", "shard"))
        self.shards = [cast(FSDPModule, layer) for layer in self.layers.values()]
        policy = MixedPrecisionPolicy(reduce_dtype=self.accumulator.precision.reduced)
        exchange = _ShardCollective(self.recorder, context.device.type, Team.along(mesh, "shard"), Team.along(mesh, "replica"))
        for shard in self.shards:
            keeps = self.zero < 3 or not plan.reshard
            module = cast(torch.nn.Module, shard)
            fully_shard(module, mesh=mesh["shard"], reshard_after_forward=not keeps, mp_policy=policy)
            exchange.attach(shard, plan.workers)
        # the root has no parameters of its own; it links the layers for prefetching
        fully_shard(self.module, mesh=mesh["shard"])
        for number, shard in enumerate(self.shards):
            ahead, behind = self.shards[number + 1 :], self.shards[:number][::-1]
            shard.set_modules_to_forward_prefetch(ahead[: plan.prefetch])
            shard.set_modules_to_backward_prefetch(behind[: plan.prefetch])
        # shards have replaced the parameters
        self.optimizer = context.optimizer(self.module.parameters())

    def train_on(self, part: Batch, microbatch: int) -> None:
        """Trains on a microbatch; scatters gradients after the last one, or after each."""
        for shard in self.shards:
            shard.set_reshard_after_backward(self.zero == 3 or self.is_last(microbatch))
            shard.set_requires_gradient_sync(self.scatters_microbatches or self.is_last(microbatch))
        super().train_on(part, microbatch)

    def update(self) -> None:
        """Applies the gradients; below ZeRO 3, all ranks get all parameters again."""
        super().update()
        if self.zero < 3:
            for handle in [shard.unshard(async_op=True) for shard in self.shards]:
                if handle is not None:
                    handle.wait()

    def parameters(self) -> Mapping[str, Tensor]:
        """The gathered parameters; to be called on all workers together."""
        for shard in self.shards:
            shard.reshard()
        own = super().parameters()
        return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in own.items()}


class _ShardCollective:
    """The collectives of `fully_shard`, each recorded as a span."""

    def __init__(self, recorder: Recorder, device: str, shard: Team, replica: Team) -> None:
        self.recorder = recorder
        self.shard, self.replica = Collectives(recorder, shard), Collectives(recorder, replica)
        # on GPUs streams wait for collectives, and the host goes on
        self.blocks = device == "cpu"

    def attach(self, module: FSDPModule, workers: int) -> None:
        """Has this object make the module's collectives. workers: number of workers over which gradients are averaged."""
        module.set_custom_all_gather(cast(Any, _Gather(self)))
        module.set_custom_reduce_scatter(cast(Any, _Scatter(self)))
        module.set_gradient_divide_factor(float(workers))
        # gloo has no other reduction
        module.set_force_sum_reduction_for_comms(True)
        if self.replica.team.size > 1:
            module.set_all_reduce_hook(self.sum_over_groups)

    def gather(self, output: Tensor, own: Tensor) -> dist.Work:
        """Starts to gather; the pass is blocked from when it waits until the result has arrived."""
        end = self.shard.begin(output)
        work = self.shard.begin_gather(output, own)
        noted = work.get_future().then(lambda _: end())
        return _RecordedWork(work, noted, self)

    def scatter(self, output: Tensor, whole: Tensor) -> None:
        """Sums and scatters gradients. torch uses the sum at once, so that on a CPU the pass is blocked."""
        begin, end = self.recorder.now(), self.shard.begin(whole)
        self._finish(self.shard.begin_scatter(output, whole), begin, end)

    def sum_over_groups(self, scattered: Tensor) -> None:
        """Sums gradients over the groups after each group has scattered its own."""
        begin, end = self.recorder.now(), self.replica.begin(scattered)
        work = dist.all_reduce(scattered, group=self.replica.team.group, async_op=True)
        assert work is not None
        self._finish(work, begin, end)

    def wait(self, work: dist.Work, begin: Any) -> None:
        """Waits for a collective whose result the pass has needed since the mark `begin`."""
        if not self.blocks:
            work.wait()
            return
        with self.recorder.waiting(begin):
            work.wait()

    def _finish(self, work: dist.Work, begin: Any, end: Callable[[], None]) -> None:
        """Waits for a collective and records it. gloo's reduce-scatter has no future that reports its end."""
        if not self.blocks:
            work.get_future().add_done_callback(lambda _: end())
        self.wait(work, begin)
        if self.blocks:
            end()


class _RecordedWork(dist.Work):
    """A collective that records the waiting for it."""

    def __init__(self, work: dist.Work, noted: Future[None], exchange: _ShardCollective) -> None:
        super().__init__()
        self._work, self._noted, self._exchange = work, noted, exchange

    def wait(self, timeout: Any = None) -> bool:
        self._exchange.wait(self._work, self._exchange.recorder.now())
        # its span belongs to this step
        self._noted.wait()
        return True


class _ShardAllocator:
    """Allocates the buffers of `fully_shard`."""

    def __init__(self, exchange: _ShardCollective) -> None:
        self._exchange = exchange

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_ShardAllocator):
    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False) -> Any:
        return self._exchange.gather(output_tensor, input_tensor)


class _Scatter(_ShardAllocator):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> Any:
        self._exchange.scatter(output_tensor, input_tensor)
