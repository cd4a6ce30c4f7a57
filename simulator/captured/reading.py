"""Reads a capture file as a captured script: events in the terms of the program, operators as work of the device."""

from __future__ import annotations

import bisect
import functools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from scaleproof.simulator.captured.groups import COLLECTIVES, GroupRoles, replicas_of, whole_bytes
from scaleproof.simulator.captured.kernels import PRECISIONS
from scaleproof.simulator.captured.record import ALLOW_TF32, NONE, Capture, Category, EventKind, RecordedRanks, TrainingPass
from scaleproof.simulator.captured.samples import samples_of
from scaleproof.simulator.captured.script import (
    CapturedClass,
    CapturedScript,
    Event,
    IssuedCollective,
    IssuedMessage,
    Operation,
    Operator,
    RecordedEvent,
    Wait,
)
from scaleproof.simulator.common.allocations import Allocation, Free
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.model.torch_operators import copied, work_of

_PHASES: Final[Mapping[int, Phase]] = {
    TrainingPass.FORWARD: Phase.FORWARD, TrainingPass.BACKWARD: Phase.BACKWARD, TrainingPass.OPTIMIZER: Phase.OPTIMIZER,
}  # fmt: skip
_HOLDERS: Final = {
    Category.WORKING: "working", Category.PARAMETERS: "parameters", Category.GRADIENTS: "gradients",
    Category.OPTIMIZER_STATES: "optimizer_states", Category.BUFFERS: "parameters", Category.INPUTS: "activations",
    Category.ACTIVATIONS: "activations", Category.RECOMPUTED: "recomputed", Category.COMMUNICATION: "communication",
}  # fmt: skip
# Optimizers of scenarios, by words in the names of classes.
_OPTIMIZERS: Final = {"lamb": "lamb", "adafactor": "adafactor", "adam": "adam", "sgd": "sgd"}
_USUAL_OPTIMIZER: Final = "adam"
_COPIES: Final = ("host to device", "device to host")
# A row after all others.
_AFTER_ALL: Final = 1 << 62


def read(path: Path) -> CapturedScript:
    """The captured script in a file. Raises InputError for a file that is missing or no capture."""
    status = path.stat() if path.is_file() else None
    return _read(path.resolve(), (status.st_mtime_ns, status.st_size) if status else (0, 0))


@functools.lru_cache(maxsize=8)
def _read(path: Path, stamp: tuple[int, int]) -> CapturedScript:
    """The captured script in a file. stamp: time and size of the file, so that a changed file is read again."""
    return script_of_capture(Capture.read(path), path.stem)


def script_of_capture(capture: Capture, name: str) -> CapturedScript:
    """The captured script of a record. Raises InputError for collectives that are not known, and scripts that never step."""
    roles = [GroupRoles.from_ranks(one) for one in capture.classes]
    replicas = replicas_of(capture, roles)
    classes = tuple(_class_of(one, role, capture.timed_s) for one, role in zip(capture.classes, roles, strict=True))
    first = min(capture.classes, key=lambda one: one.played)
    counted = samples_of(capture, replicas.count, name)
    staged = any(role.pipeline for role in roles)
    parameters = [one.parameters for one in capture.classes]
    return CapturedScript(
        name=name,
        world_size=capture.world_size,
        replicas=replicas,
        samples=counted.samples,
        tokens=counted.tokens,
        samples_rule=counted.rule,
        samples_conflict=counted.conflict,
        parameters=max(1, sum(parameters) if staged else max(parameters)),
        precision=_precision(classes),
        optimizer=_optimizer(first),
        device=capture.device,
        timed_on=capture.timed_on,
        cluster=capture.cluster,
        shards=any(role.shards for role in roles),
        classes=classes,
        warnings=(*capture.warnings, *_policies(capture), *_unknown_precisions(capture, classes)),
    )


def _precision(classes: Sequence[CapturedClass]) -> str:
    """The precision of most FLOPs of products."""
    flops: defaultdict[str, float] = defaultdict(float)
    for one in classes:
        for (operator, _), count in one.counts.items():
            flops[one.operators[operator].precision] += count * one.operators[operator].work.flops
    return max(flops, key=flops.__getitem__, default="fp32")


def _optimizer(first: RecordedRanks) -> str:
    """The optimizer of scenarios that is nearest to the script's."""
    used = " ".join(one.name.lower() for one in first.optimizers)
    return next((kind for word, kind in _OPTIMIZERS.items() if word in used), _USUAL_OPTIMIZER)


