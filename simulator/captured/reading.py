"""Reads a capture file as a captured script: events in the terms of the program, operators as work of the device."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.captured.groups import COLLECTIVES, GroupRoles, replicas_of, whole_bytes
from scaleproof.simulator.captured.kernels import PRECISIONS
from scaleproof.simulator.captured.known_kernels import kernel_work
from scaleproof.simulator.captured.record import ALLOW_TF32, NONE, Capture, Category, EventKind, RecordedRanks, TrainingPass
from scaleproof.simulator.captured.samples import samples_of
from scaleproof.simulator.captured.script import LAUNCHES, CapturedClass, CapturedScript, Events, Operator
from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.common.allocations import Allocation, Free
from scaleproof.simulator.common.communication import Dimension
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.model.torch_operators import copied

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
_COPIES: Final = {"host to device": Dimension.FROM_HOST, "device to host": Dimension.TO_HOST}
# Columns of events that programs use as they are recorded.
_AS_RECORDED: Final = ("stream", "recomputed", "group", "peer", "tag", "work", "event", "other_stream", "size")


def read(path: Path, known: Path | None = None) -> CapturedScript:
    """The captured script in a file. known: a file of kernels from outside PyTorch, in addition to those that are shipped.
    Raises InputError for a file that is missing or no capture, or describes kernels wrongly."""
    status = path.stat() if path.is_file() else None
    return _read(path.resolve(), (status.st_mtime_ns, status.st_size) if status else (0, 0), known)


@functools.lru_cache(maxsize=8)
def _read(path: Path, stamp: tuple[int, int], known: Path | None) -> CapturedScript:
    """The captured script in a file. stamp: time and size of the file, so that a changed file is read again."""
    return script_of_capture(Capture.read(path), path.stem, known)


def script_of_capture(capture: Capture, name: str, known: Path | None = None) -> CapturedScript:
    """The captured script of a record. known: see `read`. Raises InputError for collectives that are not known, and
    scripts that never step."""
    roles = [GroupRoles.from_ranks(one) for one in capture.classes]
    replicas = replicas_of(capture, roles)
    classes = tuple(_class_of(one, role, capture.timed_s, known) for one, role in zip(capture.classes, roles, strict=True))
    first = min(capture.classes, key=lambda one: one.played)
    works = [operator.work for one in classes for operator in one.operators]
    attention = {(int(work.samples), work.attention.queries) for work in works if work.attention is not None}
    counted = samples_of(capture, replicas.count, name, attention)
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
        samples_known=counted.is_known,
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


def _class_of(one: RecordedRanks, roles: GroupRoles, timed_s: Mapping[str, float], known: Path | None) -> CapturedClass:
    reader = _StepReader(one, roles, timed_s, known)
    events, operators = reader.events(), reader.operators
    streams = Counter(events.stream[row] for row in events.rows(*LAUNCHES) if operators[events.operator[row]].work.flops)
    before, allocations = allocations_of(one)
    return CapturedClass(
        name=one.name,
        ranks=[rank for ranks in one.ranks for rank in ranks],
        played=one.played,
        main_stream=streams.most_common(1)[0][0] if streams else 0,
        operators=operators,
        events=events,
        groups=one.groups,
        before=before,
        allocations=allocations,
    )


class _StepReader:
    """Reads the events of a step. timed_s: seconds of operators that were timed, by their keys. known: see `read`. operators:
    distinct ones, as far as they have been read."""

    def __init__(self, one: RecordedRanks, roles: GroupRoles, timed_s: Mapping[str, float], known: Path | None = None) -> None:
        self._one, self._roles, self._timed_s, self._known = one, roles, timed_s, known
        # plain lists: reading single numbers from numpy arrays takes ten times as long
        self._columns: dict[str, list[Any]] = {name: column[one.begin :].tolist() for name, column in one.columns.items()}
        self._kinds = list(map(EventKind, self._columns["kind"]))
        self._numbers: dict[tuple[object, ...], int] = {}
        self.operators: list[Operator] = []

    def events(self) -> Events:
        """The events of the step."""
        columns, one = self._columns, self._one
        ops = [self._op(row) if kind is EventKind.COLLECTIVE else None for row, kind in enumerate(self._kinds)]
        return Events(
            kind=self._kinds,
            phase=list(self._phases()),
            module=[one.strings[index] if index != NONE else "" for index in columns["module"]],
            operator=[self._operator_number(row) if kind in LAUNCHES else NONE for row, kind in enumerate(self._kinds)],
            host_s=[max(0.0, seconds) for seconds in columns["host_s"]],
            op=ops,
            dimension=[self._dimension(row, op) for row, op in enumerate(ops)],
            size_bytes=[self._size_bytes(row, op) for row, op in enumerate(ops)],
            **{name: columns[name] for name in _AS_RECORDED},
        )

    def _phases(self) -> Iterator[Phase]:
        """Phases of the rows. What is outside of the passes counts with the pass before it."""
        phase = Phase.FORWARD
        for recorded in self._columns["phase"]:
            phase = _PHASES.get(recorded, phase)
            yield phase

    def _moved_bytes(self, row: int) -> tuple[int, int]:
        """Bytes that an event reads and writes."""
        return max(0, self._columns["bytes_read"][row]), max(0, self._columns["bytes_written"][row])

    def _operator_number(self, row: int) -> int:
        """The index of an operator, which is added to the distinct ones if it is another one."""
        columns, moved_bytes = self._columns, sum(self._moved_bytes(row))
        key = (columns["kind"][row], columns["name"][row], columns["signature"][row], moved_bytes)
        if key not in self._numbers:
            self._numbers[key] = len(self.operators)
            self.operators.append(self._operator(row, float(moved_bytes)))
        return self._numbers[key]

    def _operator(self, row: int, moved_bytes: float) -> Operator:
        recorded = self._one.begin + row
        name = self._one.text("name", recorded)
        timed_s = self._timed_s.get(self._one.operator_key(recorded)) if self._timed_s else None
        if self._kinds[row] is EventKind.COPY:
            return Operator(name, copied(moved_bytes, crosses=name in _COPIES), "fp32", timed_s)
        signature = self._one.signature(recorded)
        types = [dtype for _, dtype, _ in (*signature.inputs, *signature.outputs) if dtype in PRECISIONS]
        work = kernel_work(name, signature, moved_bytes, self._known)
        precision = PRECISIONS[types[0]] if types else "fp32"
        if precision == "fp32" and (work.products or work.convolution) and signature.arguments.get(ALLOW_TF32):
            precision = "tf32"
        return Operator(name, work, precision, timed_s)

    def _op(self, row: int) -> Op:
        """The operation of a collective. Raises InputError for one that is not known."""
        name = self._one.text("name", self._one.begin + row)
        if name not in COLLECTIVES:
            raise InputError(f"a collective {name!r}, whose time is not known; those known are {', '.join(COLLECTIVES)}")
        return COLLECTIVES[name]

    def _dimension(self, row: int, op: Op | None) -> Dimension | None:
        """The parallel dimension of a collective, or the direction of a copy between device and host."""
        if op is not None:
            return self._roles.dimension(self._columns["group"][row], op)
        return _COPIES.get(self._one.text("name", self._one.begin + row)) if self._kinds[row] is EventKind.COPY else None

    def _size_bytes(self, row: int, op: Op | None) -> float:
        """Bytes of a message, of a copy, or of a collective's whole buffer; 0 for other events."""
        read, written = self._moved_bytes(row)
        if op is not None:
            return float(whole_bytes(op, read, written, len(self._one.groups[self._columns["group"][row]].ranks)))
        sizes = {EventKind.SEND: read, EventKind.RECEIVE: written, EventKind.COPY: written}
        return float(sizes.get(self._kinds[row], 0))


def allocations_of(one: RecordedRanks) -> tuple[list[Allocation | Free], list[Allocation | Free]]:
    """Allocations and frees of a class before its step and in it, in order."""
    rows = one.rows(EventKind.ALLOCATE, EventKind.FREE, in_step=False).tolist()
    columns = {name: one.columns[name].tolist() for name in ("kind", "allocation", "size", "stream", "category", "phase")}
    phase = "start"
    result: tuple[list[Allocation | Free], list[Allocation | Free]] = [], []
    for row in rows:
        in_step = row >= one.begin
        if in_step:
            phase = _PHASES[known].label if (known := columns["phase"][row]) in _PHASES else phase
            phase = Phase.FORWARD.label if phase == "start" else phase
        number, at = columns["allocation"][row], max(0, row - one.begin)
        if columns["kind"][row] == EventKind.FREE:
            result[in_step].append(Free(number, at))
            continue
        holder = _HOLDERS[Category(max(0, columns["category"][row]))]
        module, line = one.text("module", row), one.text("line", row)
        result[in_step].append(
            Allocation(number, columns["size"][row], columns["stream"][row], holder, module, line, phase, at)
        )
    return result
