"""ZeRO stage 3 by torch's `fully_shard`: workers shard parameters, gradients and optimizer states (arXiv 1910.02054).

Each layer's parameters are gathered before its passes, `prefetch` layers ahead. With `shard_over` each group of workers shards,
and gradients are summed within and then over the groups (hybrid sharding, arXiv 2304.11277).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.futures import Future

from scaleproof.simulator.parallelism import DataParallel
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.strategy.base import Context, Sharing
from scaleproof.validator.strategy.data_parallel.gradient_precision import GradientPrecision
from scaleproof.validator.strategy.data_parallel.microbatched import MicrobatchedReplica, weight_of
from scaleproof.validator.strategy.data_parallel.zero import SHARDING
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.layout.mesh import divided
from scaleproof.validator.strategy.layout.parts_of_matrices import PartsOfMatrices, rows_of
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.train.data import Batch
from scaleproof.validator.train.models.fine_tuning import trained_parameters
from scaleproof.validator.train.muon import is_matrix


class FullySharded(MicrobatchedReplica):
    """A worker with a shard of every layer."""

    def __init__(self, context: Context, strategy: DataParallel) -> None:
        plan = strategy.plan
        self.weight = plan.workers * weight_of(context)
        self._shard, self._groups = (
            Team.of(teams, name) for teams, name in zip(divided([range(plan.workers)], plan.sharing), SHARDING, strict=True)
        )
        self._sharder = LayerSharder(context, GradientPrecision.of(context.scenario.training).reduced, plan.workers)
        self._sharded: list[list[FSDPModule]] = []
        super().__init__(context, strategy)
        self._sharder.link(self.module, self._sharded, self._shard)
        self.prepare_backward = BackwardSettings(self._sharded, plan)

    def prepare(self, number: int, layer: nn.Module) -> None:
        """Shards a layer before the next one is built: whole models may not fit into a device."""
        super().prepare(number, layer)
        self._sharded.append([self._sharder.shard(layer, self._shard, self._groups)])

    @property
    def optimizer_sharing(self) -> Sharing:
        """How workers share the parameters."""
        return self._sharder.sharing(trained_parameters(self.module), self._shard, self._groups)

    def train_on(self, part: Batch, microbatch: int) -> None:
        """Trains on a microbatch; scatters gradients after the last one, or after each."""
        self.prepare_backward()
        super().train_on(part, microbatch)

    def loss_of(self, part: Batch, microbatch: int) -> Tensor:
        """A microbatch's loss, weighted by this worker's share of the samples: gradients are divided by the workers."""
        return super().loss_of(part, microbatch) * self.weight

    def parameters(self) -> Mapping[str, Tensor]:
        """The gathered parameters; to be called on all workers together."""
        for layer in self.layers.values():
            cast(FSDPModule, layer).reshard()
        return {name: full(value) for name, value in super().parameters().items()}


class LayerSharder:
    """Shards layers by `fully_shard`."""

    def __init__(self, context: Context, reduced: torch.dtype, divisor: int, stage: int = -1) -> None:
        """reduced: data type of summed gradients. divisor: by which sums of gradients are divided."""
        self._context, self._divisor, self._stage = context, divisor, stage
        self._plan = context.scenario.strategy.plan
        self._policy = MixedPrecisionPolicy(reduce_dtype=reduced)
        is_offloaded = "parameters" in context.scenario.training.offload
        self._offload = CPUOffloadPolicy(pin_memory=context.device.type == "cuda") if is_offloaded else OffloadPolicy()
        self._collectives: dict[tuple[int, int], _ShardCollective] = {}
        # on GPUs streams wait for collectives, and the host goes on
        self._waits = _StreamWaits(context.recorder) if context.device.type == "cuda" else None
        self._meshes: dict[int, DeviceMesh] = {}

    def shard(self, module: nn.Module, shard: Team, groups: Team) -> FSDPModule:
        """Shards a module's parameters, without those of modules in it that are sharded already, over the ranks of a team.

        groups: the ranks with the same shard, which sum gradients after they have been scattered.
        """
        key = shard.number, groups.number
        if key not in self._collectives:
            teams = (Collectives(self._context.recorder, team, self._stage) for team in (shard, groups))
            self._collectives[key] = _ShardCollective(self._context, self._waits, *teams)
        mesh, keeps = self._mesh(shard), not self._plan.reshard
        fully_shard(module, mesh=mesh, reshard_after_forward=not keeps, mp_policy=self._policy, offload_policy=self._offload)
        self._collectives[key].attach(cast(FSDPModule, module), self._divisor)
        return cast(FSDPModule, module)

    def link(self, root: nn.Module, layers: Sequence[Sequence[FSDPModule]], shard: Team) -> None:
        """Links the layers of a root module, which has no parameters of its own, in forward order: each pass gathers the
        parameters of the next `prefetch` layers ahead. layers: of each layer the sharded modules."""
        fully_shard(root, mesh=self._mesh(shard))
        ahead = self._plan.prefetch
        # of the first stage, frozen layers below all trained ones have no backward pass
        trained = (
            number for number, modules in enumerate(layers) if any(trained_parameters(cast(nn.Module, one)) for one in modules)
        )
        first = next(trained, 0) if self._stage <= 0 else 0
        for number, modules in enumerate(layers):
            following, previous = layers[number + 1 :][:ahead], layers[first : max(first, number)][::-1][:ahead]
            modules[0].set_modules_to_forward_prefetch(list(chain(*following)))
            # for an empty list torch would choose a layer, in pipelines one of another microbatch; this one is there already
            modules[0].set_modules_to_backward_prefetch(list(chain(*previous)) or [modules[0]])

    def sharing(self, parameters: Sequence[nn.Parameter], shard: Team, groups: Team) -> Sharing:
        """How the ranks of a team share parameters. groups: see `shard`."""
        matrices = [parameter for parameter in parameters if is_matrix(parameter)]
        rows = [rows_of(matrix.shape, shard.size, number) for number, matrix in enumerate(matrices)]
        pieces = [[pieces[place] for pieces in rows] for place in range(shard.size)]
        collectives = self._collectives[shard.number, groups.number].shard
        return Sharing(PartsOfMatrices(collectives, [matrix.shape for matrix in matrices], pieces))

    def _mesh(self, team: Team) -> DeviceMesh:
        if team.number not in self._meshes:
            assert team.group is not None, "teams that shard have a group of their own"
            self._meshes[team.number] = DeviceMesh.from_group(team.group, self._context.device.type)
        return self._meshes[team.number]


class BackwardSettings:
    """Settings of a stage's layers, to be applied before each backward pass: whether gradients are scattered after it, and
    whether parameters are freed."""

    def __init__(self, layers: Sequence[Sequence[FSDPModule]], plan: Plan) -> None:
        self._modules, self._plan = list(chain(*layers)), plan
        self._passes = 0

    def __call__(self) -> None:
        """Applies the settings of the step's next pass."""
        self._passes = self._passes % self._plan.microbatches + 1
        is_last = self._passes == self._plan.microbatches
        for module in self._modules:
            module.set_requires_gradient_sync(is_last or self._plan.scatter == "microbatch", recurse=False)
            module.set_reshard_after_backward(is_last or self._plan.gathering(3) != "once a step", recurse=False)


