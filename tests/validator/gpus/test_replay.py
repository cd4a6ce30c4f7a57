"""Kernels by hand, of which NCCL's rules say whether they complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.validator.gpus.kernels import EVERYBODY, RECEIVE, SEND, Kernel, Operation
from tests.validator.gpus.replay import faults


def kernel(
    group: str, *operations: tuple[str, int], members: Sequence[int] = (0, 1), after: Sequence[int] = (),
    launched_after: Sequence[int] = (), is_batch: bool = False, thread: int = 0, size: int = 4,
) -> Kernel:  # fmt: skip
    made = tuple(Operation(kind, peer, size) for kind, peer in operations)
    waits = frozenset(after) | frozenset(launched_after)
    return Kernel(group, tuple(members), made, is_batch, waits, frozenset(launched_after), 0, thread, "test.py:1")


def summed(group: str, **fields: Any) -> Kernel:
    return kernel(group, ("all_reduce", EVERYBODY), **fields)


def sent(target: int, group: str = "world", **fields: Any) -> Kernel:
    return kernel(group, (SEND, target), **fields)


def received(source: int, group: str = "world", **fields: Any) -> Kernel:
    return kernel(group, (RECEIVE, source), **fields)


def test_collectives_in_one_order_complete() -> None:
    log = [summed("a"), summed("b", after=[0]), summed("a")]

    assert faults([log, log]) == []
    assert faults([log, log], eager=True) == []


def test_collectives_of_two_groups_in_two_orders() -> None:
    one, other = [summed("a"), summed("b")], [summed("b"), summed("a")]

    assert faults([one, other], eager=True) == [], "each group has a queue of its own"
    assert len(faults([one, other])) == 4, "both threads wait for a communicator that the other creates later"
    waiting = [summed("b"), summed("a", after=[0])]
    assert faults([[summed("a"), summed("b", after=[0])], waiting], eager=True), "both wait for the first"


def test_messages_of_a_pair_are_sent_in_order() -> None:
    assert faults([[sent(1), received(1)], [received(0), sent(0)]]) == []
    stuck = faults([[sent(1), received(1)], [sent(0), received(0)]])

    assert len(stuck) == 2, "both send first, on one queue"
    assert "rank 0 is stuck in send of 4 bytes to rank 1 in group 'world' (test.py:1)" in stuck[0]


def test_a_batch_sends_and_receives_at_once() -> None:
    batches = [[kernel("world", (SEND, 1 - rank), (RECEIVE, 1 - rank), is_batch=True)] for rank in (0, 1)]

    assert faults(batches) == []


def test_a_ring_of_batches() -> None:
    members = range(3)
    ring = [
        [kernel("world", (RECEIVE, (rank - 1) % 3), (SEND, (rank + 1) % 3), members=members, is_batch=True)] * 2
        for rank in members
    ]

    assert faults(ring) == []
    assert len(faults([*ring[:2], ring[2][:1]])) == 2, "the third rank makes one round less"


def test_pairs_have_queues_of_their_own_unless_groups_are_created_eagerly() -> None:
    everyone: dict[str, Any] = {"members": (0, 1, 2)}
    # rank 0 first receives a message that is sent only once its second one has arrived
    logs = [
        [received(1, thread=1, **everyone), received(2, thread=2, **everyone)],
        [received(2, **everyone), sent(0, after=[0], **everyone)],
        [sent(0, **everyone), sent(1, after=[0], **everyone)],
    ]

    assert faults(logs) == []
    assert faults(logs, eager=True)


def test_sizes_and_kinds_must_match() -> None:
    assert "8 bytes" in faults([[sent(1)], [received(0, size=8)]])[0]
    assert "8 bytes" in faults([[summed("a")], [summed("a", size=8)]])[0]
    assert "broadcast" in faults([[summed("a")], [kernel("a", ("broadcast", 0))]])[0]


def test_a_missing_member() -> None:
    assert faults([[summed("a")], []])
    assert faults([[summed("a")], []], eager=True)


def test_a_host_that_waits_launches_nothing() -> None:
    one = [summed("a"), sent(1, launched_after=[0])]

    assert faults([one, [received(0, thread=1), summed("a")]], eager=True) == []
    assert faults([one, [received(0), summed("a", launched_after=[0])]], eager=True)
