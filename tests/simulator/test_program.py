from __future__ import annotations

import numpy as np

from simulator.program import Kind, Path, ProgramBuilder, Ragged, Use
from simulator.run import Phase


def test_ragged_gives_back_its_lists() -> None:
    lists = [[3, 1], [], [2]]
    assert Ragged.of(lists).lists() == lists
    assert Ragged.of([]).lists() == []


def test_columns_follow_the_order_of_adding() -> None:
    builder = ProgramBuilder()
    link = builder.resource("link", 5.0)
    a, b = builder.rank("a", multiplicity=3), builder.rank("b", is_server=True)
    work = builder.compute(a, Phase.FORWARD, 2.0, stage=1, microbatch=4)
    sent = builder.transfer(a, b, 10.0, Path(0.5, 5.0, (Use(link, 3.0),)), Phase.SEND, (work,))
    program = builder.build()
    assert len(program) == 2
    assert program.kind.tolist() == [Kind.COMPUTE, Kind.TRANSFER]
    assert program.peer.tolist() == [-1, b]
    assert program.latency_s.tolist() == [0.0, 0.5]
    assert program.dependencies.lists() == [[], [work]]
    assert program.uses() == [[], [Use(link, 3.0)]]
    assert program.ranks.multiplicity.tolist() == [3, 1]
    assert program.ranks.is_server.tolist() == [False, True]
    assert sent == 1


def test_nothing_is_used_by_what_takes_no_time() -> None:
    builder = ProgramBuilder()
    cores = builder.resource("cores", 1.0)
    rank = builder.rank("a", uses=(Use(cores),))
    builder.wait(rank, Phase.WAIT, ())
    builder.compute(rank, Phase.FORWARD, 1.0)
    assert builder.build().uses() == [[], [Use(cores)]]


def test_programs_are_columns_of_fixed_types() -> None:
    builder = ProgramBuilder()
    builder.compute(builder.rank("a"), Phase.FORWARD, 1.0)
    program = builder.build()
    assert program.kind.dtype == np.int8
    assert program.amount.dtype == np.float64
