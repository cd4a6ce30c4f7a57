"""Event files of TensorBoard (events.out.tfevents.*) as tables of metrics.

Format: TFRecords (tensorflow/core/lib/io/record_writer.cc: length, checksum, content, checksum) of Event messages
(tensorflow/core/util/event.proto).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports.protobuf import DamagedError, Message, floating, integer, message, text
from scaleproof.validator.calibration.imports.reading import read_bytes

_MARK: Final = "tfevents"
# Length of a record and its checksum; the checksum after its content.
_BEFORE, _AFTER = 12, 4
# Fields of Event, Summary, Value, TensorProto.
_WALL_TIME, _STEP, _SUMMARY, _VALUE, _TAG, _SIMPLE, _TENSOR, _FLOATS, _CONTENT = 1, 2, 5, 1, 1, 2, 8, 5, 4


def is_file(path: Path) -> bool:
    """Whether a file's name is that of an event file."""
    return _MARK in path.name


def rows(path: Path) -> list[list[str]]:
    """A row for each step, with its last time and values; the first row has the names. Raises InputError for damaged files."""
    steps: dict[int, dict[str, float]] = {}
    try:
        for event in _events(read_bytes(path)):
            for summary in map(_message, event.get(_SUMMARY, [])):
                own = steps.setdefault(integer(event, _STEP), {})
                own["Wall time"] = floating(event[_WALL_TIME][-1])
                own.update(_scalars(summary))
    except (DamagedError, KeyError) as error:
        raise InputError(f"{path}: cannot be read ({error}); expected an event file of TensorBoard") from None
    names = list(dict.fromkeys(name for own in steps.values() for name in own))
    values = [[str(step), *(str(own.get(name, "")) for name in names)] for step, own in sorted(steps.items())]
    return [["Step", *names], *values]


def _events(content: bytes) -> Iterator[Message]:
    at = 0
    # a job that is still running, or was killed, ends within a record
    while at + _BEFORE <= len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        if at + _BEFORE + length + _AFTER > len(content):
            return
        yield message(content[at + _BEFORE : at + _BEFORE + length])
        at += _BEFORE + length + _AFTER


def _message(value: int | bytes) -> Message:
    if not isinstance(value, bytes):
        raise DamagedError("a number where a message is expected")
    return message(value)


def _scalars(summary: Message) -> Iterator[tuple[str, float]]:
    for value in map(_message, summary.get(_VALUE, [])):
        if _SIMPLE in value:
            yield text(value, _TAG), floating(value[_SIMPLE][-1])
        elif _TENSOR in value:
            tensor = _message(value[_TENSOR][-1])
            numbers = tensor.get(_FLOATS) or tensor.get(_CONTENT) or []
            if len(numbers) == 1 and isinstance(numbers[0], bytes) and len(numbers[0]) in (4, 8):
                yield text(value, _TAG), floating(numbers[0])
