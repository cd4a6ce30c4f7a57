"""A process group of one rank: collectives return what they would if all other ranks had the same values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from scaleproof.simulator.captured.record import NONE, EventKind
from scaleproof.validator.capture.backend.memory import Content
from scaleproof.validator.capture.backend.values import Values
from scaleproof.validator.capture.communication.c10d_group import C10dGroup, CollectiveCall, flat
from scaleproof.validator.capture.communication.mailbox import ALL, Mailbox, NoValueError
from scaleproof.validator.capture.communication.recording import RecordedWork, Recording

# Most elements whose values other ranks return.
_MOST: Final = 1 << 22
# Ranks of a group of which each is played if the values that it sends are needed.
_FEW: Final = 8
# Most floats of a tensor that the first rank broadcasts, such as a learning rate.
_FEW_FLOATS: Final = 16
_FIRST: Final = 0
# Time between two of PyTorch's barriers is of no interest; what they send is a number.
_BARRIER_ELEMENTS: Final = 1


class RecordedGroup(C10dGroup):
    """A process group whose communication is recorded."""

    def __init__(self, rank: int, size: int, recording: Recording, values: Values, mailbox: Mailbox) -> None:
        super().__init__(rank, size)
        self._recording, self._values, self._mailbox = recording, values, mailbox

    def collective(self, call: CollectiveCall) -> RecordedWork:
        """Returns the values of equal ranks, and records the collective."""
        self._set_results(call)
        if self._size > 1:
            self._note_assumption(call)
        return self._recording.collective(self, call)

    def _note_assumption(self, call: CollectiveCall) -> None:
        """Notes which results are exact only if other ranks contribute what this one does."""
        if call.root == self._own or (call.collective == "broadcast" and self._is_exchanged(call)):
            # what one rank sends, or what only this one gets
            return
        name = f"{call.collective} ({self._recording.trace.context.line() or 'a library'})"
        known = [tensor for tensor in call.written if self._values.content(tensor) is Content.EXACT]
        self._values.set_content(known, Content.EXACT, name)
        if any(not tensor.is_cuda for tensor in known):
            self._recording.trace.of_collective(name, is_read=False)

    def _set_results(self, call: CollectiveCall) -> None:
        """Gives the results of a collective their values, as far as those of this rank decide them. What is reduced to one rank
        and what one rank sends to all stays."""
        read, written = call.read, call.written
        match call.collective:
            case "broadcast" if self._is_exchanged(call):
                self._exchange_known(written, self.ranks[call.root])
            case "all_reduce" | "reduce" if call.root in (NONE, self._own):
                for tensor in written:
                    self._reduce(tensor, call)
            case "all_gather" | "gather":
                for own, targets in call.gathered():
                    for target in targets:
                        self._fill(target, own, self._size // len(targets))
            case "reduce_scatter":
                for place, target in enumerate(written):
                    # the parts of all ranks, in one tensor or in one each
                    whole = read[place * len(read) // len(written) :][: max(1, len(read) // len(written))]
                    part = whole[self._own] if len(whole) > 1 else whole[0].reshape(self._size, -1)[self._own]
                    self._fill(target, part)
                    self._reduce(target, call)
            case "scatter" if read:
                self._fill(written[0], read[self._own])
            case "scatter":
                self._forget(written)
            case "alltoall" if call.splits is not None:
                self._exchange(written[0], read[0], call.splits)
            case "alltoall":
                for target in written:
                    self._fill(target, read[self._own])

    def _is_exchanged(self, call: CollectiveCall) -> bool:
        """Whether ranks get the values that one broadcasts: integers, of the first rank or one of few, and few floats of the
        first."""
        is_first = self.ranks[call.root] == _FIRST
        is_few = all(tensor.numel() <= (_FEW_FLOATS if tensor.is_floating_point() else _MOST) for tensor in call.written)
        is_integer = not any(tensor.is_floating_point() for tensor in call.written)
        return is_few and (is_first or (is_integer and self._size <= _FEW))

    def _exchange_known(self, tensors: Sequence[torch.Tensor], source: int) -> None:
        """Gives tensors the values that a rank sends; those of this rank where it sends none."""
        for tensor in tensors:
            channel = f"broadcast-{self.group_name}"
            if source == self._recording.rank:
                is_exact = self._values.content(tensor) is Content.EXACT or not tensor.is_floating_point()
                known = is_exact and self._is_known(tensor)
                self._mailbox.put(channel, ALL, self._on_host(tensor).clone() if known else None)
                continue
            try:
                received = self._mailbox.get(channel, source, ALL)
            except NoValueError:
                continue
            if received is not None and received.numel() == tensor.numel():
                self._on_host(tensor).copy_(received.view(tensor.shape))
                self._values.set_content([tensor], Content.EXACT)

    def _reduce(self, tensor: torch.Tensor, call: CollectiveCall) -> None:
        """Reduces equal values of all ranks. Truth values, means and extremes stay."""
        if not self._is_known(tensor) or call.options is None or tensor.dtype is torch.bool:
            return
        if call.options.reduceOp == dist.ReduceOp.SUM:
            self._on_host(tensor).mul_(self._size)
        elif call.options.reduceOp == dist.ReduceOp.PRODUCT:
            self._on_host(tensor).pow_(self._size)

    def _exchange(self, output: torch.Tensor, own: torch.Tensor, splits: tuple[list[int], list[int]]) -> None:
        """Exchanges blocks: all other ranks send to this one what it sends to itself."""
        is_even = len({length for each in splits for length in each}) <= 1
        if self._is_known(own) and is_even and own.dim() and output.numel() == own.numel():
            block = self._on_host(own).reshape(self._size, -1)[self._own]
            self._on_host(output).view(self._size, -1).copy_(block)
            self._values.set_content([output], self._values.content(own))
        else:
            self._forget([output])

    def barrier(self, opts: Any = None) -> RecordedWork:
        """A sum of one number, for which the host waits, as NCCL's backend does."""
        number = torch.zeros(_BARRIER_ELEMENTS, device="cuda")
        work = self.collective(CollectiveCall("all_reduce", number, number))
        self._recording.trace.add(EventKind.SYNCHRONIZE)
        return work

    def send(self, tensors: Any, target: int, tag: int = 0) -> RecordedWork:
        """Sends integers to the mailbox; floats have no values."""
        for tensor in flat(tensors):
            if not tensor.dtype.is_floating_point:
                known = self._values.content(tensor) is not Content.UNKNOWN
                value = self._on_host(tensor).clone() if known else None
                self._mailbox.put(f"{self.group_name}-{tag}", self.ranks[target], value)
        return self._recording.message(self, EventKind.SEND, flat(tensors), target, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> RecordedWork:
        """Receives integers from the mailbox."""
        for tensor in flat(tensors):
            if tensor.dtype.is_floating_point:
                self._forget([tensor])
                continue
            received = self._mailbox.get(f"{self.group_name}-{tag}", self.ranks[source], self._recording.rank)
            if received is None:
                self._forget([tensor])
            else:
                self._on_host(tensor).copy_(received)
                self._values.set_content([tensor], Content.EXACT)
        return self._recording.message(self, EventKind.RECEIVE, flat(tensors), source, tag)

    recv_anysource = recv

    def _start_coalescing(self, *_: Any) -> None:
        self._recording.start_coalescing()

    def _end_coalescing(self, *_: Any) -> RecordedWork:
        return self._recording.end_coalescing()

    def _is_known(self, tensor: torch.Tensor) -> bool:
        return self._values.content(tensor) is not Content.UNKNOWN and tensor.numel() <= _MOST

    def _on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._values.arena.on_host(tensor) if tensor.is_cuda else tensor

    def _forget(self, tensors: Sequence[torch.Tensor]) -> None:
        self._values.set_content([tensor for tensor in tensors if tensor.is_cuda], Content.UNKNOWN)

    def _fill(self, target: torch.Tensor, source: torch.Tensor, times: int = 1) -> None:
        """Gives a tensor the values of another one, repeated; unknown ones where that is no known values for all of it."""
        if self._is_known(source) and target.numel() == source.numel() * times <= _MOST:
            self._on_host(target).copy_(self._on_host(source).reshape(-1).repeat(times).view(target.shape))
            self._values.set_content([target], self._values.content(source))
        else:
            self._forget([target])