def _policies(capture: Capture) -> Iterator[str]:
    """Policies that decided values which a capture does not have, as warnings."""
    lines: defaultdict[str, set[str]] = defaultdict(set)
    for one in capture.classes:
        for decided in one.decisions:
            lines[decided.words].add(decided.line)
    for words, places in sorted(lines.items()):
        where = ", ".join(sorted(filter(None, places))) or "a line of a library"
        yield f"{where}: {words}"


def _unknown_precisions(capture: Capture, classes: Sequence[CapturedClass]) -> Iterator[str]:
    """A warning for a file of an earlier release, which does not say whether products of 32-bit floats may be TF32."""
    is_known = any(ALLOW_TF32 in signature.arguments for one in capture.classes for signature in one.signatures)
    operators = (operator for one in classes for operator in one.operators)
    if not is_known and any(operator.precision == "fp32" and operator.work.flops for operator in operators):
        yield "the file does not say whether fp32 products may be TF32, and counts none as such; capture the script again"


def _class_of(one: RecordedRanks, roles: GroupRoles, timed_s: Mapping[str, float]) -> CapturedClass:
    reader = _StepReader(one, roles, timed_s)
    placed = reader.with_last_waits(list(reader.events()))
    rows, events = [row for row, _ in placed], [event for _, event in placed]
    streams = Counter(
        event.stream for event in events if isinstance(event, Operation) and reader.operators[event.operator].work.flops
    )
    before, allocations = allocations_of(one, rows)
    return CapturedClass(
        name=one.name,
        ranks=[rank for ranks in one.ranks for rank in ranks],
        played=one.played,
        main_stream=streams.most_common(1)[0][0] if streams else 0,
        operators=reader.operators,
        events=events,
        before=before,
        allocations=allocations,
    )


