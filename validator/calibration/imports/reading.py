"""Reading of other tools' files, compressed or not; the points found in them, and notes on what is unused."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.simulator.common.errors import InputError, printable

if TYPE_CHECKING:
    from scaleproof.validator.probe.points import Point

_GZIP: Final = b"\x1f\x8b"
# Limit of the size of a file in memory, also after unpacking: gzip shrinks repetitive content a thousandfold.
_MAX_BYTES: Final = 2**30
_PART_BYTES: Final = 2**20
# Number of notes of one kind that are printed.
_PRINTED: Final = 3


@dataclass
class ImportNotes:
    """Notes on what could not be used or was assumed, in order. kind: notes of the same kind are abbreviated after the first
    few."""

    _lines: list[tuple[str, str]] = field(default_factory=list)

    def add(self, text: str, kind: str = "") -> None:
        """Adds a note, which may quote a file's content. Notes without a kind are always printed."""
        self._lines.append((kind, printable(text)))

    def lines(self) -> list[str]:
        """The first few notes of each kind, then the number of further ones."""
        counts: Counter[str] = Counter()
        printed = []
        for kind, text in self._lines:
            counts[kind] += bool(kind)
            if counts[kind] <= _PRINTED:
                printed.append(text)
        further = {kind: count - _PRINTED for kind, count in counts.items() if count > _PRINTED}
        return [*printed, *(f"and {count} more of this kind: {kind}" for kind, count in further.items())]


@dataclass(frozen=True)
class Machines:
    """The measured machines. gpu: name given by the driver. nodes: their number. devices: per node. 0 or "" if unknown."""

    gpu: str = ""
    nodes: int = 0
    devices: int = 0


@dataclass
class ImportResult:
    """tool: that wrote the files. files: their paths. machines: the largest that was measured on. library: release of the
    communication library, such as '2.28.7', or "" if unknown."""

    tool: str
    files: Sequence[str]
    machines: Machines
    points: list[Point]
    notes: ImportNotes = field(default_factory=ImportNotes)
    library: str = ""


def ranks_text(ranks: int) -> str:
    """The first `ranks` ranks as text: 'ranks 0-7'."""
    return f"ranks 0-{ranks - 1}" if ranks > 1 else "rank 0"


def group_text(ranks: int, nodes: int) -> str:
    """Class of a collective's group: '4 ranks on 4 nodes'."""
    return f"{ranks} ranks on {nodes} nodes"


def read_bytes(path: Path) -> bytes:
    """A file's content, unpacked if gzipped; of a truncated file the part that can be unpacked. Raises InputError."""
    return b"".join(byte_parts(path, _MAX_BYTES))


def byte_parts(path: Path, most_bytes: int) -> Iterator[bytes]:
    """Parts of a file's content, unpacked if gzipped, up to a premature end. Raises InputError, also for more bytes."""
    try:
        with path.open("rb") as file:
            is_packed = file.peek(len(_GZIP)).startswith(_GZIP)
            parts = _unpacked(path, file) if is_packed else iter(lambda: file.read1(_PART_BYTES), b"")
            yield from _limited(path, parts, most_bytes)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}; give a readable file") from None


def _unpacked(path: Path, file: BufferedReader) -> Iterator[bytes]:
    read = 0
    try:
        with gzip.open(file) as packed:
            while part := packed.read1(_PART_BYTES):
                read += len(part)
                yield part
    except (OSError, EOFError, zlib.error) as error:
        # a truncated file ends early; other errors are damage
        if read == 0 or not isinstance(error, EOFError):
            raise InputError(f"{path}: damaged, gzip cannot unpack it; copy it again") from None


def _limited(path: Path, parts: Iterator[bytes], most_bytes: int) -> Iterator[bytes]:
    read = 0
    for part in parts:
        read += len(part)
        if read > most_bytes:
            raise InputError(f"{path}: more than {most_bytes >> 30} GiB; record fewer steps")
        yield part


def read_text(path: Path, expected: str) -> str:
    """Content of a text file. Raises InputError, naming what was expected, if it is not text."""
    content = read_bytes(path)
    if b"\0" in content[:4096]:
        raise InputError(f"{path}: not text; expected {expected}")
    return content.decode("utf-8", errors="replace")


def as_number(value: object) -> float | None:
    """The finite number that a JSON or protobuf value holds as a number or as text; None otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None


def clock_text(at_s: float) -> str:
    """A time in seconds since 1970 as hours, minutes and seconds in UTC; empty if it cannot be read."""
    try:
        return f"{datetime.fromtimestamp(at_s, UTC):%H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return ""


def as_list(value: object) -> list[Any]:
    """The value if it is a list, otherwise an empty list."""
    return value if isinstance(value, list) else []
