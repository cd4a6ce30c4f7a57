"""The events of a rank while its script runs, those of the step that is kept, and the time of the script's own host code."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from scaleproof.simulator.captured.record import (
    EQUAL_RANKS,
    NONE,
    Category,
    EventKind,
    EventWriter,
    PolicyDecision,
    RecordedEvents,
    TrainingPass,
)
from scaleproof.validator.capture.communication.branches import decides
from scaleproof.validator.capture.context import Place, ScriptContext

# Kinds of events that distinguish ranks, and those of them that may have any order.
_COMPARED: Final = {
    EventKind.OPERATOR, EventKind.COLLECTIVE, EventKind.SEND, EventKind.RECEIVE, EventKind.WORK_WAIT, EventKind.SYNCHRONIZE,
    EventKind.ITEM, EventKind.COPY, EventKind.HOST_UPDATE,
}  # fmt: skip
_UNORDERED: Final = {EventKind.OPERATOR, EventKind.COPY}
# Processor time of the calling thread, which other work on the machine does not change.
_now: Final = time.thread_time
_REPEATS: Final = 101
# Numbers of nodes of autograd from which on they are not distinct, and what stands for them.
_SAME, _ACCUMULATES = 1 << 63, -2


class RankTrace:
    """Records events. events: of all steps so far; notes: sentences for users."""

    def __init__(self, context: ScriptContext) -> None:
        self.context = context
        self.host = HostClock()
        self.events = EventWriter()
        self.notes: list[str] = []
        # rows at which allocations begin and end, and the pass in which they end, by their numbers
        self._begins: dict[int, int] = {}
        self._ends: dict[int, tuple[int, TrainingPass]] = {}
        # by row: calls of operators, and what distinguishes communication in addition to columns
        self._calls: dict[int, Any] = {}
        self._compared: dict[int, tuple[Any, ...]] = {}
        self._decisions: dict[tuple[str, str, str], int] = {}
        self._decided_here: Counter[tuple[str, str, str]] = Counter()
        self._works = 0
        self._peaks: list[int] = []
        self._live = 0
        self._highest = 0
        self._aside: dict[int, int] | None = None

    def add(
        self, kind: EventKind, place: Place | None = None, call: Any = None, compared: tuple[Any, ...] | None = None,
        **columns: Any,
    ) -> None:  # fmt: skip
        """Adds an event of the current stream, unless `columns` gives another, where the script is now. call: of an operator.
        compared: what distinguishes communication in addition."""
        if self._aside is not None:
            return
        place = place or self.context.place()
        row = self.events.add(kind, **({"stream": self.context.stream} | place._asdict() | columns))
        if call is not None:
            self._calls[row] = call
        if compared is not None:
            self._compared[row] = compared

    def allocated(self, number: int, size: int) -> None:
        """An allocation begins."""
        if self._aside is not None:
            self._aside[number] = size
        else:
            self.adopt(number, size, self.context.place())

    @contextlib.contextmanager
    def unrecorded(self) -> Iterator[Mapping[int, int]]:
        """Leaves out what happens within. Yields the sizes of its allocations, by number."""
        before, self._aside = self._aside, {}
        try:
            yield self._aside
        finally:
            self._aside = before

    def adopt(self, number: int, size: int, place: Place) -> None:
        """Records an allocation."""
        columns = {"stream": self.context.stream, "allocation": number, "size": size}
        self._begins[number] = self.events.add(EventKind.ALLOCATE, **columns, **place._asdict())
        self._live += size
        self._highest = max(self._highest, self._live)

    def freed(self, number: int) -> None:
        """An allocation ends."""
        if number not in self._begins:
            return
        self._live -= self.events.columns["size"][self._begins[number]]
        row = self.events.add(EventKind.FREE, stream=self.context.stream, allocation=number)
        self._ends[number] = row, self.context.phase()

    def holds(self, number: int, category: Category, module: str = "") -> None:
        """Says what an allocation holds, and of which module, unless something more specific is known."""
        row = self._begins.get(number)
        if row is None:
            return
        known = self.events.value(row, "category")
        if known is not None and category > known:
            return
        self.events.set(row, "category", category)
        if module:
            self.events.set(row, "module", module)

    def new_work(self) -> int:
        """A number for a collective or a message."""
        self._works += 1
        return self._works

    def answer(self, operator: str, policy: str) -> int:
        """Counts a value that a policy decides. Returns the number of those of this line in this step."""
        key = operator, policy, self.context.line()
        self._decisions[key] = self._decisions.get(key, 0) + 1
        self._decided_here[key] += 1
        return self._decided_here[key]

    def of_collective(self, collective: str, is_read: bool = True) -> None:
        """Notes that the script reads a result of a collective, computed as if all ranks contributed what this one does.
        is_read: otherwise it is on the host, and only what the script decides by it is noted."""
        expression = self.context.expression()
        if expression is None:
            return
        if decides(expression, writes=not is_read):
            name = Path(expression.path).name
            where = "" if self.context.is_own_file(expression.path) else f" in {name}:{expression.line}"
            self.note(
                f"decides a branch, a loop or a size{where} by the result of {collective}, to which all ranks count as "
                "contributing the same: what one of them alone contributes is wrong or lost; to capture it, let all do so"
            )
        elif is_read:
            self.answer(collective, EQUAL_RANKS)

    def note(self, what: str) -> None:
        """Keeps a sentence for users, which begins with the line where the script is, once."""
        text = f"{self.context.line() or 'a library'} {what}"
        if text not in self.notes:
            self.notes.append(text)

    def decisions(self) -> tuple[PolicyDecision, ...]:
        """The values that policies decided."""
        return tuple(
            PolicyDecision(operator, policy, count, line) for (operator, policy, line), count in self._decisions.items()
        )

    def trains(self, since: int) -> bool:
        """Whether a row after another one belongs to a backward pass, or is a product outside of optimizers."""
        phases, flops = (self.events.columns[name][since:] for name in ("phase", "flops"))
        return any(
            phase == TrainingPass.BACKWARD or (count > 0 and phase != TrainingPass.OPTIMIZER)
            for phase, count in zip(phases, flops, strict=True)
        )

    def mark(self) -> int:
        """The row where a step may begin; its highest number of allocated bytes so far begins again."""
        self._decided_here.clear()
        self.host.settle()
        self._peaks.append(self._highest)
        self._highest = self._live
        return len(self.events)

    def peaks(self, before: int) -> tuple[int, int]:
        """Most allocated bytes in the first `before` intervals between marks, and in all later ones."""
        peaks = [*self._peaks, self._highest]
        return max(peaks[:before], default=0), max(peaks[before:], default=0)

    def kept(self, begin: int, end: int) -> tuple[RecordedEvents, Mapping[int, Any]]:
        """The events of a step that begins and ends before some rows, after the allocations that are live when it begins; and
        the calls of its operators, by their rows."""
        live = [
            row for number, row in self._begins.items() if row < begin and not self._ends.get(number, (end, None))[0] < begin
        ]
        step = self.events.add(EventKind.STEP)
        rows = [*sorted(live), step, *range(begin, end)]
        for row in rows:
            if self.events.columns["kind"][row] == EventKind.ALLOCATE and self.events.value(row, "category") is None:
                self.events.set(row, "category", self._usual_category(row))
        return self.events.part(rows), {place: self._calls[row] for place, row in enumerate(rows) if row in self._calls}

    def _usual_category(self, row: int) -> Category:
        """What an allocation holds where nothing else is known, by when it lives."""
        columns = self.events.columns
        if columns["recomputed"][row]:
            return Category.RECOMPUTED
        _, ends_in = self._ends.get(columns["allocation"][row], (NONE, TrainingPass.OTHER))
        outlives = columns["phase"][row] == TrainingPass.FORWARD and ends_in is not TrainingPass.FORWARD
        return Category.ACTIVATIONS if outlives else Category.WORKING

    def moved_bytes(self, begin: int, end: int) -> int:
        """Bytes that operators without products, and copies, read and write between two rows."""
        columns = self.events.columns
        rows = filter(self._only_moves, range(begin, end))
        return sum(columns["bytes_read"][row] + columns["bytes_written"][row] for row in rows)

    def _only_moves(self, row: int) -> bool:
        """Whether an event is an operator without products, or a copy."""
        return self.events.columns["kind"][row] in _UNORDERED and not self.events.columns["flops"][row]

    def digest(self, begin: int, end: int, moves: bool = True) -> str:
        """A hash of operators and communication between two rows. Operators without anything in between that is waited for may
        have any order, since some of PyTorch's own have none. moves: also of operators without products, and of copies."""
        digest = hashlib.sha256()
        works: dict[int, int] = {NONE: NONE}
        launched: list[str] = []
        for row in range(begin, end):
            kind, stream, work = (self.events.columns[name][row] for name in ("kind", "stream", "work"))
            if kind not in _COMPARED or (not moves and self._only_moves(row)):
                continue
            name, signature = (self.events.value(row, column) for column in ("name", "signature"))
            own = int(kind), name, signature, stream, works.setdefault(work, len(works) - 1), self._compared.get(row)
            launched.append(repr(own))
            if kind not in _UNORDERED:
                launched[:-1] = sorted(launched[:-1])
                digest.update("".join(launched).encode())
                launched.clear()
        digest.update("".join(sorted(launched)).encode())
        return digest.hexdigest()[:16]