def full(tensor: Tensor) -> Tensor:
    """A tensor that may be sharded, gathered; to be called on all ranks together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class _StreamWaits:
    """Where a GPU's stream of computation waits for collectives, recorded as interruptions of its passes.

    torch has it wait for gathered parameters before it copies them to their place, for the previous scatter before it copies
    gradients for the next one, and at the end of a backward pass for all that is left. These points are methods of a module's
    group of parameters, which are private, as in torch 2.11 to 2.13.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # when parameters were last needed; the end of the last scatter; the ends of all reductions of a backward pass
        self.needed: Any = None
        self._scattered: list[torch.cuda.Event] = []
        self._reduced: list[torch.cuda.Event] = []

    def attach(self, module: FSDPModule) -> None:
        """Records the waits for a module's collectives."""
        group: Any = cast(Any, module)._get_fsdp_state()._fsdp_param_group
        if group is None:
            return
        wait_for_unshard, post_backward, finalize_backward = (
            group.wait_for_unshard, group.post_backward, group.finalize_backward
        )  # fmt: skip

        def begin_to_wait() -> None:
            self.needed = self._recorder.now()
            wait_for_unshard()

        def reduce(*unused: Any) -> None:
            if group.reduce_grads:
                for parameter in group.fsdp_params:
                    # adds gradients of earlier microbatches, which is no wait; torch finds nothing left to add
                    parameter.accumulate_unsharded_grad_if_needed()
                self._wait(self._scattered)
            before = group._post_reduce_event
            post_backward(*unused)
            if group._post_reduce_event is not before:
                self._reduced.append(group._post_reduce_event)

        def end_backward() -> None:
            self._scattered.clear()
            self._wait(self._reduced)
            finalize_backward()

        group.wait_for_unshard, group.post_backward, group.finalize_backward = begin_to_wait, reduce, end_backward

    def note_scatter(self) -> None:
        """Notes that what the current stream has done so far ends with a scatter."""
        self._scattered.append(torch.cuda.current_stream().record_event())

    def _wait(self, events: list[torch.cuda.Event]) -> None:
        """Has the stream of computation wait for events, if there are any, as torch does right after."""
        if events:
            with self._recorder.waiting(self._recorder.now()):
                for event in events:
                    torch.cuda.current_stream().wait_event(event)
            events.clear()


