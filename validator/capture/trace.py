"""The events of a rank while its script runs, and the columns of the step that is kept."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.captured.record import (
    COLUMNS,
    NONE,
    Category,
    EventKind,
    PolicyDecision,
    Signature,
    TrainingPass,
)
from scaleproof.validator.capture.context import Place, ScriptContext
from scaleproof.validator.capture.host_clock import HostClock

Row = dict[str, Any]
_TEXTS: Final = ("name", "module", "node", "line")
# Kinds of events that distinguish ranks, and their columns that do.
_COMPARED: Final = {
    EventKind.OPERATOR, EventKind.COLLECTIVE, EventKind.SEND, EventKind.RECEIVE, EventKind.WORK_WAIT, EventKind.SYNCHRONIZE,
    EventKind.ITEM, EventKind.COPY,
}  # fmt: skip
_UNORDERED: Final = {EventKind.OPERATOR, EventKind.COPY}


class AllocationRecord:
    """An allocation: the rows where it begins and ends (none yet if negative), where it was made, and what it holds."""

    __slots__ = ("born", "category", "died", "died_in", "number", "place", "size", "stream")

    def __init__(self, number: int, size: int, born: int, place: Place, stream: int) -> None:
        self.number, self.size, self.born, self.place, self.stream = number, size, born, place, stream
        self.died = NONE
        self.died_in = TrainingPass.OTHER
        self.category: Category | None = None

    def kept_category(self) -> Category:
        """What it holds; where nothing else is known, by when it lives."""
        if self.category is not None:
            return self.category
        if self.place.recomputed:
            return Category.RECOMPUTED
        outlives = self.place.phase is TrainingPass.FORWARD and self.died_in is not TrainingPass.FORWARD
        return Category.ACTIVATIONS if outlives else Category.WORKING


class RankTrace:
    """Records events. rows: of all steps so far; notes: sentences for users; decisions: values that policies decided, by
    operator, policy and line."""

    def __init__(self, context: ScriptContext) -> None:
        self.context = context
        self.host = HostClock()
        self.rows: list[Row] = []
        self.allocations: dict[int, AllocationRecord] = {}
        self._decisions: dict[tuple[str, str, str], int] = {}
        self.notes: list[str] = []
        self._works = 0
        self._peaks: list[int] = []
        self._live = 0
        self._highest = 0
        self._aside: dict[int, int] | None = None

    def __len__(self) -> int:
        """Number of events so far."""
        return len(self.rows)

    def add(self, kind: EventKind, place: Place | None = None, **columns: Any) -> None:
        """Adds an event of the current stream, unless `columns` gives another, where the script is now."""
        if self._aside is not None:
            return
        place = place or self.context.place()
        self.rows.append({"kind": kind, "stream": self.context.stream, "place": place, **columns})

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
        stream = self.context.stream
        self.allocations[number] = AllocationRecord(number, size, len(self.rows), place, stream)
        self.rows.append({"kind": EventKind.ALLOCATE, "stream": stream, "allocation": number, "size": size})
        self._live += size
        self._highest = max(self._highest, self._live)

    def freed(self, number: int) -> None:
        """An allocation ends."""
        found = self.allocations.get(number)
        if found is None:
            return
        found.died = len(self.rows)
        found.died_in = self.context.phase()
        self._live -= found.size
        self.rows.append({"kind": EventKind.FREE, "stream": self.context.stream, "allocation": number})

    def holds(self, number: int, category: Category, module: str = "") -> None:
        """Says what an allocation holds, and of which module, unless something more specific is known."""
        found = self.allocations.get(number)
        if found is None or (found.category is not None and category > found.category):
            return
        found.category = category
        if module:
            found.place = found.place._replace(module=module)

    def new_work(self) -> int:
        """A number for a collective or a message."""
        self._works += 1
        return self._works

    def answer(self, operator: str, policy: str) -> None:
        """Counts a value that a policy decides."""
        key = operator, policy, self.context.line()
        self._decisions[key] = self._decisions.get(key, 0) + 1

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

    def mark(self) -> int:
        """The row where a step may begin; its highest number of allocated bytes so far begins again."""
        self._peaks.append(self._highest)
        self._highest = self._live
        return len(self.rows)

    def peaks(self, before: int) -> tuple[int, int]:
        """Most allocated bytes in the first `before` intervals between marks, and in all later ones."""
        peaks = [*self._peaks, self._highest]
        return max(peaks[:before], default=0), max(peaks[before:], default=0)

    def columns(self, begin: int, end: int) -> KeptEvents:
        """The columns of a step that begins and ends before some rows, after the allocations that are live when it begins; and
        the calls of its operators, by their rows."""
        live = [one for one in self.allocations.values() if one.born < begin and not 0 <= one.died < begin]
        before: list[Row] = [
            {"kind": EventKind.ALLOCATE, "stream": one.stream, "allocation": one.number, "size": one.size}
            for one in sorted(live, key=lambda one: one.born)
        ]
        step: Row = {"kind": EventKind.STEP}
        rows: list[Row] = [*before, step, *self.rows[begin:end]]
        return KeptEvents(rows, self.allocations)

    def moved_bytes(self, begin: int, end: int) -> int:
        """Bytes that operators without products, and copies, read and write between two rows."""
        rows = (row for row in self.rows[begin:end] if row["kind"] in _UNORDERED and not row["flops"])
        return sum(row["bytes_read"] + row["bytes_written"] for row in rows)

    def digest(self, begin: int, end: int, moves: bool = True) -> str:
        """A hash of operators and communication between two rows. Operators without anything in between that is waited for may
        have any order, since some of PyTorch's own have none. moves: also of operators without products, and of copies."""
        digest = hashlib.sha256()
        works: dict[int, int] = {}
        launched: list[str] = []
        for row in self.rows[begin:end]:
            is_left_out = not moves and row["kind"] in _UNORDERED and not row["flops"]
            if row["kind"] not in _COMPARED or is_left_out:
                continue
            work = works.setdefault(row["work"], len(works)) if "work" in row else NONE
            text = repr((int(row["kind"]), row.get("name"), row.get("signature"), row["stream"], work, row.get("compared")))
            launched.append(text)
            if row["kind"] not in _UNORDERED:
                launched[:-1] = sorted(launched[:-1])
                digest.update("".join(launched).encode())
                launched.clear()
        digest.update("".join(sorted(launched)).encode())
        return digest.hexdigest()[:16]


