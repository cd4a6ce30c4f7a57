"""Reading what others wrote: text and JSON, compressed or not, and notes of what could not be used."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common.errors import InputError, printable

_GZIP: Final = b"\x1f\x8b"
# Of a file, also once it is unpacked: gzip makes a thousandth of what is all alike. A trace of a long run is larger than what
# it takes to say what a step is like, and JSON takes ten times its size in memory.
_MAX_BYTES: Final = 2**30
_PART_BYTES: Final = 2**20
# Notes of one kind that are told one by one.
_TOLD: Final = 3


@dataclass
class ImportNotes:
    """What could not be used, or was assumed, in the order in which it was met. kind: of which no more than a few are told."""

    _lines: list[tuple[str, str]] = field(default_factory=list)

    def add(self, text: str, kind: str = "") -> None:
        """Notes one line, which may say what stands in a file; what has no kind is told always."""
        self._lines.append((kind, printable(text)))

    def lines(self) -> list[str]:
        """The first few of each kind, then how many more there were."""
        met: Counter[str] = Counter()
        told = []
        for kind, text in self._lines:
            met[kind] += bool(kind)
            if met[kind] <= _TOLD:
                told.append(text)
        return [*told, *(f"and {count - _TOLD} more of this kind: {kind}" for kind, count in met.items() if count > _TOLD)]


def read_bytes(path: Path) -> bytes:
    """A file's content, unpacked where gzip packed it; what of a truncated one can be unpacked. Raises InputError."""
    try:
        with path.open("rb") as file:
            content = _parts(path, file.read1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}; give a file that can be read") from None
    if not content.startswith(_GZIP):
        return content
    try:
        with gzip.open(io.BytesIO(content)) as packed:
            return _parts(path, packed.read1)
    except (OSError, EOFError, zlib.error):
        raise InputError(f"{path}: damaged, gzip cannot unpack it; copy it again") from None


def _parts(path: Path, read: Callable[[int], bytes]) -> bytes:
    """All that can be read, part by part: up to where it ends too early, and no more than memory holds of what has no end.

    Raises InputError.
    """
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
    """A text's content. Raises InputError that names what was expected where it is none."""
    content = read_bytes(path)
    if b"\0" in content[:4096]:
        raise InputError(f"{path}: not text; expected {expected}")
    return content.decode("utf-8", errors="replace")


def read_json(path: Path, expected: str, items: str, notes: ImportNotes) -> Any:
    """A JSON document. Of one that ends too early, what is whole of the list called `items`, which is noted.

    Raises InputError that names what was expected.
    """
    text = read_text(path, expected)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        found = _whole_items(text, items)
        if not found:
            raise InputError(f"{path}:{error.lineno}: not JSON ({error.msg}); expected {expected}") from None
        notes.add(f"{path}:{error.lineno}: not JSON from here on ({error.msg}); the {len(found)} {items} before it are used")
        return {items: found}
    except RecursionError:
        raise InputError(f"{path}: nested too deeply; expected {expected}") from None
    except ValueError:
        raise InputError(f"{path}: a number of thousands of digits; expected {expected}") from None


def _whole_items(text: str, items: str) -> list[Any]:
    """The items of a list that can be read one after another."""
    start = text.find(f'"{items}"')
    at = text.find("[", start) + 1 if start >= 0 else 0
    decoder, found = json.JSONDecoder(), []
    while at:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        try:
            item, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        found.append(item)
    return found


def as_number(value: object) -> float | None:
    """A number that JSON or protobuf has as a number or as text; None where it is neither, or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None


def as_list(value: object) -> list[Any]:
    """A list that JSON has; an empty one where it has something else."""
    return value if isinstance(value, list) else []
