"""The caching allocator compared with the documented rules of PyTorch's, and with invariants of any allocator."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.memory.allocator.caching import CachingAllocator, DeviceFullError
from scaleproof.simulator.memory.allocator.segments import MIB, MemoryBlock

KIB = 2**10
BOTH = pytest.mark.parametrize("expandable", [False, True])
# request sizes of both pools, and around the limits between them
SIZES = st.one_of(st.integers(1, 4096), st.integers(MIB - 600, MIB + 600), st.integers(1, 40 * MIB))


def states(allocator: CachingAllocator) -> tuple[int, int, int, int, int]:
    return (
        allocator.allocated_bytes,
        allocator.reserved_bytes,
        allocator.peak_allocated_bytes,
        allocator.peak_reserved_bytes,
        allocator.retries,
    )


@BOTH
@pytest.mark.parametrize(
    ("request_bytes", "allocated"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512), (3 * MIB, 3 * MIB)]
)
def test_requests_are_rounded_to_512_bytes(request_bytes: int, allocated: int, expandable: bool) -> None:
    allocator = CachingAllocator(expandable=expandable)
    assert allocator.allocate(request_bytes).size_bytes == allocated == allocator.allocated_bytes


@pytest.mark.parametrize(
    ("request_bytes", "reserved"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (101 * MIB, 102 * MIB),
    ],
)
def test_the_size_of_a_segment_depends_on_the_request(request_bytes: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(request_bytes)
    assert allocator.reserved_bytes == reserved


@pytest.mark.parametrize(
    ("request_bytes", "reserved"), [(1, 2 * MIB), (MIB + 1, 20 * MIB), (19 * MIB, 20 * MIB), (101 * MIB, 120 * MIB)]
)
def test_expandable_segments_map_pages_of_2_or_20_mib(request_bytes: int, reserved: int) -> None:
    allocator = CachingAllocator(expandable=True)
    allocator.allocate(request_bytes)
    assert allocator.reserved_bytes == reserved


def test_expandable_segments_grow_at_their_end() -> None:
    fixed, expandable = CachingAllocator(), CachingAllocator(expandable=True)
    for allocator in (fixed, expandable):
        freed = [allocator.allocate(30 * MIB) for _ in range(2)]
        for block in freed:
            allocator.free(block)
        allocator.allocate(70 * MIB)
    assert fixed.reserved_bytes == (2 * 30 + 70) * MIB
    assert expandable.reserved_bytes == 80 * MIB
    assert [block.size_bytes for block in expandable.blocks() if block.is_mapped] == [70 * MIB, 10 * MIB]


@BOTH
def test_the_smallest_free_block_that_suffices_is_used(expandable: bool) -> None:
    allocator = CachingAllocator(expandable=expandable)
    sizes = (40, 20, 30)
    blocks = {}
    for size in sizes:
        blocks[size] = allocator.allocate(size * MIB)
        allocator.allocate(12 * MIB)
    addresses = {size: block.address for size, block in blocks.items()}
    for block in blocks.values():
        allocator.free(block)
    assert allocator.allocate(21 * MIB).address == addresses[30]
    assert allocator.allocate(20 * MIB).address == addresses[20]


@pytest.mark.parametrize(("request_bytes", "rest"), [(20 * MIB - MIB, None), (20 * MIB - MIB - 512, MIB + 512)])
def test_large_blocks_are_split_if_more_than_1_mib_remains(request_bytes: int, rest: int | None) -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(2 * MIB))
    block = allocator.allocate(request_bytes)
    assert allocator.reserved_bytes == 20 * MIB or request_bytes > 10 * MIB
    assert [other.size_bytes for other in allocator.blocks() if other is not block] == ([rest] if rest else [])
    assert block.size_bytes == (request_bytes if rest else 20 * MIB)


def test_small_blocks_are_split_to_the_last_512_bytes() -> None:
    allocator = CachingAllocator()
    for _ in range(4096):
        allocator.allocate(100)
    assert allocator.allocated_bytes == allocator.reserved_bytes == 2 * MIB


@BOTH
def test_free_neighbours_are_merged(expandable: bool) -> None:
    allocator = CachingAllocator(expandable=expandable)
    blocks = [allocator.allocate(4 * MIB) for _ in range(5)]
    for number in (0, 2, 1, 4, 3):
        allocator.free(blocks[number])
    assert [block.size_bytes for block in allocator.blocks() if block.is_mapped] == [20 * MIB]


@BOTH
def test_streams_do_not_share_memory(expandable: bool) -> None:
    allocator = CachingAllocator(expandable=expandable)
    allocator.free(allocator.allocate(20 * MIB, stream=0))
    allocator.allocate(20 * MIB, stream=1)
    assert allocator.reserved_bytes == 40 * MIB


def test_small_requests_do_not_use_large_segments() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(2 * MIB))
    allocator.allocate(MIB)
    assert allocator.reserved_bytes == 22 * MIB


def test_cached_segments_are_freed_when_the_device_is_full() -> None:
    allocator = CachingAllocator(capacity_bytes=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert (allocator.retries, allocator.reserved_bytes, allocator.peak_reserved_bytes) == (1, 80 * MIB, 80 * MIB)


def test_segments_in_use_are_not_freed() -> None:
    allocator = CachingAllocator(capacity_bytes=100 * MIB)
    first = allocator.allocate(60 * MIB)
    allocator.free(first)
    allocator.allocate(2 * MIB)
    with pytest.raises(DeviceFullError, match="requested"):
        allocator.allocate(80 * MIB)
    assert allocator.retries == 1


def test_expandable_segments_free_pages_between_blocks() -> None:
    allocator = CachingAllocator(capacity_bytes=100 * MIB, expandable=True)
    blocks = [allocator.allocate(30 * MIB) for _ in range(3)]
    allocator.free(blocks[1])
    # pages of 20 MiB: those from 40 to 60 MiB lie within the free block, of which 10 MiB in front remain mapped
    allocator.release()
    assert allocator.reserved_bytes == 80 * MIB
    assert [(block.size_bytes // MIB, block.is_mapped) for block in itertools.islice(allocator.blocks(), 4)] == [
        (30, True), (10, True), (20, False), (30, True),
    ]  # fmt: skip
    assert allocator.allocate(10 * MIB).address == blocks[0].address + 30 * MIB


@BOTH
def test_the_peak_is_recorded_with_its_request(expandable: bool) -> None:
    allocator = CachingAllocator(expandable=expandable)
    first, second = allocator.allocate(4 * MIB), allocator.allocate(4 * MIB)
    allocator.free(first)
    allocator.free(second)
    allocator.allocate(2 * MIB)
    assert (allocator.peak_allocated_bytes, allocator.peak_allocation, allocator.allocations) == (8 * MIB, 2, 3)


@BOTH
@given(requests=st.lists(st.tuples(SIZES, st.integers(0, 1), st.integers(0, 5)), max_size=60))
def test_blocks_do_not_overlap_and_return_to_whole_segments(expandable: bool, requests: list[tuple[int, int, int]]) -> None:
    allocator, repeated = CachingAllocator(expandable=expandable), CachingAllocator(expandable=expandable)
    live: list[MemoryBlock] = []
    others: list[MemoryBlock] = []
    for size, stream, freed in requests:
        live.append(allocator.allocate(size, stream))
        others.append(repeated.allocate(size, stream))
        assert live[-1].size_bytes >= size
        if freed < len(live):
            allocator.free(live.pop(freed))
            repeated.free(others.pop(freed))
        check_consistency(allocator, live)
        assert states(allocator) == states(repeated)
    assert [block.address for block in live] == [block.address for block in others]
    for block in live:
        allocator.free(block)
    check_consistency(allocator, [])
    for pool in allocator._pools.values():
        assert sum(block.is_mapped for block in pool.blocks()) == len(pool.segments)
    allocator.release()
    assert allocator.reserved_bytes == allocator.allocated_bytes == 0


def check_consistency(allocator: CachingAllocator, live: list[MemoryBlock]) -> None:
    """The blocks fill the segments, free neighbours are merged, and sums agree."""
    blocks = list(allocator.blocks())
    assert {id(block) for block in blocks if block.is_allocated} == {id(block) for block in live}
    assert allocator.allocated_bytes == sum(block.size_bytes for block in live) <= allocator.peak_allocated_bytes
    assert allocator.reserved_bytes == sum(block.size_bytes for block in blocks if block.is_mapped)
    assert allocator.allocated_bytes <= allocator.reserved_bytes <= allocator.peak_reserved_bytes
    for block in blocks:
        if block.next is not None:
            assert block.address + block.size_bytes == block.next.address
            assert block.next.previous is block
            assert block.is_allocated or not block.merges_with(block.next)


@BOTH
@given(requests=st.lists(st.tuples(SIZES, st.integers(0, 3)), max_size=60))
def test_a_full_device_is_never_exceeded(expandable: bool, requests: list[tuple[int, int]]) -> None:
    allocator = CachingAllocator(capacity_bytes=90 * MIB, expandable=expandable)
    live: list[MemoryBlock] = []
    for size, freed in requests:
        try:
            live.append(allocator.allocate(size))
        except DeviceFullError:
            allocator.free(live.pop())
        if freed < len(live):
            allocator.free(live.pop(freed))
        check_consistency(allocator, live)
        assert allocator.peak_reserved_bytes <= 90 * MIB
