"""The recorder of a script on a rank: passes by hooks, communication by its process groups, and ends of optimizers' steps.

The main stream is always in one pass: a forward pass begins with the first module, a backward pass with autograd's engine, an
update with an optimizer's step. What is outside of them counts with the pass before it, and at the begin of a step with the
forward pass, as in captures. Waiting for communication interrupts a pass.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.nn.modules import module as modules
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.validator.capture.steps import shortest_period
from scaleproof.validator.record.recorder import END_OF_STEP, RAW_SPAN
from scaleproof.validator.record.status_board import Status

# Phase of what follows an optimizer's step: of the next step's begin, or of the update if more optimizers step.
_AFTER_UPDATE: Final = -2
_engine = torch.autograd.Variable._execution_engine
_graph_task = torch._C._current_graph_task_id
_NO_TASK: Final = -1
now: Final = time.perf_counter


class EnoughStepsError(BaseException):
    """Ends a script that has taken the steps that are measured."""


class CollectiveKind(NamedTuple):
    """What several collectives or messages have in common: the operation, the ranks of the group, and its description."""

    op: str
    ranks: tuple[int, ...]
    description: str


@dataclass
class IssuedTransfer:
    """A collective or message that was issued. kind: index of its `CollectiveKind`. match: its number among those of its kind
    of counterpart, which are equal on all sides. end_s: when it was complete, or waited for; the begin if it is not known."""

    kind: int
    begin_s: float
    size_bytes: float
    group: int
    match: int
    peer: int = -1
    end_s: float = 0.0
    waited: bool = False


@dataclass
class _MainRow:
    """A span of the main stream, or the end of an optimizer's step (`optimizer` ≥ 0)."""

    phase: int
    begin_s: float
    end_s: float
    transfer: IssuedTransfer | None = None
    optimizer: int = -1
    kind: int = -1


@dataclass
class _OpenEnd:
    """Transfers that a backward pass waits for at its end. wait: the span of this wait from when it begins; rest: of the pass
    after it. Where one ends and the other begins is known once the transfers' times are."""

    transfers: list[IssuedTransfer] = field(default_factory=list)
    wait: _MainRow | None = None
    rest: _MainRow | None = None


