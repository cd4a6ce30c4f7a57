from __future__ import annotations

import numpy as np

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.program import Path, Program, ProgramBuilder, Use, followers


def columns(program: Program) -> list[object]:
    """All columns of a program's tasks as plain values."""
    names = ("kind", "rank", "peer", "stream", "phase", "stage", "microbatch", "latency_s", "amount", "max_rate", "slot")
    lists = program.dependencies.lists(), program.carried.lists(), program.members.lists(), program.uses()
    return [*(getattr(program, name).tolist() for name in names), *map(list, lists)]


def test_a_block_of_tasks_equals_separately_added_ones() -> None:
    def builder() -> tuple[ProgramBuilder, Path]:
        result = ProgramBuilder()
        cores, link = result.resource("cores", 1.0), result.resource("link", 5.0)
        for name in ("a", "b"):
            result.rank(name, uses=(Use(cores, 2.0),))
        return result, Path(0.5, 5.0, (Use(link),))

    blocks, path = builder()
    rows = blocks.compute(
        np.array([[0], [1]]), Phase.FORWARD, np.array([0.0, 1.0, 2.0]), stage=np.array([[0], [1]]), microbatch=np.arange(3)
    )
    sent = blocks.transfer(
        np.array([0]), np.array([1]), 10.0, path, Phase.SEND, (rows[0], np.array([-1, 3, 4])), microbatch=np.arange(3)
    )
    blocks.follow(rows[1], sent)
    after = np.array([[0, 1, 2], [3, 4, 5]])
    summed = blocks.collective(
        np.array([[0], [1]]), np.array([3.0, 0.0, 3.0]), np.array([path] * 3), Phase.SYNCHRONISE, after, 7
    )
    assert rows.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert sent.tolist() == [6, 7, 8]
    assert summed.tolist() == [9, 10, 11]

    singles, path = builder()
    for rank in (0, 1):
        for microbatch, work_s in enumerate((0.0, 1.0, 2.0)):
            after = () if rank == 0 else (6 + microbatch,)
            singles.compute(rank, Phase.FORWARD, work_s, after, rank, microbatch)
    for microbatch, after in enumerate(((0,), (1, 3), (2, 4))):
        singles.transfer(0, 1, 10.0, path, Phase.SEND, after, microbatch=microbatch)
    for microbatch, size_bytes in enumerate((3.0, 0.0, 3.0)):
        singles.collective([0, 1], size_bytes, path, Phase.SYNCHRONISE, (microbatch, 3 + microbatch), 7)
    assert columns(blocks.build()) == columns(singles.build())


def test_tasks_of_a_stream_follow_each_other_also_across_steps() -> None:
    builder = ProgramBuilder()
    a, b = builder.rank("a"), builder.rank("b")
    for rank in (a, b, a, b, a):
        builder.compute(rank, Phase.FORWARD, 1.0)
    message = builder.transfer(a, b, 1.0, Path(0.0, 1.0), Phase.SEND, (2,))
    builder.carry(message, (4,))
    builder.collective((a, b), 1.0, Path(0.0, 1.0), Phase.SYNCHRONISE, (4,))
    program = builder.build()
    assert program.follows() == [[], [], [0], [1], [2], [2], [4]]
    assert program.carried_lists() == [[4], [3], [], [], [], [4], [6]]
    assert followers(program.follows()) == [[2], [3], [4, 5], [], [6], [], []]


def test_zero_work_uses_no_resources() -> None:
    builder = ProgramBuilder()
    cores = builder.resource("cores", 1.0)
    rank = builder.rank("a", uses=(Use(cores),))
    builder.wait(rank, Phase.WAIT, ())
    builder.compute(rank, Phase.FORWARD, 1.0)
    assert builder.build().uses() == [[], [Use(cores)]]
