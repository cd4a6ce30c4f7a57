"""Process groups of gloo whose collectives and messages are recorded, in place of those of NCCL."""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroupGloo

from scaleproof.simulator.common.spans import Phase
from scaleproof.validator.capture.communication.c10d_group import C10dGroup, C10dWork, CollectiveCall, GroupsOfBackend, flat
from scaleproof.validator.script_runs.memory_profile import TRANSPORT
from scaleproof.validator.script_runs.recording import CollectiveKind, IssuedTransfer, ScriptRecorder, now

# Largest value of an integer column of recorded spans; hashes are cut to it.
_LARGEST_INT32: Final = 0x7FFFFFFF
_ALONE: Final = -1


class RecordedTransferWork(C10dWork):
    """A collective or message under way. finish: called once after it, such as to divide sums."""

    def __init__(
        self,
        recorder: ScriptRecorder,
        transfer: IssuedTransfer,
        works: Sequence[Any],
        phase: Phase,
        finish: Callable[[], None] | None,
    ) -> None:
        super().__init__()
        self._recorder, self._transfer, self._works, self._phase, self._finish = recorder, transfer, works, phase, finish

    def wait(self, timeout: Any = None) -> bool:
        """Waits until it is complete."""
        begin_s = now()
        for work in self._works:
            work.wait()
        self._complete()
        if self._transfer.group != _ALONE:
            self._recorder.waited(self._transfer, self._phase, begin_s)
        return True

    def is_completed(self) -> bool:
        """Whether it is complete."""
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> Any:
        """The result, once it is complete."""
        future = self._works[-1].get_future()
        if self._finish is None:
            return future

        def finished(over: Any) -> Any:
            value = over.value()
            self._complete()
            return value

        return future.then(finished)

    def _complete(self) -> None:
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()


