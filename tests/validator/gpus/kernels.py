"""NCCL kernels as a rank launches them."""

from __future__ import annotations

from typing import NamedTuple

SEND, RECEIVE = "send", "receive"
# Peer of an operation that is a collective.
EVERYBODY = -1


class Operation(NamedTuple):
    """A collective, or one side of a message. peer: global rank of the other side, or of a collective's root, if any.
    size_bytes: of what each rank gives to it; 0 where ranks may give different sizes."""

    kind: str
    peer: int
    size_bytes: int

    @property
    def is_message(self) -> bool:
        return self.kind in (SEND, RECEIVE)


class Kernel(NamedTuple):
    """One kernel of a rank. members: global ranks of the group. operations: several where messages are sent in a batch.
    after: the rank's kernels, by number, that must be complete before this one starts, since its stream or the thread that
    launches it waits for them. launched_after: those for which the thread waits. line: where the kernel is launched."""

    group: str
    members: tuple[int, ...]
    operations: tuple[Operation, ...]
    is_batch: bool
    after: frozenset[int]
    launched_after: frozenset[int]
    stream: int
    thread: int
    line: str
