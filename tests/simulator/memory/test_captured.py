"""Memory of captured scripts: allocations and frees served by the replica of the caching allocator."""

from __future__ import annotations

from scaleproof.simulator.common.allocations import Allocation, Free
from scaleproof.simulator.memory.captured import LiveMemory, replayed

MIB = 2**20


def allocation(number: int, size_bytes: int, holder: str = "activations", line: str = "train.py:1") -> Allocation:
    return Allocation(number, size_bytes, 0, holder, "block", line)


def test_the_peak_is_the_largest_sum_of_live_allocations() -> None:
    before = [allocation(0, 64 * MIB, "parameters")]
    step = [allocation(1, 32 * MIB), Free(1), allocation(2, 16 * MIB, "gradients"), allocation(3, 24 * MIB), Free(3), Free(2)]
    memory = replayed(before, step)
    assert memory.allocated_bytes == (64 + 24 + 16) * MIB
    assert memory.holders_bytes == {"parameters": 64 * MIB, "activations": 24 * MIB, "gradients": 16 * MIB}
    assert memory.reserved_bytes >= memory.allocated_bytes


def test_freed_memory_is_reused_and_not_reserved_again() -> None:
    step = [event for number in range(10) for event in (allocation(number, 64 * MIB), Free(number))]
    assert replayed([], step).reserved_bytes == 64 * MIB


def test_sizes_are_rounded_to_512_bytes() -> None:
    assert replayed([allocation(0, 1)], []).allocated_bytes == 512


def test_what_a_step_leaves_is_freed_where_it_freed_that_of_the_step_before() -> None:
    """Gradients that the next step sets to None at its beginning are not there in its forward pass."""
    before = [allocation(0, 64 * MIB, "gradients")]
    step = [Free(0), allocation(1, 128 * MIB), Free(1), allocation(2, 64 * MIB, "gradients")]
    assert replayed(before, step).allocated_bytes == 128 * MIB


def test_the_first_step_has_neither_gradients_nor_states_before_they_are_made() -> None:
    """States of the optimizer are in memory that passes have left, so that the next passes need more."""
    before = [
        allocation(0, 64 * MIB, "parameters"),
        allocation(1, 64 * MIB, "optimizer_states"),
        allocation(2, 96 * MIB, "gradients"),
    ]
    gradients = allocation(4, 96 * MIB, "gradients")._replace(at=2)
    step = [Free(2, at=0), allocation(3, 128 * MIB)._replace(at=1), Free(3, at=2), gradients]
    memory = replayed(before, step, update=3)
    assert memory.allocated_bytes == (64 + 64 + 128) * MIB
    # gradients are in the block of the activations, and the next activations follow states that are in another one
    assert memory.reserved_bytes == (64 + 128 + 64) * MIB


def test_lines_of_the_script_are_those_of_the_peak() -> None:
    step = [allocation(1, 64 * MIB, line="train.py:10"), Free(1), allocation(2, 96 * MIB, line="train.py:20"), Free(2)]
    assert LiveMemory.from_allocations([], step).peak.lines_bytes == {"train.py:20": 96 * MIB}


def test_live_bytes_are_those_of_each_moment_of_the_step() -> None:
    before = [allocation(0, 4, "parameters"), allocation(1, 8, "gradients")]
    step = [Free(1, at=1), allocation(2, 32, line="train.py:20")._replace(at=2), Free(2, at=5)]
    live = LiveMemory.from_allocations(before, step)
    assert live.holders == ("parameters", "gradients", "activations")
    assert live.live_bytes.tolist() == [[4, 4, 4, 4], [8, 0, 0, 0], [0, 0, 32, 0]]
    assert live.at.tolist() == [0, 1, 2, 5]
    assert (live.peak_place, live.peak.size_bytes, live.peak.last) == (2, 36, step[1])