class _ThreadTimes(threading.local):
    def __init__(self) -> None:
        self.left_s: float | None = None
        self.passed_s = self.pending_s = 0.0
        self.depth = 0
        self.node = NONE


class HostClock:
    """Time of the script's own host code between operators, by thread, without the time of recording them. PyTorch's own time
    for calling a recorded operator and passing it a list does not count.

    That is what passes between two operators of one node of the backward pass, in which no other code runs. Between two nodes
    the engine's own time passes too. It takes as long as a replay needs for calling an operator by its name, and counts there.
    """

    def __init__(self) -> None:
        self._own = _ThreadTimes()
        self._call_s = self._node_s = self._listed_s = 0.0
        self._within_s: list[float] = []
        self._between_s: list[float] = []

    @contextlib.contextmanager
    def recording(self, arguments: Sequence[Any] | None = None) -> Iterator[None]:
        """A context in which something is recorded, whose time does not count as the script's. arguments: of an operator."""
        self._enter(arguments)
        try:
            yield
        finally:
            self._leave()

    def ignore_collections(self) -> None:
        """Leaves out Python's garbage collections, which look at all that has been recorded."""
        gc.callbacks.append(lambda phase, _: self._enter() if phase == "start" else self._leave())

    def _enter(self, arguments: Sequence[Any] | None = None) -> None:
        own = self._own
        own.depth += 1
        if own.depth > 1:
            return
        own.passed_s = _now() - own.left_s if own.left_s is not None else 0.0
        own.pending_s += own.passed_s
        if arguments is None or own.left_s is None:
            return
        before, own.node = own.node, _engine_node()
        is_within = own.node == before and own.node >= 0
        is_between = not is_within and own.node != NONE
        own.pending_s -= (self._node_s if is_between else self._call_s) + self._listed_s * _listed(arguments)
        if own.node != NONE:
            (self._within_s if is_within else self._between_s).append(own.passed_s)

    def _leave(self) -> None:
        own = self._own
        own.depth -= 1
        if own.depth == 0:
            own.left_s = _now()

    def taken_s(self) -> float:
        """Seconds of the script on this thread since the last call of this function."""
        own = self._own
        # what calls took less than usual belongs to later ones
        pending_s, own.pending_s = own.pending_s, min(0.0, own.pending_s)
        return max(0.0, pending_s)

    def calibrate(self, call: Callable[[], object], call_with_list: Callable[[], object], listed: int) -> None:
        """Measures the time of a call, and of each element of a list. The calls must be recorded; the second has `listed`
        elements in lists."""
        self._call_s = self._node_s = self._repeated_s(call)
        self._listed_s = max(0.0, self._repeated_s(call_with_list) - self._call_s) / listed

    def _repeated_s(self, call: Callable[[], object]) -> float:
        """Seconds that pass between two calls."""
        taken_s = []
        for _ in range(_REPEATS):
            call()
            taken_s.append(self._own.passed_s)
        return statistics.median(taken_s)

    def settle(self) -> None:
        """Measures the time of calls anew by those of the step that ends, among which memory is as cold as in the next one."""
        if min(len(self._within_s), len(self._between_s)) >= _REPEATS:
            self._call_s = statistics.fmean(self._within_s)
            # some nodes call code of the script
            uneven = self._call_s / statistics.median(self._within_s)
            self._node_s = uneven * statistics.median(self._between_s)
        self._within_s.clear()
        self._between_s.clear()


def _engine_node() -> int:
    """The number of the node of autograd whose operators run, NONE outside of nodes and in those that run code of Python."""
    node: Any = torch._C._current_autograd_node()
    runs_script = node is None or torch.is_grad_enabled() or isinstance(node, torch.autograd.function.BackwardCFunction)
    # all nodes that accumulate gradients have the same number
    return NONE if runs_script else number if (number := node._sequence_nr()) < _SAME else _ACCUMULATES


def _listed(arguments: Sequence[Any]) -> int:
    return sum(len(one) for one in arguments if isinstance(one, (list, tuple)))
