"""A process group of one rank: collectives return what they would if all other ranks had the same values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from scaleproof.simulator.captured.record import EventKind
from scaleproof.validator.capture.backend.memory import Content
from scaleproof.validator.capture.backend.values import Values
from scaleproof.validator.capture.communication.mailbox import Mailbox
from scaleproof.validator.capture.communication.recording import RecordedWork, Recording

# Most elements whose values other ranks return.
_MOST: Final = 1 << 22
# Time between two of PyTorch's barriers is of no interest; what they send is a number.
_BARRIER_ELEMENTS: Final = 1
_Tensors = Sequence[torch.Tensor]


# its methods have several signatures each, of which PyTorch calls one from C++
_ProcessGroup: Any = dist.ProcessGroup


class RecordedGroup(_ProcessGroup):  # type: ignore[misc]
    """A process group whose communication is recorded. Its methods are those that PyTorch calls."""

    def __init__(self, rank: int, size: int, recording: Recording, values: Values, mailbox: Mailbox) -> None:
        super().__init__(rank, size)
        self._own, self._size = rank, size
        self._recording, self._values, self._mailbox = recording, values, mailbox

    @property
    def group_name(self) -> str:
        """The name that PyTorch gave it."""
        return distributed_c10d._world.pg_names[self]

    @property
    def pg_name(self) -> str:
        """The name that PyTorch gave it."""
        return self.group_name

    @property
    def supports_splitting(self) -> bool:
        """Whether it can be split: no, so that groups are made one by one."""
        return False

    def getBackendName(self) -> str:
        """The backend that scripts expect."""
        return "nccl"

    def allreduce(self, tensors: Any, opts: Any = None, *_: Any) -> RecordedWork:
        """Sums equal values."""
        flat = _flat(tensors)
        for tensor in flat:
            if self._is_known(tensor) and opts is not None and opts.reduceOp == dist.ReduceOp.SUM:
                self._on_host(tensor).mul_(self._size)
        return self._collective("all_reduce", flat, flat)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any = None) -> RecordedWork:
        """Sums to one rank."""
        flat = _flat(tensors)
        return self._collective("reduce", flat, flat, getattr(opts, "rootRank", 0))

    def broadcast(self, tensors: Any, opts: Any = None) -> RecordedWork:
        """Leaves values, which all ranks have."""
        flat = _flat(tensors)
        return self._collective("broadcast", flat, flat, getattr(opts, "rootRank", 0))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        """Gathers equal values into separate tensors."""
        for gathered, own in zip(outputs, inputs, strict=False):
            for each in gathered:
                self._set(each, own)
        return self._collective("all_gather", _flat(inputs), _flat(outputs))

    allgather_coalesced = allgather

    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor, opts: Any = None) -> RecordedWork:
        self._repeat(output, own)
        return self._collective("all_gather", [own], [output])

    all_gather_single = _allgather_base
    all_gather_into_tensor = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        """Gathers equal values into one tensor each."""
        for output, own in zip(outputs, inputs, strict=True):
            self._repeat(output, own)
        return self._collective("all_gather", _flat(inputs), _flat(outputs))

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        """Sums, and leaves the part of this rank."""
        self._forget(_flat(outputs))
        return self._collective("reduce_scatter", _flat(inputs), _flat(outputs))

    _reduce_scatter_base = reduce_scatter
    reduce_scatter_single = reduce_scatter
    reduce_scatter_tensor_coalesced = reduce_scatter
    reduce_scatter_single_coalesced = reduce_scatter

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        """Takes this rank's part where this rank is the root."""
        flat = _flat(outputs)
        parts = _flat(inputs)
        if parts:
            self._set(flat[0], parts[self._own])
        else:
            self._forget(flat)
        return self._collective("scatter", parts, flat, getattr(opts, "rootRank", 0))

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        """Gathers equal values on one rank."""
        own = _flat(inputs)
        for each in _flat(outputs or []):
            self._set(each, own[0])
        return self._collective("gather", own, _flat(outputs or []), getattr(opts, "rootRank", 0))

    def alltoall_base(
        self, output: torch.Tensor, own: torch.Tensor, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> RecordedWork:
        """Exchanges blocks: all other ranks send to this one what it sends to itself."""
        is_even = len({*(output_sizes or ()), *(input_sizes or ())}) <= 1
        if self._is_known(own) and is_even and own.dim() and output.numel() == own.numel():
            block = self._on_host(own).reshape(self._size, -1)[self._own]
            self._on_host(output).view(self._size, -1).copy_(block)
            self._values.set_content([output], self._values.content(own))
        else:
            self._forget([output])
        return self._collective("alltoall", [own], [output])

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> RecordedWork:
        """Exchanges tensors."""
        sent = _flat(inputs)
        for output in _flat(outputs):
            if output.shape == sent[self._own].shape:
                self._set(output, sent[self._own])
            else:
                self._forget([output])
        return self._collective("alltoall", sent, _flat(outputs))

    def barrier(self, opts: Any = None) -> RecordedWork:
        """A sum of one number, for which the host waits, as NCCL's backend does."""
        number = torch.zeros(_BARRIER_ELEMENTS, device="cuda")
        work = self._collective("all_reduce", [number], [number])
        self._recording.trace.add(EventKind.SYNCHRONIZE)
        return work

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        """A barrier."""
        self.barrier()

    def send(self, tensors: Any, target: int, tag: int = 0) -> RecordedWork:
        """Sends integers to the mailbox; floats have no values."""
        for tensor in _flat(tensors):
            if not tensor.dtype.is_floating_point:
                known = self._values.content(tensor) is not Content.UNKNOWN
                value = self._on_host(tensor).clone() if known else None
                self._mailbox.put(f"{self.group_name}-{tag}", self._global(target), value)
        return self._recording.message(self, EventKind.SEND, _flat(tensors), target, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> RecordedWork:
        """Receives integers from the mailbox."""
        for tensor in _flat(tensors):
            if tensor.dtype.is_floating_point:
                self._forget([tensor])
                continue
            received = self._mailbox.get(f"{self.group_name}-{tag}", self._global(source), self._recording.rank)
            if received is None:
                self._forget([tensor])
            else:
                self._on_host(tensor).copy_(received)
                self._values.set_content([tensor], Content.EXACT)
        return self._recording.message(self, EventKind.RECEIVE, _flat(tensors), source, tag)

    recv_anysource = recv

    def _start_coalescing(self, *_: Any) -> None:
        self._recording.start_coalescing()

    def _end_coalescing(self, *_: Any) -> RecordedWork:
        return self._recording.end_coalescing()

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def _collective(self, name: str, inputs: _Tensors, outputs: _Tensors, root: int = -1) -> RecordedWork:
        return self._recording.collective(self, name, inputs, outputs, root)

    def _global(self, rank: int) -> int:
        return distributed_c10d.get_process_group_ranks(self)[rank]

    def _is_known(self, tensor: torch.Tensor) -> bool:
        return self._values.content(tensor) is not Content.UNKNOWN and tensor.numel() <= _MOST

    def _on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._values.arena.on_host(tensor) if tensor.is_cuda else tensor

    def _forget(self, tensors: _Tensors) -> None:
        self._values.set_content([tensor for tensor in tensors if tensor.is_cuda], Content.UNKNOWN)

    def _set(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if self._is_known(source) and target.shape == source.shape:
            self._on_host(target).copy_(self._on_host(source))
            self._values.set_content([target], self._values.content(source))
        else:
            self._forget([target])

    def _repeat(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if self._is_known(source) and target.numel() == source.numel() * self._size <= _MOST:
            self._on_host(target).view(self._size, -1).copy_(self._on_host(source).reshape(-1))
            self._values.set_content([target], self._values.content(source))
        else:
            self._forget([target])


def _flat(tensors: Any) -> list[torch.Tensor]:
    """Tensors in nested lists, or a single one."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor for each in tensors for tensor in _flat(each)] if isinstance(tensors, (list, tuple)) else []
