"""The file of a captured training script: operators, communication, waits and memory of one step of each rank class.

It is a zip archive: `manifest.json`, and for each class `events-N.npz` (columns, one row per event), `strings-N.json` (names)
and `signatures-N.json` (shapes). Rows are in the order of the host. Rows before the row STEP are allocations that are live when
the step begins; the rows after it are those of one steady step.
"""

from __future__ import annotations

import functools
import io
import json
import threading
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import InputError

VERSION: Final = 1
NONE: Final = -1
# The operator by which a script reads a value from the device.
VALUE_READ: Final = "aten::_local_scalar_dense"
# The policy of values of collectives.
EQUAL_RANKS: Final = "of equal ranks"
# The argument of a signature that says whether products of 32-bit floats may be computed as TF32.
ALLOW_TF32: Final = "allow_tf32"
# Most bytes that a file may hold after decompression.
_MOST_BYTES: Final = 4 << 30
# A fixed date, so that equal captures are equal files.
_DATE: Final = (1980, 1, 1, 0, 0, 0)


class EventKind(IntEnum):
    """What the host does.

    OPERATOR launches an operator on a stream. COLLECTIVE issues a collective, SEND and RECEIVE a message; WORK_WAIT makes a
    stream wait for one of them. EVENT_RECORD and EVENT_WAIT are of CUDA events; STREAM_WAIT makes a stream wait for another
    stream so far. SYNCHRONIZE makes the host wait: for a stream, an event, a work or, without any of them, the device. ITEM
    reads a value to the host, which waits for the stream. COPY copies between host and device or within it. ALLOCATE and FREE
    are of device memory. STEP begins the step. HOST_UPDATE is an optimizer's step over parameters on the host.
    """

    OPERATOR = 0
    COLLECTIVE = 1
    SEND = 2
    RECEIVE = 3
    WORK_WAIT = 4
    EVENT_RECORD = 5
    EVENT_WAIT = 6
    STREAM_WAIT = 7
    SYNCHRONIZE = 8
    ITEM = 9
    COPY = 10
    ALLOCATE = 11
    FREE = 12
    STEP = 13
    HOST_UPDATE = 14