class RecordedGloo(C10dGroup):
    """A process group of gloo. What only NCCL has is made of what gloo has: means of sums, and batches one by one."""

    def __init__(self, gloo: Any, rank: int, size: int, recorder: ScriptRecorder) -> None:
        super().__init__(rank, size)
        self._gloo, self._recorder = gloo, recorder
        self._count = itertools.count()
        self._messages: Counter[tuple[int, int, int]] = Counter()
        self.description = ""

    def collective(self, call: CollectiveCall) -> RecordedTransferWork:
        """Issues a collective of gloo for each tensor or list of them, and records it."""
        divides = _sums_in_place_of_means(call.options)
        with torch.profiler.record_function(TRANSPORT) if torch._C._autograd._profiler_enabled() else nullcontext():
            works, finish = self._started(call)
        if divides:
            finish = self._dividing(call.written)
        return self._issue(call.collective, works, call.size_bytes(self._size), finish)

    def _started(self, call: CollectiveCall) -> tuple[Sequence[Any], Callable[[], None] | None]:
        """The works of a collective, and what copies its results, if it is made of another one."""
        gloo, options, written = self._gloo, call.options, call.written
        match call.collective:
            case "all_reduce":
                summing = dist.AllreduceOptions()
                summing.reduceOp = options.reduceOp if options is not None else summing.reduceOp
                return [gloo.allreduce([one], summing) for one in written], None
            case "reduce":
                return [gloo.reduce(written, options)], None
            case "broadcast":
                return [gloo.broadcast([one], _from_root(call.root)) for one in written], None
            case "all_gather":
                return [self._gathered(own, targets) for own, targets in call.gathered()], None
            case "reduce_scatter":
                wholes = _wholes(call.inputs)
                return [gloo._reduce_scatter_base(*pair, options) for pair in zip(written, wholes, strict=True)], None
            case "alltoall" if call.splits is not None:
                return [gloo.alltoall_base(written[0], call.read[0], *call.splits)], None
            case "alltoall":
                return self._exchanged(written, call.read)
        return [getattr(gloo, call.collective)(call.outputs, call.inputs, options)], None

    def _gathered(self, own: torch.Tensor, targets: Sequence[torch.Tensor]) -> Any:
        """The work that gathers a tensor of each rank, into one tensor or into one for each rank."""
        if len(targets) == 1:
            return self._gloo._allgather_base(targets[0], own)
        return self._gloo.allgather([targets], [own])

    def _exchanged(
        self, received: Sequence[torch.Tensor], sent: Sequence[torch.Tensor]
    ) -> tuple[Sequence[Any], Callable[[], None]]:
        """The work that exchanges tensors, which are joined on the way, and what divides them again."""
        own = torch.cat([one.reshape(-1) for one in sent])
        output = own.new_empty(sum(one.numel() for one in received))
        sizes = [one.numel() for one in received]

        def divide() -> None:
            for target, part in zip(received, torch.split(output, sizes), strict=True):
                target.copy_(part.view_as(target))

        return [self._gloo.alltoall_base(output, own, sizes, [one.numel() for one in sent])], divide

    def _dividing(self, outputs: Sequence[torch.Tensor]) -> Callable[[], None]:
        """What makes means of sums."""

        def divide() -> None:
            for output in outputs:
                output.div_(self._size)

        return divide

    def barrier(self, opts: Any = None) -> RecordedTransferWork:
        """Waits for all ranks."""
        return self._issue("barrier", [self._gloo.barrier()], 0.0)

    def send(self, tensors: Any, target: int, tag: int = 0) -> RecordedTransferWork:
        """Sends to a rank."""
        transfer = self._message(tensors, self._own, target, tag)
        work = self._gloo.send(tensors, target, tag)
        self._recorder.sent(transfer)
        return RecordedTransferWork(self._recorder, transfer, [work], Phase.SEND, None)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> RecordedTransferWork:
        """Receives from a rank."""
        transfer = self._message(tensors, source, self._own, tag)
        return RecordedTransferWork(self._recorder, transfer, [self._gloo.recv(tensors, source, tag)], Phase.RECEIVE, None)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receives from any rank, which is not recorded."""
        return self._gloo.recv_anysource(tensors, tag)

    def _start_coalescing(self, *_: Any) -> None:
        """Batches are sent one by one."""

    def _end_coalescing(self, *_: Any) -> None:
        return None

    def _issue(
        self, op: str, works: Sequence[Any], size_bytes: float, finish: Callable[[], None] | None = None
    ) -> RecordedTransferWork:
        transfer = IssuedTransfer(self._kind(op), now(), size_bytes, self._number, next(self._count))
        if self._size > 1:
            self._note_end(works[-1], transfer)
            self._recorder.issued(transfer)
        return RecordedTransferWork(self._recorder, transfer, works, Phase.SYNCHRONISE, finish)

    @staticmethod
    def _note_end(work: Any, transfer: IssuedTransfer) -> None:
        """Notes when a collective is complete, if gloo says so."""

        def done(_: Any) -> None:
            transfer.end_s = now()

        try:
            work.get_future().add_done_callback(done)
        except RuntimeError:
            # it has no future, so that its end is known from the wait for it
            return

    def _message(self, tensors: Any, source: int, target: int, tag: int) -> IssuedTransfer:
        self._messages[source, target, tag] += 1
        match = (zlib.crc32(repr((tag, self._messages[source, target, tag])).encode())) & _LARGEST_INT32
        peer = self.ranks[target if source == self._own else source]
        return IssuedTransfer(
            self._kind("send"), now(), float(sum(one.nbytes for one in flat(tensors))), self._number, match, peer
        )

    def _kind(self, op: str) -> int:
        return self._recorder.kind(CollectiveKind(op, tuple(self.ranks), self.description))

    @property
    def _number(self) -> int:
        """A number of the group that its ranks agree on; `_ALONE` for a group of one rank, which communicates with nobody."""
        if self._size == 1:
            return _ALONE
        return zlib.crc32(repr((tuple(self.ranks), self.group_name)).encode()) & _LARGEST_INT32


class GlooGroups(GroupsOfBackend):
    """Makes process groups of gloo that are recorded."""

    name = "scaleproof-gloo"

    def __init__(self, recorder: ScriptRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def _group(self, store: Any, rank: int, size: int, timeout: Any = None) -> RecordedGloo:
        return RecordedGloo(ProcessGroupGloo(store, rank, size, timeout), rank, size, self._recorder)

    def _made(self, group: Any, ranks: Any, description: str) -> None:
        # other ranks have none
        if isinstance(group, RecordedGloo):
            group.description = description


def _sums_in_place_of_means(options: Any) -> bool:
    """Makes options ask for sums where they ask for means; returns whether they did."""
    if getattr(options, "reduceOp", None) != dist.ReduceOp.AVG:
        return False
    options.reduceOp = dist.ReduceOp.SUM
    return True


def _from_root(rank: int) -> dist.BroadcastOptions:
    """Options of a broadcast of one tensor."""
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = rank, 0
    return options


def _wholes(inputs: Any) -> list[torch.Tensor]:
    """What is reduced and scattered, each as one tensor. inputs: a tensor, or for each one a tensor or the parts of ranks."""
    each = [inputs] if isinstance(inputs, torch.Tensor) else inputs
    return [torch.cat([part.flatten() for part in one]) if isinstance(one, (list, tuple)) else one for one in each]
