"""Decoding of protocol buffers, just enough to read messages whose field numbers are known.

A message is a sequence of fields, each a key (number · 8 + wire type) and a value (protobuf.dev, "Encoding").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

Value = int | bytes
Message = dict[int, list[Value]]

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_VARINT_BYTES: Final = 10


class DamagedError(ValueError):
    """The bytes are not a message, or end within one."""


def varint(content: bytes, at: int) -> tuple[int, int]:
    """A varint (seven bits per byte, lowest first) and the position after it. Raises DamagedError."""
    number = 0
    for i in range(_VARINT_BYTES):
        if at + i >= len(content):
            raise DamagedError("it ends within a number")
        number |= (content[at + i] & 0x7F) << (7 * i)
        if content[at + i] < 0x80:
            return number, at + i + 1
    raise DamagedError("a number has no end")


def delimited(content: bytes) -> Iterator[bytes]:
    """Length-prefixed messages. Raises DamagedError if one is cut off."""
    at = 0
    while at < len(content):
        length, at = varint(content, at)
        if at + length > len(content):
            raise DamagedError("it ends within a message")
        yield content[at : at + length]
        at += length


def message(content: bytes) -> Message:
    """Values of the fields by number, in order; floats as bytes. Raises DamagedError."""
    fields: Message = {}
    at = 0
    while at < len(content):
        key, at = varint(content, at)
        value: Value
        if key & 7 == _VARINT:
            value, at = varint(content, at)
        elif key & 7 in (_FIXED64, _BYTES, _FIXED32):
            length, at = varint(content, at) if key & 7 == _BYTES else ((8 if key & 7 == _FIXED64 else 4), at)
            if at + length > len(content):
                raise DamagedError("it ends within a field")
            value, at = content[at : at + length], at + length
        else:
            raise DamagedError(f"no field has the wire type {key & 7}")
        if key >> 3 == 0:
            raise DamagedError("no field has the number 0")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def integer(fields: Message, number: int) -> int:
    """Last value of an integer field; 0 if it is absent, as in protobuf."""
    value = fields.get(number, [0])[-1]
    return value if isinstance(value, int) else 0


def signed(number: int) -> int:
    """The int32 or int64 with these 64 bits."""
    return number - (1 << 64) if number >= 1 << 63 else number


def text(fields: Message, number: int) -> str:
    """Last value of a string field; "" if it is absent."""
    value = fields.get(number, [b""])[-1]
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else ""


def floating(value: Value) -> float:
    """The double or float with these bytes. Raises DamagedError."""
    if not isinstance(value, bytes) or len(value) not in (4, 8):
        raise DamagedError("a floating-point number has four or eight bytes")
    return float(struct.unpack("<d" if len(value) == 8 else "<f", value)[0])


def packed(content: bytes) -> list[int]:
    """Integers of a packed field. Raises DamagedError."""
    numbers, at = [], 0
    while at < len(content):
        number, at = varint(content, at)
        numbers.append(number)
    return numbers
