"""Buckets close once they reach their limit, and contain all gradients in order."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.buckets import bucket_bounds


@given(st.lists(st.integers(1, 100), max_size=40), st.integers(1, 150), st.integers(1, 300))
def test_buckets_close_once_they_reach_their_limit(sizes: list[int], first_limit: int, limit: int) -> None:
    filled = list(accumulate(sizes, initial=0))
    bounds = bucket_bounds(filled, 0, len(sizes), first_limit, limit)
    buckets = [sizes[begin:end] for begin, end in pairwise(bounds)]
    assert [size for bucket in buckets for size in bucket] == sizes
    for number, bucket in enumerate(buckets):
        own_limit = limit if number else first_limit
        assert sum(bucket[:-1]) < own_limit
        assert sum(bucket) >= own_limit or number == len(buckets) - 1


def test_part_of_the_gradients_without_limits_is_one_bucket() -> None:
    assert bucket_bounds([0, 4, 6, 9, 10], 1, 3, float("inf"), float("inf")) == [1, 3]
    assert bucket_bounds([0, 4, 6], 2, 2, 1, 1) == [2]
