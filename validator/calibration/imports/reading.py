"""Reading of other tools' files: text and JSON, compressed or not; the points found in them, and notes on what is unused."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.simulator.common.errors import InputError, printable

if TYPE_CHECKING:
    from scaleproof.validator.probe.points import Point

_GZIP: Final = b"\x1f\x8b"
# Limit of a file's size, also after unpacking: gzip shrinks repetitive content a thousandfold. Larger traces have more steps
# than needed, and JSON takes ten times its size in memory.
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
    """tool: that wrote the files. files: their paths. machines: the largest that was measured on."""

    tool: str
    files: Sequence[str]
    machines: Machines
    points: list[Point]
    notes: ImportNotes = field(default_factory=ImportNotes)


def ranks_text(ranks: int) -> str:
    """The first `ranks` ranks as text: 'ranks 0-7'."""
    return f"ranks 0-{ranks - 1}" if ranks > 1 else "rank 0"


def group_text(ranks: int, nodes: int) -> str:
    """Class of a collective's group: '4 ranks on 4 nodes'."""
    return f"{ranks} ranks on {nodes} nodes"


def read_bytes(path: Path) -> bytes:
    """A file's content, unpacked if gzipped; of a truncated file the part that can be unpacked. Raises InputError."""
    try:
        with path.open("rb") as file:
            content = _parts(path, file.read1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}; give a readable file") from None
    if not content.startswith(_GZIP):
        return content
    try:
        with gzip.open(io.BytesIO(content)) as packed:
            return _parts(path, packed.read1)
    except (OSError, EOFError, zlib.error):
        raise InputError(f"{path}: damaged, gzip cannot unpack it; copy it again") from None


def _parts(path: Path, read: Callable[[int], bytes]) -> bytes:
    """Reads all parts: up to a premature end, and at most `_MAX_BYTES`. Raises InputError."""
    whole = bytearray()
    while True:
        try:
            part = read(_PART_BYTES)
        except EOFError:
            if not whole:
                raise
            part = b""
        if not part:
            return bytes(whole)
        whole += part
        if len(whole) > _MAX_BYTES:
            raise InputError(f"{path}: more than {_MAX_BYTES >> 30} GiB; record fewer steps")


def read_text(path: Path, expected: str) -> str:
    """Content of a text file. Raises InputError, naming what was expected, if it is not text."""
    content = read_bytes(path)
    if b"\0" in content[:4096]:
        raise InputError(f"{path}: not text; expected {expected}")
    return content.decode("utf-8", errors="replace")


def read_json(path: Path, expected: str, items: str, notes: ImportNotes) -> Any:
    """A JSON document. Of a truncated one, the complete items of the list called `items`, with a note.

    Raises InputError, naming what was expected.
    """
    text = read_text(path, expected)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        complete = _complete_items(text, items)
        if not complete:
            raise InputError(f"{path}:{error.lineno}: not JSON ({error.msg}); expected {expected}") from None
        message = f"not JSON from here on ({error.msg}); the {len(complete)} {items} before it are used"
        notes.add(f"{path}:{error.lineno}: {message}")
        return {items: complete}
    except RecursionError:
        raise InputError(f"{path}: nested too deeply; expected {expected}") from None
    except ValueError:
        raise InputError(f"{path}: a number of thousands of digits; expected {expected}") from None


def _complete_items(text: str, items: str) -> list[Any]:
    """Items of a list, up to the first that cannot be decoded."""
    start = text.find(f'"{items}"')
    at = text.find("[", start) + 1 if start >= 0 else 0
    decoder, complete = json.JSONDecoder(), []
    while at:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        try:
            item, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        complete.append(item)
    return complete


def as_number(value: object) -> float | None:
    """The finite number that a JSON or protobuf value holds as a number or as text; None otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None


def as_list(value: object) -> list[Any]:
    """The value if it is a list, otherwise an empty list."""
    return value if isinstance(value, list) else []
