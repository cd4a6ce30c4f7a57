"""Process groups of gloo whose collectives and messages are recorded, in place of those of NCCL."""

from __future__ import annotations

import inspect
import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroupGloo, distributed_c10d

from scaleproof.simulator.common.spans import Phase
from scaleproof.validator.script_runs.recording import CollectiveKind, IssuedTransfer, ScriptRecorder, now

BACKEND = "scaleproof-gloo"
# Largest value of an integer column of recorded spans; hashes are cut to it.
_LARGEST_INT32 = 0x7FFFFFFF
_ALONE = -1
# its methods have several signatures each, of which PyTorch calls one from C++
_ProcessGroup: Any = dist.ProcessGroup


class RecordedTransferWork(dist.Work):
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

    def synchronize(self) -> None:
        """Waits until it is complete."""
        self.wait()

    def block_current_stream(self) -> None:
        """Waits until it is complete."""
        self.wait()

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


class RecordedGloo(_ProcessGroup):  # type: ignore[misc]
    """A process group of gloo. Its methods are those that PyTorch calls. What only NCCL has is made of what gloo has: means of
    sums, and batches one by one."""

    def __init__(self, gloo: Any, rank: int, size: int, recorder: ScriptRecorder) -> None:
        super().__init__(rank, size)
        self._gloo, self._own, self._size, self._recorder = gloo, rank, size, recorder
        self._count = itertools.count()
        self._messages: Counter[tuple[int, int, int]] = Counter()
        self.description = ""

    @property
    def group_name(self) -> str:
        """The name that PyTorch gave it."""
        return distributed_c10d._world.pg_names[self]

    pg_name = group_name

    def getBackendName(self) -> str:
        """The backend that scripts expect."""
        return "nccl"

    def allreduce(self, tensors: Any, opts: Any = None, *_: Any) -> RecordedTransferWork:
        """Reduces to all ranks."""
        flat = _flat(tensors)
        opts = opts or dist.AllreduceOptions()
        finish = self._summing(opts, flat)
        return self._issue("all_reduce", [self._gloo.allreduce([one], opts) for one in flat], _bytes(flat), finish)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> RecordedTransferWork:
        """Reduces several tensors to all ranks."""
        each = dist.AllreduceOptions()
        each.reduceOp = opts.reduceOp if opts is not None else each.reduceOp
        return self.allreduce(tensors, each)

    def reduce(self, tensors: Any, opts: Any = None) -> RecordedTransferWork:
        """Reduces to one rank."""
        flat = _flat(tensors)
        finish = self._summing(opts, flat)
        return self._issue("reduce", [self._gloo.reduce(flat, opts)], _bytes(flat), finish)

    def broadcast(self, tensors: Any, opts: Any = None) -> RecordedTransferWork:
        """Sends tensors of one rank to all."""
        flat = _flat(tensors)
        works = []
        for one in flat:
            each = dist.BroadcastOptions()
            each.rootRank, each.rootTensor = getattr(opts, "rootRank", 0), 0
            works.append(self._gloo.broadcast([one], each))
        return self._issue("broadcast", works, _bytes(flat))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedTransferWork:
        """Gathers the tensors of all ranks."""
        return self._issue("all_gather", [self._gloo.allgather(outputs, inputs)], _bytes(_flat(outputs)))

    allgather_coalesced = allgather

    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> RecordedTransferWork:
        return self._issue("all_gather", [self._gloo._allgather_base(output, own)], _bytes([output]))

    all_gather_single = _allgather_base
    all_gather_into_tensor = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedTransferWork:
        """Gathers several tensors of all ranks, into one tensor each."""
        pairs = zip(_flat(outputs), _flat(inputs), strict=True)
        works = [self._gloo._allgather_base(output, own) for output, own in pairs]
        return self._issue("all_gather", works, _bytes(_flat(outputs)))

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedTransferWork:
        """Reduces, and leaves each rank its part. outputs, inputs: lists, or single tensors."""
        if isinstance(inputs, torch.Tensor):
            inputs, outputs = [inputs], [outputs]
        whole = [torch.cat([part.flatten() for part in one]) if isinstance(one, (list, tuple)) else one for one in inputs]
        flat = _flat(outputs)
        finish = self._summing(opts, flat)
        works = [self._gloo._reduce_scatter_base(output, one, opts) for output, one in zip(flat, whole, strict=True)]
        return self._issue("reduce_scatter", works, _bytes(whole), finish)

    _reduce_scatter_base = reduce_scatter
    reduce_scatter_single = reduce_scatter
    reduce_scatter_tensor_coalesced = reduce_scatter
    reduce_scatter_single_coalesced = reduce_scatter

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedTransferWork:
        """Sends each rank its part."""
        return self._issue("scatter", [self._gloo.scatter(outputs, inputs, opts)], _bytes(_flat(outputs)) * self._size)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedTransferWork:
        """Gathers on one rank."""
        return self._issue("gather", [self._gloo.gather(outputs, inputs, opts)], _bytes(_flat(inputs)) * self._size)

    def alltoall_base(
        self, output: torch.Tensor, own: torch.Tensor, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> RecordedTransferWork:
        """Exchanges blocks."""
        works = [self._gloo.alltoall_base(output, own, list(output_sizes or ()), list(input_sizes or ()))]
        return self._issue("alltoall", works, max(_bytes([own]), _bytes([output])))

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedTransferWork:
        """Exchanges tensors, which are joined on the way."""
        sent, received = _flat(inputs), _flat(outputs)
        own = torch.cat([one.reshape(-1) for one in sent])
        output = own.new_empty(sum(one.numel() for one in received))
        sizes = [one.numel() for one in received]

        def divide() -> None:
            for target, part in zip(received, torch.split(output, sizes), strict=True):
                target.copy_(part.view_as(target))

        works = [self._gloo.alltoall_base(output, own, sizes, [one.numel() for one in sent])]
        return self._issue("alltoall", works, max(_bytes(sent), _bytes(received)), divide)

    def barrier(self, opts: Any = None) -> RecordedTransferWork:
        """Waits for all ranks."""
        return self._issue("barrier", [self._gloo.barrier()], 0.0)

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        """Waits for all ranks."""
        self.barrier().wait()

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

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def _summing(self, opts: Any, outputs: Sequence[torch.Tensor]) -> Callable[[], None] | None:
        """Makes options ask for sums where they ask for means; returns what divides the outputs afterwards."""
        if opts.reduceOp != dist.ReduceOp.AVG:
            return None
        opts.reduceOp, size = dist.ReduceOp.SUM, self._size

        def divide() -> None:
            for output in outputs:
                output.div_(size)

        return divide

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
        ranks = distributed_c10d.get_process_group_ranks(self)
        self._messages[source, target, tag] += 1
        match = (zlib.crc32(repr((tag, self._messages[source, target, tag])).encode())) & _LARGEST_INT32
        peer = ranks[target if source == self._own else source]
        return IssuedTransfer(self._kind("send"), now(), _bytes(_flat(tensors)), self._number, match, peer)

    def _kind(self, op: str) -> int:
        ranks = tuple(distributed_c10d.get_process_group_ranks(self))
        return self._recorder.kind(CollectiveKind(op, ranks, self.description))

    @property
    def _number(self) -> int:
        """A number of the group that its ranks agree on; `_ALONE` for a group of one rank, which communicates with nobody."""
        if self._size == 1:
            return _ALONE
        ranks = tuple(distributed_c10d.get_process_group_ranks(self))
        return zlib.crc32(repr((ranks, self.group_name)).encode()) & _LARGEST_INT32


def install(recorder: ScriptRecorder) -> None:
    """Makes process groups of gloo that are recorded, whatever backend a script names."""

    def create(store: Any, rank: int, size: int, timeout: Any) -> RecordedGloo:
        return RecordedGloo(ProcessGroupGloo(store, rank, size, timeout), rank, size, recorder)

    register: Callable[..., None] = dist.Backend.register_backend
    register(BACKEND, create, devices=["cpu", "cuda"])
    init, make = dist.init_process_group, distributed_c10d._new_group_with_tag

    signature = inspect.signature(make)

    def initialised(_: Any = None, *arguments: Any, **keywords: Any) -> None:
        init(BACKEND, *arguments, **{name: value for name, value in keywords.items() if name not in ("backend", "device_id")})
        _describe(dist.group.WORLD, "world")

    def new_group(*arguments: Any, **keywords: Any) -> Any:
        call = signature.bind(*arguments, **keywords)
        call.arguments |= {"backend": BACKEND, "backend_options": None, "device_id": None}
        group = make(*call.args, **call.kwargs)
        _describe(group, str(call.arguments.get("group_desc") or ""))
        return group

    for module in (dist, distributed_c10d):
        module.init_process_group = initialised  # type: ignore[attr-defined]
        module.get_backend = lambda group=None: "nccl"  # type: ignore[attr-defined]
        module.is_nccl_available = lambda: True  # type: ignore[attr-defined]
    distributed_c10d._new_group_with_tag = new_group


def _describe(group: Any, description: str) -> None:
    """Notes what a script calls a group, unless this rank is not in it."""
    if isinstance(group, RecordedGloo):
        group.description = description


def _flat(tensors: Any) -> list[torch.Tensor]:
    """Tensors in nested lists, or a single one."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor for each in tensors for tensor in _flat(each)] if isinstance(tensors, (list, tuple)) else []


def _bytes(tensors: Sequence[torch.Tensor]) -> float:
    return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))