class TrainingPass(IntEnum):
    """The part of a training step."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3


class Category(IntEnum):
    """What an allocation holds.

    ACTIVATIONS are allocated in the forward pass and freed in the backward pass; RECOMPUTED are allocated by a repeated forward
    pass; INPUTS are copied from the host; COMMUNICATION is written by collectives and receives; WORKING is all the rest.
    """

    WORKING = 0
    PARAMETERS = 1
    GRADIENTS = 2
    OPTIMIZER_STATES = 3
    BUFFERS = 4
    INPUTS = 5
    ACTIVATIONS = 6
    RECOMPUTED = 7
    COMMUNICATION = 8

    @property
    def label(self) -> str:
        """The name that users read, such as 'optimizer states'."""
        return self.name.lower().replace("_", " ")


class Column(NamedTuple):
    """A column of events: its type and its meaning. Columns hold NONE (−1) where they do not apply."""

    dtype: DTypeLike
    meaning: str


COLUMNS: Final[Mapping[str, Column]] = {
    "kind": Column("i1", "EventKind"),
    "name": Column("i4", "index of a string: an operator such as 'aten::mm', a collective such as 'all_reduce' or 'alltoall', "
                   "or the kind of a copy: 'host to device', 'device to host', 'device to device'"),
    "signature": Column("i4", "index of the signature of an operator, collective, message or copy"),
    "stream": Column("i4", "number of the stream that it is launched on, or that waits; 0 is the default stream"),
    "other_stream": Column("i4", "of STREAM_WAIT and SYNCHRONIZE: the stream that is waited for"),
    "phase": Column("i1", "TrainingPass"),
    "module": Column("i4", "index of a string: path of the module, such as 'layers.3.attention'; '' for the root"),
    "recomputed": Column("i1", "1 where the forward pass is repeated in the backward pass, else 0"),
    "node": Column("i4", "index of a string: the node of autograd that runs it, such as 'MmBackward0'"),
    "bytes_read": Column("i8", "bytes of the tensors that an operator reads; of a collective or SEND, of this rank's input"),
    "bytes_written": Column("i8", "bytes of the tensors that an operator writes; of a collective or RECEIVE, of its output"),
    "flops": Column("f8", "FLOPs of products, convolutions and attention, two per multiply-add; 0 for other operators"),
    "host_s": Column("f8", "seconds of the script's own code on the capturing machine's host before an operator"),
    "group": Column("i4", "index of the process group of a collective or a message"),
    "peer": Column("i4", "the other rank of a message, or the root of a collective: a rank of the whole job"),
    "tag": Column("i4", "tag of a message"),
    "event": Column("i4", "number of a CUDA event"),
    "work": Column("i4", "number of a collective or message, and of the waits for it; a batch of messages shares one"),
    "allocation": Column("i4", "number of an allocation, and of its end"),
    "size": Column("i8", "bytes requested by ALLOCATE; parameters that HOST_UPDATE updates"),
    "category": Column("i1", "Category of ALLOCATE"),
    "line": Column("i4", "index of a string: 'train.py:12', the innermost line that is the script's own"),
}  # fmt: skip


# Columns that refer to strings.
_TEXTS: Final = ("name", "module", "node", "line")


class Signature(NamedTuple):
    """Tensors of an operator: those that it reads and those that it writes, each with shape and type such as 'bfloat16', and
    whether it is contiguous; and arguments that determine its FLOPs, by name."""

    inputs: tuple[tuple[tuple[int, ...], str, bool], ...]
    outputs: tuple[tuple[tuple[int, ...], str, bool], ...]
    arguments: Mapping[str, Any]


class RecordedEvents(NamedTuple):
    """Columns of events, and the strings and signatures that they refer to."""

    columns: Mapping[str, NDArray[Any]]
    strings: Sequence[str]
    signatures: Sequence[Signature]


class _Numbers:
    """Distinct values in the order in which they were first numbered."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number(self, value: Any) -> int:
        number = self._numbers.setdefault(value if isinstance(value, str) else repr(value), len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class EventWriter:
    """Events while they are recorded, on any thread. columns: a list of plain numbers for each, with NONE where it does not
    apply."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._strings, self._signatures = _Numbers(), _Numbers()
        self._lock = threading.RLock()

    def __len__(self) -> int:
        """Number of events so far."""
        return len(self.columns["kind"])

    def add(self, kind: EventKind, **columns: Any) -> int:
        """Adds an event by the columns that apply to it, texts and signatures as such. Returns its row."""
        plain = {name: self._plain(name, value) for name, value in columns.items()} | {"kind": kind}
        with self._lock:
            for name, column in self.columns.items():
                column.append(plain.get(name, NONE))
            return len(self) - 1

    def set(self, row: int, column: str, value: Any) -> None:
        """Changes a column of an event."""
        self.columns[column][row] = self._plain(column, value)

    def value(self, row: int, column: str) -> Any:
        """A column of an event, texts and signatures as such; None where it does not apply."""
        plain = self.columns[column][row]
        numbers = self._numbers(column)
        return None if plain == NONE else plain if numbers is None else numbers.values[plain]

    def part(self, rows: Sequence[int]) -> RecordedEvents:
        """Some events in the order of their rows, with the strings and signatures that they refer to."""
        part = EventWriter()
        columns: dict[str, NDArray[Any]] = {}
        for name, column in self.columns.items():
            numbers = self._numbers(name)
            values = [column[row] for row in rows]
            if numbers is not None:
                values = [NONE if value == NONE else part._plain(name, numbers.values[value]) for value in values]
            columns[name] = np.array(values, COLUMNS[name].dtype)
        return RecordedEvents(columns, part._strings.values, part._signatures.values)

    def _numbers(self, column: str) -> _Numbers | None:
        """The values that a column refers to, if it does."""
        return self._signatures if column == "signature" else self._strings if column in _TEXTS else None

    def _plain(self, column: str, value: Any) -> Any:
        numbers = self._numbers(column)
        if numbers is None or value == NONE:
            return value
        # only the root module has an empty text
        return NONE if value == "" and column != "module" else numbers.number(value)


@dataclass(frozen=True)
class ProcessGroup:
    """A process group that the script made. ranks: of the whole job, ascending. description: such as 'mesh_dp'."""

    name: str
    ranks: Sequence[int]
    description: str = ""


class PolicyDecision(NamedTuple):
    """Values that were not computed: an operator read unknown floats, and a policy decided its result, `times` times. Of the
    policy EQUAL_RANKS: values that the script reads of a collective, `operator`, to which all ranks contributed the same."""

    operator: str
    policy: str
    times: int
    line: str

    @property
    def words(self) -> str:
        """'the result of topk depends on floats, which a capture does not compute; taken as balanced'."""
        if self.policy == EQUAL_RANKS:
            return f"the script reads a result of {self.operator}; all ranks count as contributing the same"
        name = self.operator.rpartition("::")[2]
        what = "a value that the script reads" if self.operator in (VALUE_READ, "aten::copy_") else f"the result of {name}"
        return f"{what} depends on floats, which a capture does not compute; taken as {self.policy}"


class ModelInput(NamedTuple):
    """Inputs of the outermost module in a step: shapes of the tensors that it was called with, and the number of calls."""

    module: str
    shapes: tuple[tuple[int, ...], ...]
    calls: int


class UsedOptimizer(NamedTuple):
    """An optimizer: its class such as 'AdamW', and the number of steps that it takes in a step of the script."""

    name: str
    steps: int


@dataclass(frozen=True, eq=False)
class RecordedRanks:
    """Ranks that do the same, and a step of one of them.

    ranks: ranges of them. played: the rank whose script ran. why: what distinguishes them. groups: those of the played rank.
    parameters: number of the model's parameters that this rank trains; the whole parameter counts where ranks shard it.
    local_parameters: number of them that this rank has. columns: of events, see COLUMNS. peak_bytes: the most that was
    allocated until the step began and within it, without the allocator's rounding. operators_hash: of all launches and
    communication of the step, in order; equal for ranks of a class.
    """

    name: str
    ranks: tuple[range, ...]
    played: int
    why: str
    groups: tuple[ProcessGroup, ...]
    parameters: int
    local_parameters: int
    inputs: tuple[ModelInput, ...]
    optimizers: tuple[UsedOptimizer, ...]
    kept_step: int
    steps: int
    peak_bytes: tuple[int, int]
    operators_hash: str
    decisions: tuple[PolicyDecision, ...]
    columns: Mapping[str, NDArray[Any]]
    strings: Sequence[str]
    signatures: Sequence[Signature]

    def __len__(self) -> int:
        """Number of ranks."""
        return sum(len(ranks) for ranks in self.ranks)

    @functools.cached_property
    def begin(self) -> int:
        """The row at which the step begins."""
        return int(np.argmax(self.columns["kind"] == EventKind.STEP))

    def rows(self, *kinds: EventKind, in_step: bool = True) -> NDArray[np.intp]:
        """Rows of events of some kinds, in order. in_step: without the allocations from before the step."""
        begin = self.begin if in_step else 0
        return np.flatnonzero(np.isin(self.columns["kind"][begin:], kinds)) + begin

    def text(self, column: str, row: int) -> str:
        """The string that a column refers to; '' where there is none."""
        index = int(self.columns[column][row])
        return self.strings[index] if index != NONE else ""

    def operator_key(self, row: int) -> str:
        """What distinguishes an operator from others: its name, its signature, and the bytes that it moves."""
        read, written = (int(self.columns[name][row]) for name in ("bytes_read", "bytes_written"))
        return f"{self.text('name', row)} {json.dumps(self.signature(row))} {max(0, read) + max(0, written)}"

    def signature(self, row: int) -> Signature:
        """The signature of an event; without tensors and arguments if none was recorded."""
        index = int(self.columns["signature"][row])
        return self.signatures[index] if index != NONE else Signature((), (), {})


@dataclass(frozen=True, eq=False)
class Capture:
    """A captured training script.

    script: its path or module as given; arguments: what it was called with. device: name in the catalog; cluster: name, or
    None. warnings: sentences for the user. timed_on: name of the device on which operators were timed, empty if none were;
    timed_s: seconds of an operator by `RecordedRanks.operator_key`. samples, tokens: of a step of all ranks, where the
    user gave them.
    """

    script: str
    arguments: tuple[str, ...]
    torch: str
    world_size: int
    ranks_per_node: int
    device: str
    cluster: str | None
    classes: tuple[RecordedRanks, ...]
    warnings: tuple[str, ...] = ()
    timed_on: str = ""
    timed_s: Mapping[str, float] = field(default_factory=dict)
    samples: int | None = None
    tokens: int | None = None
    version: int = field(default=VERSION)

    def write(self, path: Path) -> None:
        """Writes the file, whole or not at all."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            _add(archive, "manifest.json", self._manifest())
            for number, one in enumerate(self.classes):
                columns = io.BytesIO()
                np.savez(columns, allow_pickle=False, **one.columns)
                archive.writestr(_member(f"events-{number}.npz"), columns.getvalue(), zipfile.ZIP_DEFLATED)
                _add(archive, f"strings-{number}.json", list(one.strings))
                _add(archive, f"signatures-{number}.json", [list(signature) for signature in one.signatures])
        write_atomically(path, buffer.getvalue())

    def _manifest(self) -> dict[str, Any]:
        plain = {own.name: getattr(self, own.name) for own in fields(self)}
        return plain | {"classes": [_class_plain(one) for one in self.classes]}

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a file. Raises InputError for one that is missing, damaged, of another version, or no capture."""
        try:
            return cls._read(path)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}; give the file that 'scaleproof capture' wrote") from None
        except (KeyError, ValueError, TypeError, IndexError, zipfile.BadZipFile) as error:
            message = f"{path}: not a capture ({type(error).__name__}: {error}); write it again with 'scaleproof capture'"
            raise InputError(message) from None

    @classmethod
    def _read(cls, path: Path) -> Self:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > _MOST_BYTES:
                raise ValueError(f"larger than {_MOST_BYTES >> 30} GiB")
            plain = json.loads(archive.read("manifest.json"))
            if plain["version"] != VERSION:
                raise ValueError(f"version {plain['version']}, expected {VERSION}")
            classes = tuple(_read_class(archive, number, one) for number, one in enumerate(plain["classes"]))
        return cls(**plain | {"classes": classes, "arguments": tuple(plain["arguments"]), "warnings": tuple(plain["warnings"])})


def compact(ranks: Sequence[int]) -> range | tuple[int, ...]:
    """Ranks as a range where they are evenly spaced."""
    if isinstance(ranks, range):
        return ranks
    spacing = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    even = range(ranks[0], ranks[0] + spacing * len(ranks), spacing) if ranks and spacing > 0 else range(0)
    return even if len(even) == len(ranks) and all(a == b for a, b in zip(even, ranks, strict=True)) else tuple(ranks)


def _ranks_plain(ranks: Sequence[int]) -> Any:
    short = compact(ranks)
    return {"start": short.start, "stop": short.stop, "step": short.step} if isinstance(short, range) else list(short)


def _ranks_of(plain: Any) -> range | tuple[int, ...]:
    return range(plain["start"], plain["stop"], plain["step"]) if isinstance(plain, dict) else tuple(plain)


def _class_plain(one: RecordedRanks) -> dict[str, Any]:
    in_files = ("columns", "strings", "signatures")
    plain = {own.name: getattr(one, own.name) for own in fields(one) if own.name not in in_files}
    groups = [{"name": g.name, "ranks": _ranks_plain(g.ranks), "description": g.description} for g in one.groups]
    records = {name: [each._asdict() for each in plain[name]] for name in ("decisions", "inputs", "optimizers")}
    return plain | {"ranks": [_ranks_plain(ranks) for ranks in one.ranks], "groups": groups} | records


def _read_class(archive: zipfile.ZipFile, number: int, plain: dict[str, Any]) -> RecordedRanks:
    with np.load(io.BytesIO(archive.read(f"events-{number}.npz")), allow_pickle=False) as loaded:
        # files of earlier releases lack some columns
        missing = np.full(len(loaded["kind"]), NONE)
        columns = {name: loaded.get(name, missing.astype(column.dtype)) for name, column in COLUMNS.items()}
    if len({len(column) for column in columns.values()}) != 1:
        raise ValueError("columns of different lengths")
    groups = tuple(ProcessGroup(**group | {"ranks": _ranks_of(group["ranks"])}) for group in plain["groups"])
    ranges = tuple(_ranks_of(ranks) for ranks in plain["ranks"])
    if not all(isinstance(ranks, range) for ranks in ranges):
        raise ValueError("a class with ranks that are no ranges")
    inputs = tuple(ModelInput(one["module"], _shapes(one["shapes"]), one["calls"]) for one in plain["inputs"])
    signatures = [
        Signature(_tensors(inputs), _tensors(outputs), arguments)
        for inputs, outputs, arguments in json.loads(archive.read(f"signatures-{number}.json"))
    ]
    return RecordedRanks(
        **plain | {
            "ranks": ranges, "groups": groups, "inputs": inputs, "peak_bytes": tuple(plain["peak_bytes"]),
            "decisions": tuple(PolicyDecision(**one) for one in plain["decisions"]),
            "optimizers": tuple(UsedOptimizer(**one) for one in plain["optimizers"]),
        },
        columns=columns, strings=json.loads(archive.read(f"strings-{number}.json")), signatures=signatures,
    )  # fmt: skip


def _shapes(plain: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(shape) for shape in plain)


def _tensors(plain: Sequence[Any]) -> tuple[tuple[tuple[int, ...], str, bool], ...]:
    return tuple((tuple(shape), dtype, bool(contiguous)) for shape, dtype, contiguous in plain)


def _add(archive: zipfile.ZipFile, name: str, plain: Any) -> None:
    archive.writestr(_member(name), json.dumps(plain, separators=(",", ":")), zipfile.ZIP_DEFLATED)


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, _DATE)