class KeptEvents:
    """Columns of events, and the tables that they refer to."""

    def __init__(self, rows: Sequence[Row], allocations: Mapping[int, AllocationRecord]) -> None:
        self.strings: list[str] = []
        self.signatures: list[Signature] = []
        self._texts: dict[str, int] = {}
        self._signatures: dict[str, int] = {}
        self.columns = {name: np.full(len(rows), NONE, column.dtype) for name, column in COLUMNS.items()}
        self.calls = {place: row["call"] for place, row in enumerate(rows) if row.get("call") is not None}
        plain = [self._plain(row, allocations) for row in rows]
        for name, column in self.columns.items():
            self._fill(column, (row.get(name, NONE) for row in plain))

    @staticmethod
    def _fill(column: NDArray[Any], values: Iterable[Any]) -> None:
        column[:] = np.fromiter(values, column.dtype, len(column))

    def _plain(self, row: Row, allocations: Mapping[int, AllocationRecord]) -> Row:
        plain = {name: value for name, value in row.items() if name in COLUMNS}
        is_allocation = row["kind"] == EventKind.ALLOCATE
        place: Place | None = allocations[row["allocation"]].place if is_allocation else row.get("place")
        if place is not None:
            plain |= {"phase": place.phase, "recomputed": int(place.recomputed)}
            plain |= {"module": place.module, "node": place.node, "line": place.line}
        for name in _TEXTS:
            if name in plain:
                plain[name] = self._text(plain[name]) if plain[name] or name == "module" else NONE
        if "signature" in plain:
            plain["signature"] = self._signature(plain["signature"])
        if is_allocation:
            plain["category"] = allocations[row["allocation"]].kept_category()
        return plain

    def _text(self, text: str) -> int:
        index = self._texts.setdefault(text, len(self.strings))
        if index == len(self.strings):
            self.strings.append(text)
        return index

    def _signature(self, signature: Signature) -> int:
        key = repr(signature)
        index = self._signatures.setdefault(key, len(self.signatures))
        if index == len(self.signatures):
            self.signatures.append(signature)
        return index
