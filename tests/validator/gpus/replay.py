"""Replays the kernels of all ranks by NCCL's rules, and says which of them never complete.

A communicator runs the kernels of a rank one after the other, in the order of their launch. Those of a group have one
communicator. Unless communicators are created eagerly, each pair of ranks has a further one for messages outside of batches,
and a communicator is created by the first kernel on it, for which the launching threads of all its ranks wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import NamedTuple

from tests.validator.gpus.kernels import RECEIVE, SEND, Kernel, Operation

Log = Sequence[Kernel]


class Communicator(NamedTuple):
    group: str
    members: tuple[int, ...]


class MismatchError(Exception):
    """Ranks make different collectives, or the two sides of a message differ in size."""


def faults(logs: Sequence[Log], eager: bool = False) -> list[str]:
    """A sentence for each communicator of a rank whose kernels never complete, or for the first mismatch. logs: kernels of each
    rank, in the order of their launch. eager: whether communicators are created with their groups."""
    replay = Replay(len(logs), eager)
    for number, log in enumerate(logs):
        replay.add(number, log)
    try:
        replay.advance()
    except MismatchError as error:
        return [str(error)]
    return replay.stuck()


class Replay:
    """Kernels of all ranks, which may be added while ranks go on."""

    def __init__(self, ranks: int, eager: bool = False) -> None:
        self._ranks = [_Rank(number, eager) for number in range(ranks)]
        self._eager = eager
        self._created: set[Communicator] = set()

    def add(self, rank: int, kernels: Iterable[Kernel]) -> None:
        """Adds kernels that a rank has launched."""
        for kernel in kernels:
            self._ranks[rank].add(kernel)
        if self._eager:
            self._created.update(self._ranks[rank].first)

    def advance(self) -> None:
        """Completes what can be completed. Raises MismatchError."""
        while _create(self._ranks, self._created) | _progress(self._ranks, self._created):
            pass

    def complete(self, rank: int) -> Set[int]:
        """The numbers of a rank's complete kernels."""
        return self._ranks[rank].complete

    def stuck(self) -> list[str]:
        """A sentence for each communicator of a rank with kernels that are not complete."""
        return [sentence for rank in self._ranks for sentence in rank.stuck(self._created)]


class _Rank:
    """first: number of the first kernel on each communicator."""

    def __init__(self, number: int, eager: bool) -> None:
        self.number, self._eager = number, eager
        self.log: list[Kernel] = []
        self.complete: set[int] = set()
        self.queues: dict[Communicator, deque[int]] = {}
        # operations of the kernels that are not complete
        self.open: list[list[Operation]] = []
        self.first: dict[Communicator, int] = {}
        # communicators for whose creation the launching thread waits before it launches a kernel
        self._before: list[tuple[Communicator, ...]] = []
        self._of_thread: dict[int, tuple[Communicator, ...]] = {}

    def add(self, kernel: Kernel) -> None:
        place = len(self.log)
        self.log.append(kernel)
        self.open.append(list(kernel.operations))
        communicator = _communicator(self.number, kernel, self._eager)
        self.queues.setdefault(communicator, deque()).append(place)
        self._before.append(self._of_thread.get(kernel.thread, ()))
        if self.first.setdefault(communicator, place) == place:
            self._of_thread[kernel.thread] = (*self._before[-1], communicator)

    def launches(self, place: int, created: set[Communicator]) -> bool:
        """Whether a kernel's thread gets to its launch."""
        return self.log[place].launched_after <= self.complete and created.issuperset(self._before[place])

    def running(self, communicator: Communicator, created: set[Communicator]) -> int | None:
        """The kernel that runs on a communicator."""
        queue = self.queues.get(communicator)
        if not queue or communicator not in created:
            return None
        place = queue[0]
        is_ready = self.launches(place, created) and self.log[place].after <= self.complete
        return place if is_ready else None

    def finish(self, communicator: Communicator) -> None:
        """The kernel that runs on a communicator is complete."""
        self.complete.add(self.queues[communicator].popleft())

    def stuck(self, created: set[Communicator]) -> Iterator[str]:
        for communicator, queue in self.queues.items():
            if queue:
                place = queue[0]
                kernel = self.log[place]
                if communicator not in created:
                    why = "the communicator is not created by all of them"
                elif self.running(communicator, created) is None:
                    after = min(kernel.after - self.complete, default=None)
                    why = "its thread does not get there" if after is None else f"it waits for {_text(self.log[after])}"
                else:
                    why = "its peers do not get there"
                what = f"{_text(kernel, self.open[place])} among ranks {communicator.members}"
                yield f"rank {self.number} is stuck in {what}: {why}"