class ScriptRecorder:
    """Records a script until it has taken `wanted` steps, and then ends it by `EnoughStepsError`. stepped: called when an
    optimizer has stepped."""

    def __init__(self, own_status: Status, wanted: int, stepped: Callable[[], None] | None = None) -> None:
        self._status, self._wanted, self._when_stepped = own_status, wanted, stepped
        self._rows: list[_MainRow] = []
        self._transfers: list[IssuedTransfer] = []
        self._marks: list[int] = []
        self._numbers: dict[int, int] = {}
        self._phase: int = Phase.FORWARD
        self._since_s = now()
        self._passes = 0
        self._open: _OpenEnd | None = None
        self._ends: list[_OpenEnd] = []
        self._kinds: dict[CollectiveKind, int] = {}

    def install(self) -> None:
        """Adds hooks to modules, autograd and optimizers."""
        modules.register_module_forward_pre_hook(lambda *_: self._enter_module())
        register_optimizer_step_pre_hook(lambda *_: self._switch(Phase.OPTIMIZER))
        register_optimizer_step_post_hook(lambda optimizer, *_: self._stepped(optimizer))
        for name in ("backward", "grad"):
            setattr(torch.autograd, name, self._engine_call(getattr(torch.autograd, name)))

    @property
    def steps(self) -> int:
        """Number of steps of the script so far."""
        return len(self._marks) // max(1, shortest_period(self._marks))

    @property
    def marks(self) -> int:
        """Number of optimizers' steps so far."""
        return len(self._marks)

    def kind(self, kind: CollectiveKind) -> int:
        """The index of a kind."""
        return self._kinds.setdefault(kind, len(self._kinds))

    @property
    def kinds(self) -> list[CollectiveKind]:
        """Kinds by their indices."""
        return list(self._kinds)

    def issued(self, transfer: IssuedTransfer) -> None:
        """Notes a collective. One that a backward pass issues without waiting is waited for at its end, as reducers do."""
        self._transfers.append(transfer)
        if _graph_task() == _NO_TASK:
            return
        if self._open is None:
            self._open = _OpenEnd()
            _engine.queue_callback(functools.partial(self._begin_end, self._open))
        self._open.transfers.append(transfer)

    def sent(self, transfer: IssuedTransfer) -> None:
        """Notes a message that was sent from `transfer.begin_s` until now."""
        self._span(Phase.SEND, transfer.begin_s, now(), transfer)

    def waited(self, transfer: IssuedTransfer, phase: Phase, begin_s: float) -> None:
        """Notes that the rank waited for a transfer until now."""
        end_s = now()
        transfer.waited = True
        transfer.end_s = transfer.end_s or end_s
        self._span(phase, begin_s, end_s, transfer if phase is Phase.RECEIVE else None, transfer.kind)

    def _span(self, phase: Phase, begin_s: float, end_s: float, transfer: IssuedTransfer | None, kind: int = -1) -> None:
        """Interrupts the pass by a span."""
        self._rows.append(_MainRow(self._phase, self._since_s, begin_s))
        self._rows.append(_MainRow(phase, begin_s, end_s, transfer, kind=kind))
        self._since_s = end_s

    def _switch(self, phase: int) -> None:
        """Begins a pass."""
        time_s = now()
        self._rows.append(_MainRow(self._phase, self._since_s, time_s))
        self._phase, self._since_s = phase, time_s
        self._status.enter(max(0, phase))

    def _enter_module(self) -> None:
        if self._phase != Phase.FORWARD and self._passes == 0:
            self._switch(Phase.FORWARD)

    def _engine_call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*arguments: Any, **keywords: Any) -> Any:
            if self._passes:
                return function(*arguments, **keywords)
            self._switch(Phase.BACKWARD)
            self._passes += 1
            try:
                return function(*arguments, **keywords)
            finally:
                self._passes -= 1
                self._finish_backward()

        return called

    def _begin_end(self, end: _OpenEnd) -> None:
        """The engine has computed all gradients; what was queued before this waits for sums of them next."""
        end.wait = _MainRow(Phase.SYNCHRONISE, now(), 0.0)

    def _finish_backward(self) -> None:
        if self._open is None:
            return
        end, self._open = self._open, None
        if end.wait is not None:
            end_s = now()
            end.rest = _MainRow(self._phase, end_s, end_s)
            self._rows += [_MainRow(self._phase, self._since_s, end.wait.begin_s), end.wait, end.rest]
            self._ends.append(end)
            self._since_s = end_s

    def _stepped(self, optimizer: Optimizer) -> None:
        self._switch(_AFTER_UPDATE)
        number = self._numbers.setdefault(id(optimizer), len(self._numbers))
        self._rows.append(_MainRow(END_OF_STEP, self._since_s, self._since_s, optimizer=number))
        self._marks.append(number)
        if self._when_stepped is not None:
            self._when_stepped()
        period = shortest_period(self._marks)
        if period:
            self._status.begin_step(len(self._marks) // period)
            if len(self._marks) >= self._wanted * period:
                raise EnoughStepsError

    def spans(self, warmup: int) -> bytes:
        """The spans of all whole steps as rows of RAW_SPAN; the first `warmup` steps have numbers 0 and below."""
        return np.array(list(self._numbered(warmup)), dtype=RAW_SPAN).tobytes()

    def _numbered(self, warmup: int) -> Any:
        period = max(1, shortest_period(self._marks))
        rows = self._resolved()
        transfers = sorted((one for one in self._transfers if one.peer < 0), key=lambda one: one.begin_s)
        # a script that steps another number of times at its end is cut there
        count = len(self._marks) // period
        step, marks, place, begins = 1 - warmup, 0, 0, True
        for row in rows:
            if row.optimizer >= 0:
                marks += 1
                if marks % period == 0:
                    while place < len(transfers) and transfers[place].begin_s < row.end_s:
                        yield self._communication(step, transfers[place])
                        place += 1
                    yield self._plain(step, END_OF_STEP, row)
                    step, begins = step + 1, True
                    if marks == count * period:
                        return
                continue
            phase = row.phase
            if phase == _AFTER_UPDATE:
                phase = Phase.FORWARD if begins else Phase.OPTIMIZER
            begins = begins and row.phase not in (Phase.BACKWARD, Phase.OPTIMIZER)
            if row.end_s > row.begin_s:
                yield self._plain(step, phase, row)

    def _resolved(self) -> Sequence[_MainRow]:
        """The rows, with the times at which waits at ends of backward passes ended."""
        for end in self._ends:
            wait, rest = end.wait, end.rest
            assert wait is not None, "the pass has ended"
            assert rest is not None, "the pass has ended"
            late_s = max((one.end_s for one in end.transfers if not one.waited), default=wait.begin_s)
            wait.end_s = rest.begin_s = min(max(late_s, wait.begin_s), rest.end_s)
            wait.kind = end.transfers[-1].kind
        return self._rows

    @staticmethod
    def _plain(step: int, phase: int, row: _MainRow) -> tuple[Any, ...]:
        of = row.transfer
        size, peer, match = (of.size_bytes, of.peer, of.match) if of is not None else (0.0, -1, -1)
        kind = of.kind if of is not None else row.kind
        return (step, Stream.MAIN, phase, -1, -1, row.begin_s, row.begin_s, row.end_s, size, peer, -1, match, kind)

    @staticmethod
    def _communication(step: int, of: IssuedTransfer) -> tuple[Any, ...]:
        end_s = max(of.begin_s, of.end_s)
        times_s = (of.begin_s, of.begin_s, end_s)
        return (step, Stream.COMMUNICATION, Phase.SYNCHRONISE, -1, -1, *times_s, of.size_bytes, -1, of.group, of.match, of.kind)
