"""A process group for ranks that share GPUs: tensors are staged in the host's memory and sent by gloo.

NCCL allows one rank per GPU, and gloo's messages take CPU tensors only. Staging is correct but slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.distributed import AllreduceOptions, ProcessGroupGloo
from torch.distributed.distributed_c10d import _get_process_group_name

from scaleproof.validator.record.provenance import STAGED

BACKEND: Final = STAGED
_NO_TIMEOUT: Final = timedelta(0)


class StagedGroup(dist.ProcessGroup):
    """Runs each collective and message by gloo on copies in the host's memory, which are copied back afterwards."""

    def __init__(self, gloo: Any, rank: int, ranks: int) -> None:
        super().__init__(rank, ranks)  # type: ignore[call-arg]
        self._gloo = gloo

    def getBackendName(self) -> str:
        """The name under which torch knows the backend."""
        return BACKEND

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """The name that torch gave this group; torch itself looks for it only in native groups."""
        return str(_get_process_group_name(self))

    def allreduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:  # type: ignore[override]
        """Reduces tensors over all ranks, on each rank."""
        copies = _copied(tensors)
        return _collective(self._gloo.allreduce(copies, opts), copies, tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> dist.Work:  # type: ignore[override]
        """Sends tensors of one rank to all ranks."""
        copies = _copied(tensors)
        return _collective(self._gloo.broadcast(copies, opts), copies, tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> dist.Work:  # type: ignore[override]
        """Collects the tensors of all ranks on each rank."""
        copies = [_copied(tensors) for tensors in outputs]
        work = self._gloo.allgather(copies, _copied(inputs), opts)
        return _collective(work, list(chain(*copies)), list(chain(*outputs)))

    def reduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:  # type: ignore[override]
        """Reduces tensors over all ranks, on one rank."""
        copies = _copied(tensors)
        return _collective(self._gloo.reduce(copies, opts), copies, tensors)

    def _allgather_base(self, output: Tensor, own: Tensor, opts: Any) -> dist.Work:  # type: ignore[override]
        return self.allgather([list(output.view(self.size(), *own.shape))], [own], opts)

    def allgather_into_tensor_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> dist.Work:  # type: ignore[override]
        """Collects one tensor of each rank in a single tensor."""
        [output], [own] = outputs, inputs
        return self._allgather_base(output, own, opts)

    def _reduce_scatter_base(self, output: Tensor, whole: Tensor, opts: Any) -> dist.Work:
        """Makes an allreduce and keeps this rank's part: gloo's reduce-scatter has no future."""
        [copy] = _copied([whole])
        summing = AllreduceOptions()
        summing.reduceOp = opts.reduceOp
        own = copy.view(self.size(), *output.shape)[self.rank()]
        return _collective(self._gloo.allreduce([copy], summing), [own], [output])

    def alltoall_base(  # type: ignore[override]
        self, output: Tensor, own: Tensor, received: list[int], sent: list[int], opts: Any
    ) -> dist.Work:
        """Sends a part of the tensor to each rank. received, sent: rows by rank."""
        [copy], [theirs] = _copied([own]), _copied([output])
        return _collective(self._gloo.alltoall_base(theirs, copy, received, sent, opts), [theirs], [output])

    # names from torch 2.13 on
    all_gather_single = _allgather_base  # type: ignore[assignment]
    all_gather_single_coalesced = allgather_into_tensor_coalesced  # type: ignore[assignment]
    reduce_scatter_single = _reduce_scatter_base  # type: ignore[assignment]
    all_to_all_single = alltoall_base  # type: ignore[assignment]

    def barrier(self, opts: Any) -> dist.Work:  # type: ignore[override]
        """Waits for all ranks."""
        work: dist.Work = self._gloo.barrier(opts)
        return work

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> dist.Work:
        """Sends copies of tensors to a rank."""
        copies = _copied(tensors)
        return _Message(self._gloo.send(copies, peer, tag), copies, ())

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> dist.Work:
        """Receives tensors from a rank."""
        copies = _copied(tensors)
        return _Message(self._gloo.recv(copies, peer, tag), copies, tensors)


class _Message(dist.Work):
    """A message under way. targets: the tensors to which `wait` copies a received message; none for a sent one."""

    def __init__(self, work: dist.Work, copies: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        super().__init__()
        self._work, self._copies, self._targets = work, copies, targets

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        done = self._work.wait(timeout)
        for target, copy in zip(self._targets, self._copies, strict=False):
            target.detach().copy_(copy)
        return bool(done)

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())


def _copied(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of the tensors in the host's memory, even of those that are there already."""
    return [torch.empty_like(tensor, device="cpu").copy_(tensor) for tensor in tensors]


def _collective(work: dist.Work, copies: Sequence[Tensor], targets: list[Tensor]) -> dist.Work:
    """A collective under way, which completes once its copies are in `targets`."""

    def restore(over: torch.futures.Future[Any]) -> list[Tensor]:
        over.value()
        for target, copy in zip(targets, copies, strict=True):
            target.detach().copy_(copy)
        return targets

    restored: dist.Work = _create_work_from_future(work.get_future().then(restore))
    return restored


def _create(store: Any, rank: int, ranks: int, timeout: timedelta) -> StagedGroup:
    return StagedGroup(ProcessGroupGloo(store, rank, ranks, timeout), rank, ranks)


_register: Callable[..., None] = dist.Backend.register_backend
_register(BACKEND, _create, devices=["cpu", "cuda"])
