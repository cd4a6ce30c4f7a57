"""Collectives and messages of a rank as events, and the process groups that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.futures import Future

from scaleproof.simulator.captured.record import NONE, Category, EventKind, ProcessGroup, Signature
from scaleproof.validator.capture.backend.memory import Arena
from scaleproof.validator.capture.backend.schemas import moved_bytes, tensor_text
from scaleproof.validator.capture.communication.c10d_group import C10dGroup, C10dWork, CollectiveCall
from scaleproof.validator.capture.communication.matching import IssuedCall
from scaleproof.validator.capture.trace import RankTrace

_engine = torch.autograd.Variable._execution_engine


class RecordedWork(C10dWork):
    """A collective or message that was issued; waiting for it is recorded."""

    def __init__(self, recording: Recording, number: int, tensors: Any) -> None:
        super().__init__()
        self._recording, self._number = recording, number
        self._future = _completed(tensors)

    def wait(self, timeout: Any = None) -> bool:
        """Makes the current stream wait."""
        self._recording.wait(self._number)
        return True

    def get_future(self) -> Future[Any]:
        """The result. What waits for it does so without a call that could be recorded: the end of the backward pass, as
        reducers of gradients do, or who requests it outside of one."""
        number = self._number
        if torch._C._current_autograd_node() is None:
            self._recording.wait(number)
        else:
            _engine.queue_callback(lambda: self._recording.wait(number))
        return self._future

    def is_completed(self) -> bool:
        """Whether it is complete: always."""
        return True

    def is_success(self) -> bool:
        """Whether it succeeded: always."""
        return True

    def result(self) -> Any:
        """Its tensors."""
        return self._future.value()


def _completed(tensors: Any) -> Future[Any]:
    """A future that has tensors, of a type that hooks in C++ read: one that Python completes has an object of Python."""
    if tensors:
        fork: Any = torch.jit.fork
        typed: Future[Any] = fork(lambda: tensors)
        return typed
    plain: Future[Any] = Future()
    plain.set_result(tensors)
    return plain


class Recording:
    """Records the communication of a rank. groups: that it belongs to; all_groups: that the script made; calls: of collectives
    and messages, also those that take no time of a device."""

    def __init__(self, trace: RankTrace, arena: Arena, rank: int) -> None:
        self.trace, self._arena, self.rank = trace, arena, rank
        self.groups: list[ProcessGroup] = []
        self.all_groups: list[ProcessGroup] = []
        self.calls: list[IssuedCall] = []
        self._places: dict[str, int] = {}
        self._coalescing: int | None = None

    def add_group(self, name: str, ranks: Sequence[int], description: str) -> None:
        """Adds a process group."""
        group = ProcessGroup(name, ranks, description)
        self.all_groups.append(group)
        if self.rank in ranks:
            self._places[name] = len(self.groups)
            self.groups.append(group)

    def called(self, name: str, group: str) -> None:
        """Notes that a collective is called, unless this rank is not of the group."""
        if group in self._places:
            ranks = tuple(self.groups[self._places[group]].ranks)
            self.calls.append(IssuedCall(len(self.trace.events), name, group, ranks, self.trace.context.line()))

    def collective(self, group: C10dGroup, call: CollectiveCall) -> RecordedWork:
        """Records a collective."""
        self.called(call.collective, group.group_name)
        peer = group.ranks[call.root] if call.root != NONE else NONE
        work = self._issue(EventKind.COLLECTIVE, call.collective, group, call.read, call.written, (call.root,), peer=peer)
        return RecordedWork(self, work, call.outputs if isinstance(call.outputs, list) else [call.outputs])

    def message(self, group: C10dGroup, kind: EventKind, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> RecordedWork:
        """Records a message to or from the rank `peer` of the group."""
        name, inputs, outputs = ("send", tensors, ()) if kind is EventKind.SEND else ("receive", (), tensors)
        ends = (self.rank, group.ranks[peer]) if kind is EventKind.SEND else (group.ranks[peer], self.rank)
        self.calls.append(IssuedCall.message(len(self.trace.events), *ends, self.trace.context.line()))
        compared = peer, group.ranks.index(self.rank)
        work = self._issue(kind, name, group, inputs, outputs, compared, peer=group.ranks[peer], tag=tag)
        return RecordedWork(self, work, list(outputs or inputs))

    def _issue(
        self, kind: EventKind, name: str, group: C10dGroup, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor],
        compared: tuple[int, ...], **columns: Any,
    ) -> int:  # fmt: skip
        """Records a transfer; returns the number of its work."""
        with self.trace.host.recording():
            number = self._coalescing or self.trace.new_work()
            if any(tensor.is_cuda for tensor in (*inputs, *outputs)):
                # others are sent over the processors' network, which training steps hardly use
                read_bytes, written_bytes = moved_bytes("", inputs, outputs)
                place = self._places[group.group_name]
                own = self.groups[place]
                self.trace.add(
                    kind, name=name, signature=Signature(tuple(map(tensor_text, inputs)), tuple(map(tensor_text, outputs)), {}),
                    bytes_read=read_bytes, bytes_written=written_bytes, group=place, work=number,
                    compared=(own.description, len(own.ranks), *compared), **columns,
                )  # fmt: skip
            for tensor in outputs:
                block = self._arena.block(tensor) if tensor.is_cuda else None
                if block is not None:
                    self.trace.holds(block.number, Category.COMMUNICATION)
            return number

    def wait(self, number: int) -> None:
        """Records that the current stream waits."""
        with self.trace.host.recording():
            self.trace.add(EventKind.WORK_WAIT, work=number)

    def start_coalescing(self) -> None:
        """Begins a batch of collectives and messages, which share a number."""
        self._coalescing = self.trace.new_work()

    def end_coalescing(self) -> RecordedWork:
        """Ends the batch."""
        number, self._coalescing = self._coalescing, None
        return RecordedWork(self, number or self.trace.new_work(), [])