class _ShardCollective:
    """The collectives of `fully_shard`, each recorded as a span.

    waits: those of a GPU's stream of computation; None on a CPU, which waits itself.
    """

    def __init__(self, context: Context, waits: _StreamWaits | None, shard: Collectives, replica: Collectives) -> None:
        self.recorder, self.shard, self.replica = context.recorder, shard, replica
        self._link = context.host_link
        self.waits = waits

    def attach(self, module: FSDPModule, divisor: int) -> None:
        """Has this object make the module's collectives. divisor: by which sums of gradients are divided."""
        module.set_custom_all_gather(cast(Any, _Gather(self)))
        module.set_custom_reduce_scatter(cast(Any, _Scatter(self)))
        # where one rank has the whole module, torch divides twice (2.13)
        is_whole = self.shard.team.size == 1
        module.set_gradient_divide_factor(1.0 if is_whole else float(divisor))
        # gloo has no other reduction
        module.set_force_sum_reduction_for_comms(True)

        def finish(scattered: Tensor) -> None:
            if is_whole:
                scattered.div_(divisor)
            if self.replica.team.size > 1:
                self.sum_over_groups(scattered)

        if is_whole or self.replica.team.size > 1:
            module.set_all_reduce_hook(finish)
        if self.waits is not None:
            self.waits.attach(module)

    def gather(self, output: Tensor, own: Tensor) -> dist.Work:
        """Starts to gather; the pass is blocked from when it waits until the result has arrived."""
        link = self._link if self._link is not None and self._link.fetches_shards else None
        begin_s, fetched_s = time.perf_counter(), 0.0 if link is None else link.fetch_shards(own.nbytes)
        end, ended_s = self.shard.begin(output), list[float]()
        work = self.shard.begin_gather(output, own)

        def note(_: Future[Any]) -> None:
            end()
            ended_s.append(time.perf_counter())

        noted = work.get_future().then(note)

        def wait() -> None:
            if link is not None:
                link.note_wait()
            work.wait()
            # its span belongs to this step
            noted.wait()
            if link is not None:
                time.sleep(max(0.0, link.gathered_s(begin_s, ended_s[0], fetched_s) - time.perf_counter()))

        return _RecordedWork(wait, self)

    def scatter(self, output: Tensor, whole: Tensor) -> None:
        """Sums and scatters gradients. torch uses the sum at once, so that on a CPU the pass is blocked."""
        begin, end = self.recorder.now(), self.shard.begin(whole)
        self._finish(self.shard.begin_scatter(output, whole), begin, end)
        if self.waits is not None:
            self.waits.note_scatter()
        if self._link is not None:
            self._link.send(output.numel())

    def sum_over_groups(self, scattered: Tensor) -> None:
        """Sums gradients over the groups after each group has scattered its own."""
        begin, end = self.recorder.now(), self.replica.begin(scattered)
        work = dist.all_reduce(scattered, group=self.replica.team.group, async_op=True)
        assert work is not None
        self._finish(work, begin, end)

    def wait_for_gather(self, wait: Callable[[], None]) -> None:
        """Waits for gathered parameters, which the pass needs now."""
        with self.recorder.waiting(self.recorder.now() if self.waits is None else self.waits.needed):
            wait()

    def _finish(self, work: dist.Work, begin: Any, end: Callable[[], None]) -> None:
        """Waits for a collective and records it. gloo's reduce-scatter has no future that reports its end."""
        if self.waits is None:
            with self.recorder.waiting(begin):
                work.wait()
            end()
        else:
            work.get_future().add_done_callback(lambda _: end())
            # a stream of its own
            work.wait()


class _RecordedWork(dist.Work):
    """A collective that records the waiting for it."""

    def __init__(self, wait: Callable[[], None], exchange: _ShardCollective) -> None:
        super().__init__()
        self._wait, self._exchange = wait, exchange

    def wait(self, timeout: Any = None) -> bool:
        self._exchange.wait_for_gather(self._wait)
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
