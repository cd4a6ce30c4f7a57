"""Level orders: shared by programs that differ in numbers only, independent of hints and of the number of samples."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.common.speed_profile import Cycle
from scaleproof.simulator.engine import levels as orders
from scaleproof.simulator.engine import replay
from scaleproof.simulator.engine.durations import durations_s
from scaleproof.simulator.engine.levels import LevelOrder, order_of
from scaleproof.simulator.engine.variation import Variation
from scaleproof.simulator.program import Path, Program, ProgramBuilder
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.engine.test_replay import programs, server_programs

Make = Callable[..., Scenario]

HYBRID = "strategy={kind: hybrid, workers: 2, stages: 2, tensor: 2, microbatches: 4, overlap: true}"


def fan(leaves: int) -> Program:
    """Ranks with one task each, and one task behind each of these; the last of them follows all."""
    builder = ProgramBuilder()
    work = [builder.compute(builder.rank(f"rank {i}"), Phase.FORWARD, 1.0 + i) for i in range(leaves)]
    for i in range(leaves):
        after = work if i == leaves - 1 else work[i : i + 1]
        builder.background(i, 1.0, Path(0.0, 1.0), Phase.SEND, after)
    return builder.build()


def test_programs_that_differ_only_in_numbers_share_a_level_order(small: Make) -> None:
    scenario = small(HYBRID)
    program = compile_step(scenario.strategy, job_of(scenario))
    order = order_of(program)
    assert order_of(replace(program, latency_s=program.latency_s + 1.0)) is order
    slower = small(HYBRID, "cluster.network.bandwidth=1Gbit/s")
    repriced = program.at(job_of(slower))
    assert repriced is not None
    assert order_of(repriced) is order
    assert order_of(replace(program, carried=program.carried.extended(np.arange(len(program))))) is not order


@pytest.mark.parametrize("part", ["update_s", "latency_s"])
@given(server_programs())
def test_the_level_order_depends_on_server_times(part: str, program: Program) -> None:
    order = order_of(program)
    assert order_of(replace(program)) is order
    assert order_of(replace(program, **{part: getattr(program, part) + 1.0})) is not order


def test_the_level_order_depends_on_latencies_of_ranks_with_a_speed_profile() -> None:
    builder = ProgramBuilder()
    builder.compute(builder.rank("slow", paces=((Cycle(2.0, 1.0, 0.0, 0.5),),)), Phase.FORWARD, 1.0)
    program = builder.build()
    order = order_of(program)
    assert order_of(replace(program, latency_s=program.latency_s + 1.0)) is not order
    assert order_of(replace(program, amount=program.amount + 1.0)) is order_of(program)


def test_cached_orders_are_freed_with_their_programs() -> None:
    program = fan(3)
    order_of(program)
    key = id(program.dependencies)
    assert key in orders._ORDERS
    del program
    gc.collect()
    assert key not in orders._ORDERS


@given(programs(capacity=1e9))
def test_equal_hints_are_corrected_without_a_search(program: Program) -> None:
    before = program.predecessors()
    longest = orders._levels(before, np.full(len(program), -1))
    mended = orders._corrected(before, longest // 2)
    assert mended is not None
    assert (mended[before.values] < mended[before.keys()]).all()


def test_reversed_or_constant_hints_are_discarded() -> None:
    builder = ProgramBuilder()
    rank = builder.rank("a")
    for _ in range(100):
        builder.compute(rank, Phase.FORWARD, 1.0)
    before = builder.build().predecessors()
    assert orders._corrected(before, np.arange(100)[::-1]) is None
    assert orders._corrected(before, np.zeros(100, dtype=np.int64)) is None
    assert orders._levels(before, np.zeros(100, dtype=np.int64)).tolist() == list(range(100))


def test_different_numbers_of_predecessors_use_no_padded_table() -> None:
    order = order_of(fan(1000))
    follows = sum(map(len, order.before))
    assert sum(level.before.size for level in order.levels) < 1.1 * follows
    assert sum(level.tasks.stop - level.tasks.start for level in order.levels) == len(order.rows)
    # the slowest rank works 1000 s per step
    assert ends_s(fan(1000), 1)[-1] == ends_s(fan(1000), 2)[-1] == 3001.0


def ends_s(program: Program, samples: int, seconds: np.ndarray | None = None) -> np.ndarray:
    """End of each task in the last of three steps, in the first sample."""
    each = durations_s(program) if seconds is None else seconds
    *_, (_, last_s) = replay.replay(program, 3, each, Variation(samples=samples))
    return last_s[:, 0]


@given(programs(capacity=1e9) | server_programs())
def test_a_samples_result_is_bit_identical_alone_and_among_others(program: Program) -> None:
    assert ends_s(program, 1).tolist() == ends_s(program, 2).tolist()


@pytest.mark.parametrize("plainly", [0, 10**9])
@given(program=programs(capacity=1e9))
def test_both_forms_of_evaluation_give_identical_results(plainly: int, program: Program) -> None:
    before = orders._PLAIN
    try:
        orders._PLAIN = plainly  # type: ignore[misc]
        order = LevelOrder(program)
        assert order.is_plain == (plainly > 0)
        orders._ORDERS.pop(id(program.dependencies), None)
        one = ends_s(program, 1)
    finally:
        orders._PLAIN = before  # type: ignore[misc]
    assert one.tolist() == ends_s(program, 2).tolist()


@given(programs(capacity=1e9), st.data())
def test_the_path_bound_is_never_exceeded(program: Program, data: st.DataObject) -> None:
    longer: Sequence[float] = data.draw(st.lists(st.floats(0.0, 10.0), min_size=len(program), max_size=len(program)))
    longer_s = np.array(longer)
    later_s = ends_s(program, 1, durations_s(program) + longer_s) - ends_s(program, 1)
    assert later_s.max() <= order_of(program).along_s(np.tile(longer_s, (3, 1))) * (1 + 1e-9) + 1e-9


@given(server_programs())
def test_programs_with_queues_have_no_finite_path_bound(program: Program) -> None:
    assert order_of(program).along_s(np.zeros((1, len(program)))) == np.inf
