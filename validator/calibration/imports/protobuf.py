"""Protocol buffers on the wire: just enough to read messages whose fields are known by number.

A message is a row of fields, each a key (number · 8 + wire type) and a value (protobuf.dev, "Encoding").
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
    """The bytes are no message, or end within one."""


def varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, lowest first, and where the next begins. Raises DamagedError."""
    number = 0
    for i in range(_VARINT_BYTES):
        if at + i >= len(content):
            raise DamagedError("it ends within a number")
        number |= (content[at + i] & 0x7F) << (7 * i)
        if content[at + i] < 0x80:
            return number, at + i + 1
    raise DamagedError("a number has no end")


def delimited(content: bytes) -> Iterator[bytes]:
    """Messages that each have their length before them. Raises DamagedError once one is cut off."""
    at = 0
    while at < len(content):
        length, at = varint(content, at)
        if at + length > len(content):
            raise DamagedError("it ends within a message")
        yield content[at : at + length]
        at += length


def message(content: bytes) -> Message:
    """The fields' values by number, in order; floats as the bytes they are. Raises DamagedError."""
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
    """The last value of a whole number's field, 0 where it is absent, as protobuf has it."""
    value = fields.get(number, [0])[-1]
    return value if isinstance(value, int) else 0


def signed(number: int) -> int:
    """An int32 or int64, which has all 64 bits on the wire."""
    return number - (1 << 64) if number >= 1 << 63 else number


def text(fields: Message, number: int) -> str:
    """The last value of a string's field; "" where it is absent."""
    value = fields.get(number, [b""])[-1]
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else ""


def floating(value: Value) -> float:
    """A double or a float. Raises DamagedError."""
    if not isinstance(value, bytes) or len(value) not in (4, 8):
        raise DamagedError("a number with a point has four or eight bytes")
    return float(struct.unpack("<d" if len(value) == 8 else "<f", value)[0])


def packed(content: bytes) -> list[int]:
    """Whole numbers one after another. Raises DamagedError."""
    numbers, at = [], 0
    while at < len(content):
        number, at = varint(content, at)
        numbers.append(number)
    return numbers