class _StepReader:
    """Reads the events of a step. timed_s: seconds of operators that were timed, by their keys. operators: distinct ones, as
    far as they have been read."""

    def __init__(self, one: RecordedRanks, roles: GroupRoles, timed_s: Mapping[str, float]) -> None:
        self._one, self._roles, self._timed_s, self._phase = one, roles, timed_s, Phase.FORWARD
        # plain lists: reading single numbers from numpy arrays takes ten times as long
        self._columns: dict[str, list[Any]] = {name: column.tolist() for name, column in one.columns.items()}
        self._numbers: dict[tuple[object, ...], int] = {}
        self.operators: list[Operator] = []

    def events(self) -> Iterator[tuple[int, Event]]:
        """Rows and events of the step in order."""
        for row in self._one.rows(*EventKind).tolist():
            kind = EventKind(self._columns["kind"][row])
            # what is outside of the passes counts with the pass before it
            self._phase = _PHASES.get(self._columns["phase"][row], self._phase)
            event = self._event(row, kind)
            if event is not None:
                yield row, event

    def _event(self, row: int, kind: EventKind) -> Event | None:
        """The event of a row; None for rows of other kinds than kernels, communication and waits."""
        stream, work, event = (self._of(column, row) for column in ("stream", "work", "event"))
        match kind:
            case EventKind.OPERATOR | EventKind.COPY:
                return self._operation(row, kind)
            case EventKind.COLLECTIVE:
                return self._collective(row)
            case EventKind.SEND | EventKind.RECEIVE:
                sends = kind == EventKind.SEND
                size_bytes = float(max(0, self._of("bytes_read" if sends else "bytes_written", row)))
                peer, tag = self._of("peer", row), self._of("tag", row)
                return IssuedMessage(stream, self._phase, sends, peer, size_bytes, tag, work)
            case EventKind.EVENT_RECORD:
                return RecordedEvent(stream, event)
            case EventKind.WORK_WAIT:
                return Wait(stream, "work", work)
            case EventKind.EVENT_WAIT:
                return Wait(stream, "event", event)
            case EventKind.STREAM_WAIT:
                return Wait(stream, "stream", self._of("other_stream", row))
            case EventKind.ITEM:
                return Wait(None, "stream", stream)
            case EventKind.SYNCHRONIZE if work != NONE:
                return Wait(None, "work", work)
            case EventKind.SYNCHRONIZE if event != NONE:
                return Wait(None, "event", event)
            case EventKind.SYNCHRONIZE:
                return Wait(None, "stream", self._of("other_stream", row))
        return None

    def _of(self, column: str, row: int) -> int:
        return int(self._columns[column][row])

    def _operation(self, row: int, kind: EventKind) -> Operation:
        moved_bytes = max(0, self._of("bytes_read", row)) + max(0, self._of("bytes_written", row))
        name, signature = self._of("name", row), self._of("signature", row)
        key = (kind, name, signature, moved_bytes)
        if key not in self._numbers:
            self._numbers[key] = len(self.operators)
            self.operators.append(self._operator(row, kind, float(moved_bytes)))
        again, module = self._of("recomputed", row) == 1, self._one.text("module", row)
        host_s = max(0.0, self._columns["host_s"][row])
        return Operation(self._of("stream", row), self._phase, self._numbers[key], again, module, host_s)

    def _operator(self, row: int, kind: EventKind, moved_bytes: float) -> Operator:
        name = self._one.text("name", row)
        timed_s = self._timed_s.get(self._one.operator_key(row)) if self._timed_s else None
        if kind == EventKind.COPY:
            return Operator(name, copied(moved_bytes, crosses=name in _COPIES), "fp32", timed_s)
        signature = self._one.signature(row)
        shapes = [shape for shape, _, _ in signature.inputs]
        types = [dtype for _, dtype, _ in (*signature.inputs, *signature.outputs) if dtype in PRECISIONS]
        work = work_of(name, shapes, signature.arguments, moved_bytes)
        precision = PRECISIONS[types[0]] if types else "fp32"
        if precision == "fp32" and (work.products or work.convolution) and signature.arguments.get(ALLOW_TF32):
            precision = "tf32"
        return Operator(name, work, precision, timed_s)

    def _collective(self, row: int) -> IssuedCollective:
        name, group = self._one.text("name", row), self._of("group", row)
        op = COLLECTIVES.get(name)
        if op is None:
            raise InputError(f"a collective {name!r}, whose time is not known; those known are {', '.join(COLLECTIVES)}")
        ranks = self._one.groups[group].ranks
        read, written = (max(0, self._of(column, row)) for column in ("bytes_read", "bytes_written"))
        return IssuedCollective(
            self._of("stream", row), self._phase, op, ranks, float(whole_bytes(op, read, written, len(ranks))),
            self._one.groups[group].name, self._of("work", row), self._roles.dimension(group, op),
        )  # fmt: skip

    def with_last_waits(self, events: Sequence[tuple[int, Event]]) -> list[tuple[int, Event]]:
        """Rows and events, with waits for collectives of the backward pass that the script never waits for itself, as those of
        DDP's reducer: before the optimizer's first kernel."""
        waited = {event.number for _, event in events if isinstance(event, Wait) and event.on == "work"}
        left = [
            event.work
            for _, event in events
            if isinstance(event, IssuedCollective) and event.phase == Phase.BACKWARD and event.work not in waited
        ]
        updates = (
            place for place, (_, event) in enumerate(events) if isinstance(event, Operation) and event.phase == Phase.OPTIMIZER
        )
        first = next(updates, len(events))
        row, stream = (events[first][0], cast(Operation, events[first][1]).stream) if first < len(events) else (_AFTER_ALL, 0)
        return [*events[:first], *((row, Wait(stream, "work", work)) for work in left), *events[first:]]


def allocations_of(
    one: RecordedRanks, event_rows: Sequence[int] = ()
) -> tuple[list[Allocation | Free], list[Allocation | Free]]:
    """Allocations and frees of a class before its step and in it, in order. event_rows: rows of the step's other events."""
    rows = one.rows(EventKind.ALLOCATE, EventKind.FREE, in_step=False).tolist()
    begin = int(one.rows(EventKind.STEP)[0]) if len(one.rows(EventKind.STEP)) else 0
    columns = {name: one.columns[name].tolist() for name in ("kind", "allocation", "size", "stream", "category", "phase")}
    phase = "start"
    result: tuple[list[Allocation | Free], list[Allocation | Free]] = [], []
    for row in rows:
        in_step = row >= begin
        if in_step:
            phase = _PHASES[known].label if (known := columns["phase"][row]) in _PHASES else phase
            phase = Phase.FORWARD.label if phase == "start" else phase
        number, at = columns["allocation"][row], bisect.bisect_left(event_rows, row)
        if columns["kind"][row] == EventKind.FREE:
            result[in_step].append(Free(number, at))
            continue
        holder = _HOLDERS[Category(max(0, columns["category"][row]))]
        module, line = one.text("module", row), one.text("line", row)
        result[in_step].append(
            Allocation(number, columns["size"][row], columns["stream"][row], holder, module, line, phase, at)
        )
    return result
