"""Level orders: shared by programs that differ in numbers only, independent of hints and of the number of samples."""

from __future__ import annotations

from collections.abc import Sequence
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
from scaleproof.simulator.program import Program, ProgramBuilder
from tests.simulator.engine.test_replay import programs, server_programs


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
