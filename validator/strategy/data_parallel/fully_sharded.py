"""ZeRO's stages 2 and 3 by torch's `fully_shard`: workers share out states and gradients, and parameters too or not.

Stage 3 gathers each layer's parameters before its passes, `prefetch` layers ahead; stage 2 gathers all of them after a step
(arXiv 1910.02054). Where groups of workers share (`shard_over`), what a group has summed is summed over the groups (hybrid
sharding, arXiv 2304.11277).
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
    """A worker that holds a share of every layer."""

    def __init__(self, context: Context, strategy: DataParallel) -> None:
        super().__init__(context, strategy)
        plan, self.zero = strategy.plan, context.scenario.training.zero
        self.scatters_each = plan.scatter == "microbatch"
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
        # the root has nothing of its own; it knows of all layers, which look ahead to one another
        fully_shard(self.module, mesh=mesh["shard"])
        for number, shard in enumerate(self.shards):
            ahead, behind = self.shards[number + 1 :], self.shards[:number][::-1]
            shard.set_modules_to_forward_prefetch(ahead[: plan.prefetch])
            shard.set_modules_to_backward_prefetch(behind[: plan.prefetch])
        # shares have taken the parameters' place
        self.optimizer = context.optimizer(self.module.parameters())

    def train_on(self, part: Batch, microbatch: int) -> None:
        for shard in self.shards:
            shard.set_reshard_after_backward(self.zero == 3 or self.is_last(microbatch))
            shard.set_requires_gradient_sync(self.scatters_each or self.is_last(microbatch))
        super().train_on(part, microbatch)

    def update(self) -> None:
        super().update()
        if self.zero < 3:
            for handle in [shard.unshard(async_op=True) for shard in self.shards]:
                if handle is not None:
                    handle.wait()

    def parameters(self) -> Mapping[str, Tensor]:
        """Gathered: all workers must ask together."""
        for shard in self.shards:
            shard.reshard()
        own = super().parameters()
        return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in own.items()}


class _ShardCollective:
    """What `fully_shard` sends, as it asks for it, with a span for each collective."""

    def __init__(self, recorder: Recorder, device: str, shard: Team, replica: Team) -> None:
        self.recorder = recorder
        self.shard, self.replica = Collectives(recorder, shard), Collectives(recorder, replica)
        # on GPUs streams wait for collectives, and the host goes on
        self.blocks = device == "cpu"

    def attach(self, module: FSDPModule, workers: int) -> None:
        """Has all that the module sends go through here. workers: of all groups, whose gradients are averaged."""
        module.set_custom_all_gather(cast(Any, _Gather(self)))
        module.set_custom_reduce_scatter(cast(Any, _Scatter(self)))
        module.set_gradient_divide_factor(float(workers))
        # gloo has no other
        module.set_force_sum_reduction_for_comms(True)
        if self.replica.team.size > 1:
            module.set_all_reduce_hook(self.sum_over_groups)

    def gather(self, output: Tensor, own: Tensor) -> dist.Work:
        """Begins to gather; the pass is held up when it waits for that, if it is not there by then."""
        end = self.shard.begin(output)
        work = self.shard.begin_gather(output, own)
        noted = work.get_future().then(lambda _: end())
        return _Awaited(work, noted, self)

    def scatter(self, output: Tensor, whole: Tensor) -> None:
        """Sums and scatters gradients. torch goes on with the sum at once, so on a CPU the pass is held up."""
        begin, end = self.recorder.now(), self.shard.begin(whole)
        self._finish(self.shard.begin_scatter(output, whole), begin, end)

    def sum_over_groups(self, scattered: Tensor) -> None:
        """Sums over the groups what each has scattered inside it."""
        begin, end = self.recorder.now(), self.replica.begin(scattered)
        work = dist.all_reduce(scattered, group=self.replica.team.group, async_op=True)
        assert work is not None
        self._finish(work, begin, end)

    def wait(self, work: dist.Work, begin: Any) -> None:
        """The pass needs what is gathered or summed, since `begin`."""
        if not self.blocks:
            work.wait()
            return
        with self.recorder.waiting(begin):
            work.wait()

    def _finish(self, work: dist.Work, begin: Any, end: Callable[[], None]) -> None:
        """Waits for a collective, and notes it. gloo's scatter has no future that would tell when it is done."""
        if not self.blocks:
            work.get_future().add_done_callback(lambda _: end())
        self.wait(work, begin)
        if self.blocks:
            end()


class _Awaited(dist.Work):
    """A collective; whoever waits for it is seen to."""

    def __init__(self, work: dist.Work, noted: Future[None], exchange: _ShardCollective) -> None:
        super().__init__()
        self._work, self._noted, self._exchange = work, noted, exchange

    def wait(self, timeout: Any = None) -> bool:
        self._exchange.wait(self._work, self._exchange.recorder.now())
        # its span belongs to this step
        self._noted.wait()
        return True


class _ShardAllocator:
    """Where `fully_shard` has its buffers from."""

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