def _create(ranks: Sequence[_Rank], created: set[Communicator]) -> bool:
    """Creates communicators whose ranks have all got to their first kernel; returns whether there were any."""
    needed = {communicator for rank in ranks for communicator in rank.first} - created
    new = {one for one in needed if all(_gets_to(ranks[member], one, created) for member in one.members)}
    created |= new
    return bool(new)


def _gets_to(rank: _Rank, communicator: Communicator, created: set[Communicator]) -> bool:
    return communicator in rank.first and rank.launches(rank.first[communicator], created)


def _progress(ranks: Sequence[_Rank], created: set[Communicator]) -> bool:
    """Completes operations whose counterparts run too; returns whether there were any."""
    moved = False
    for rank in ranks:
        for communicator in rank.queues:
            place = rank.running(communicator, created)
            if place is not None:
                step = _exchange if rank.log[place].operations[0].is_message else _collect
                moved |= step(ranks, rank, communicator, place, created)
    return moved


def _collect(ranks: Sequence[_Rank], rank: _Rank, communicator: Communicator, place: int, created: set[Communicator]) -> bool:
    members = [ranks[member] for member in communicator.members]
    places = [member.running(communicator, created) for member in members]
    if None in places:
        return False
    for member, theirs in zip(members, places, strict=True):
        assert theirs is not None
        if member.log[theirs].operations != rank.log[place].operations:
            raise MismatchError(
                f"rank {rank.number} makes {_text(rank.log[place])}, and rank {member.number} {_text(member.log[theirs])}"
            )
    for member in members:
        member.finish(communicator)
    return True


def _exchange(ranks: Sequence[_Rank], rank: _Rank, communicator: Communicator, place: int, created: set[Communicator]) -> bool:
    moved = False
    for operation in list(rank.open[place]):
        peer = ranks[operation.peer]
        theirs = place if peer is rank else peer.running(communicator, created)
        if theirs is None or not rank.open[place]:
            continue
        wanted = RECEIVE if operation.kind == SEND else SEND
        other = next((one for one in peer.open[theirs] if one.kind == wanted and one.peer == rank.number), None)
        # messages of a pair of ranks are matched in order
        first = next((one for one in rank.open[place] if one[:2] == operation[:2]), None)
        if other is None or first is not operation:
            continue
        if other.size_bytes != operation.size_bytes:
            raise MismatchError(
                f"rank {rank.number} makes {_text(rank.log[place], [operation])}, "
                f"and rank {peer.number} {_text(peer.log[theirs], [other])}"
            )
        rank.open[place].remove(operation)
        peer.open[theirs].remove(other)
        moved = True
        if not peer.open[theirs] and peer is not rank:
            peer.finish(communicator)
    if not rank.open[place]:
        rank.finish(communicator)
    return moved


def _communicator(rank: int, kernel: Kernel, eager: bool) -> Communicator:
    operation = kernel.operations[0]
    if operation.is_message and not kernel.is_batch and not eager:
        low, high = sorted((rank, operation.peer))
        return Communicator(kernel.group, (low, high))
    # a group of two ranks has a communicator of its own for messages
    return Communicator(f"{kernel.group} (whole)", kernel.members)


def _text(kernel: Kernel, operations: Sequence[Operation] | None = None) -> str:
    parts = []
    for operation in operations or kernel.operations:
        with_peer = {SEND: f" to rank {operation.peer}", RECEIVE: f" from rank {operation.peer}"}.get(operation.kind, "")
        parts.append(f"{operation.kind} of {operation.size_bytes} bytes{with_peer}")
    return f"{' with '.join(parts)} in group {kernel.group!r} ({kernel.line})"
