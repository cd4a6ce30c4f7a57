"""Reading of a long list in a JSON document item by item, so that a file of many gigabytes does not have to fit into memory."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports.reading import ImportNotes, byte_parts

# Limit of a file's size after unpacking, and of one value in it.
_MOST_BYTES: Final = 16 * 2**30
_LONGEST_VALUE: Final = 64 * 2**20
_BETWEEN: Final = " \t\r\n,"
# What may follow a value.
_AFTER: Final = (*_BETWEEN, ":", "]", "}")


def read_list(path: Path, items: str, expected: str, notes: ImportNotes, use: Callable[[Any], None]) -> dict[str, Any]:
    """Calls `use` with each item of a document's list called `items`, or of a document that is a list, and returns the other
    fields of the document.

    Of a truncated document the complete items are used, with a note. Raises InputError, naming what was expected.
    """
    reader = _Reader(byte_parts(path, _MOST_BYTES))
    count = 0

    def counted(item: Any) -> None:
        nonlocal count
        count += 1
        use(item)

    try:
        return _fields(reader, items, counted)
    except json.JSONDecodeError as error:
        line = reader.line(error.pos)
        if not count:
            raise InputError(f"{path}:{line}: not JSON ({error.msg}); expected {expected}") from None
        notes.add(f"{path}:{line}: not JSON from here on ({error.msg}); the {count} {items} before it are used")
        return reader.fields
    except RecursionError:
        raise InputError(f"{path}: nested too deeply; expected {expected}") from None
    except ValueError:
        raise InputError(f"{path}: a number of thousands of digits; expected {expected}") from None


def _fields(reader: _Reader, items: str, use: Callable[[Any], None]) -> dict[str, Any]:
    """Fields of an object but for the list."""
    if reader.next() == "[":
        reader.list(use)
        return reader.fields
    reader.skip("{")
    while reader.next() != "}":
        name = reader.value()
        reader.skip(":")
        if name == items and reader.next() == "[":
            reader.list(use)
        else:
            reader.fields[str(name)] = reader.value()
    return reader.fields


class _Reader:
    """Values of JSON text that arrives in parts. fields: those of the outermost object so far."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self.fields: dict[str, Any] = {}
        self._parts = codecs.iterdecode(parts, "utf-8", errors="replace")
        self._decoder = json.JSONDecoder()
        self._text, self._at, self._lines = "", 0, 0

    def line(self, position: int) -> int:
        """Number of the line of a position in the present text."""
        return self._lines + self._text.count("\n", 0, position) + 1

    def next(self) -> str:
        """The next character that is neither white space nor a comma. Raises JSONDecodeError at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _BETWEEN:
                    return self._text[self._at]
                self._at += 1
            if not self._more():
                raise json.JSONDecodeError("it ends here", self._text, self._at)

    def skip(self, character: str) -> None:
        """Skips an expected character."""
        if self.next() != character:
            raise json.JSONDecodeError(f"Expecting '{character}'", self._text, self._at)
        self._at += 1

    def value(self) -> Any:
        """The next value."""
        self.next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                if len(self._text) - self._at > _LONGEST_VALUE or not self._more():
                    raise
                continue
            # a number may go on in the next part
            if self._text[end : end + 1] in _AFTER or not self._more():
                self._at = end
                return value

    def list(self, use: Callable[[Any], None]) -> None:
        """Calls `use` with each item of a list."""
        self.skip("[")
        while self.next() != "]":
            use(self.value())
        self.skip("]")

    def _more(self) -> bool:
        """Appends the next part to the text that is left; False at the end."""
        part = next(self._parts, "")
        if part:
            self._lines += self._text.count("\n", 0, self._at)
            self._text, self._at = self._text[self._at :] + part, 0
        return bool(part)
