"""Stores of key-value pairs of a job of which few ranks run: nothing waits for a rank that is not played."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Final

import torch

from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.capture.communication.mailbox import Mailbox

_NUMBER: Final = re.compile(r"\d+")
_ROOT: Final = 0
# Arguments that name a store, and the port that one gets which leaves it open.
_PLACE: Final = ("host_name", "port", "file_name")
_PORT: Final = 29500
# A key that is read this often in a row, without another value, is waited for by a loop that does not end.
_MOST_READ: Final = 10_000


_Store: Any = torch._C._distributed_c10d.Store


class SharedStore(_Store):  # type: ignore[misc]
    """A store, whatever type and place the script names. Other ranks are assumed to do what this one does, at once: waits
    return, a counter has counted all ranks, and a value of another rank under a key like one of this rank's is this rank's.
    Any other value is the one that a played rank sets.

    Subclasses have a mailbox, a rank, the number of ranks, and `note`, which is called with what users should know.
    """

    mailbox: Mailbox
    rank: int
    ranks: int
    note: Callable[[str], None]
    # PyTorch's own objects around a store keep only its part in C++
    _kept: ClassVar[list[SharedStore]] = []

    def __init__(self, *place: Any, **given: Any) -> None:
        super().__init__()
        self._kept.append(self)
        named = [*place, *(given[name] for name in _PLACE if name in given)]
        self._place = repr([one for one in named if isinstance(one, (str, int))][:2])
        self.host = next((one for one in named if isinstance(one, str)), "")
        self.port = next((one for one in named if isinstance(one, int)), 0) or _PORT
        self._own: dict[str, bytes] = {}
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._queues: defaultdict[str, deque[bytes]] = defaultdict(deque)
        self._read = ("", 0)

    def set(self, key: str, value: str | bytes) -> None:
        """Sets a value, also for other ranks."""
        self._own[key] = _bytes_of(value)
        self.mailbox.share(self._channel(key), self._own[key])

    def get(self, key: str) -> bytes:
        """The value of a key. Raises RunError where a loop waits for another one."""
        self._read = (key, self._read[1] + 1 if self._read[0] == key else 1)
        if self._read[1] > _MOST_READ:
            raise RunError(f"a loop waits for another value of {key!r} in a store, which no rank that is played sets; leave "
                           "the loop out, or let rank 0 set it")  # fmt: skip
        if key in self._counts:
            return str(self._counts[key] * self.ranks).encode()
        if key in self._own:
            return self._own[key]
        pattern = _NUMBER.sub("#", key)
        similar = [value for name, value in self._own.items() if pattern != key and _NUMBER.sub("#", name) == pattern]
        if similar:
            return similar[-1]
        found = self.mailbox.shared(self._channel(key), _ROOT)
        if found is None:
            self.note(f"reads {key!r} of a store, which no rank that was played sets; taken as empty")
        return found or b""

    def add(self, key: str, value: int) -> int:
        """Adds to a counter, to which all ranks add, one after the other."""
        before = self._counts[key]
        self._counts[key] += value
        return before * self.ranks + value * (self.rank + 1)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether keys exist: always, so that nobody waits for them."""
        return True

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Returns."""

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Sets a value if the present one is as expected; returns the value after that."""
        expected = _bytes_of(expected_value)
        if self._own.get(key, b"") == expected:
            self.set(key, desired_value)
        return self._own.get(key, expected)

    def delete_key(self, key: str) -> bool:
        """Deletes a value."""
        return self._own.pop(key, self._counts.pop(key, None)) is not None

    def num_keys(self) -> int:
        """Number of keys."""
        return len(self._own) + len(self._counts)

    def list_keys(self) -> list[str]:
        """Keys."""
        return [*self._own, *self._counts]

    # PyTorch calls these from C++
    deleteKey, getNumKeys = delete_key, num_keys

    def append(self, key: str, value: str | bytes) -> None:
        """Appends to a value."""
        self.set(key, self._own.get(key, b"") + _bytes_of(value))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Values of keys."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Sets values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Appends to a queue."""
        self._queues[key].append(_bytes_of(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Takes the first of a queue; of an empty one, what a rank sets under its key."""
        return self._queues[key].popleft() if self._queues[key] else self.get(key)

    def queue_len(self, key: str) -> int:
        """Length of a queue."""
        return len(self._queues[key])

    def barrier(self, *_: Any, **__: Any) -> None:
        """Returns."""

    def has_extended_api(self) -> bool:
        """Whether it appends: yes."""
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        """Nothing waits."""

    def clone(self) -> SharedStore:
        """Itself."""
        return self

    def _channel(self, key: str) -> str:
        return hashlib.sha256(f"{self._place} {key}".encode()).hexdigest()[:16]


def _bytes_of(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def store_type(mailbox: Mailbox, rank: int, ranks: int, note: Callable[[str], None]) -> type[SharedStore]:
    """The type of a rank's stores."""
    parts: dict[str, Any] = {"mailbox": mailbox, "rank": rank, "ranks": ranks, "note": staticmethod(note)}
    return type("SharedStore", (SharedStore,), parts)
