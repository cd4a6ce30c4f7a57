from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.validator.estimation.groups import slow_members

seeds = st.integers(0, 10_000)
ratios = st.floats(1.5, 5.0)
fixed = settings(max_examples=50, deadline=None, derandomize=True)


def pairs(count: int, seed: int, noise: float = 0.02) -> dict[tuple[int, ...], float]:
    random = np.random.default_rng(seed)
    return {pair: 1e-3 * float(np.exp(random.normal(0, noise))) for pair in combinations(range(count), 2)}


@fixed
@given(st.integers(2, 9), seeds, st.sampled_from([0.01, 0.02]))
def test_noise_alone_gives_no_slow_members(count: int, seed: int, noise: float) -> None:
    assert slow_members(pairs(count, seed, noise)) == []


@fixed
@given(st.integers(3, 9), seeds, ratios, st.data())
def test_only_the_slow_host_is_found(count: int, seed: int, ratio: float, data: st.DataObject) -> None:
    host = data.draw(st.integers(0, count - 1))
    seconds = {pair: s * (ratio if host in pair else 1) for pair, s in pairs(count, seed).items()}
    (odd,) = slow_members(seconds, "host")
    assert odd.members == (host,)
    assert odd.ratio == pytest.approx(ratio, rel=0.1)
    assert odd.sentence == f"host {host} is {odd.ratio:.1f} times as slow to all others"


@fixed
@given(st.integers(3, 9), seeds, ratios, st.data())
def test_only_the_slow_link_is_found(count: int, seed: int, ratio: float, data: st.DataObject) -> None:
    seconds = pairs(count, seed)
    slow = data.draw(st.sampled_from(sorted(seconds)))
    seconds[slow] *= ratio
    (odd,) = slow_members(seconds)
    assert odd.members == slow
    assert odd.ratio == pytest.approx(ratio, rel=0.1)


@fixed
@given(seeds)
def test_two_slow_hosts_and_a_slow_link_are_distinguished(seed: int) -> None:
    seconds = pairs(8, seed)
    for pair in seconds:
        seconds[pair] *= max(2.0 if 3 in pair else 1.0, 1.5 if 6 in pair else 1.0, 3.0 if pair == (0, 1) else 1.0)
    assert [odd.members for odd in slow_members(seconds)] == [(3,), (6,), (0, 1)]


def test_a_slow_pair_is_reported_as_a_share_of_the_usual_rate() -> None:
    seconds = pairs(6, 0, noise=0.0)
    seconds[3, 5] /= 0.61
    (odd,) = slow_members(seconds)
    assert str(odd) == "rank 3 ↔ rank 5 runs at 61 % of the others"


def test_the_slower_direction_of_a_pair_counts() -> None:
    seconds = pairs(5, 0, noise=0.0)
    both = seconds | {pair[::-1]: s for pair, s in seconds.items()} | {(4, 2): 2e-3}
    assert [odd.members for odd in slow_members(both)] == [(2, 4)]


@fixed
@given(st.integers(2, 16), seeds, ratios, st.data())
def test_a_slow_rank_is_found_among_single_rank_times(count: int, seed: int, ratio: float, data: st.DataObject) -> None:
    random = np.random.default_rng(seed)
    seconds: dict[tuple[int, ...], float] = {(rank,): float(np.exp(random.normal(0, 0.01))) for rank in range(count)}
    assert slow_members(seconds) == []
    slow = data.draw(st.integers(0, count - 1))
    seconds[slow,] *= ratio
    assert [odd.members for odd in slow_members(seconds)] == [(slow,)]


def test_a_slowly_computing_rank_is_reported() -> None:
    (odd,) = slow_members({(0,): 1.0, (1,): 1.0, (2,): 1 / 0.71, (3,): 1.0}, verb="computes at")
    assert odd.sentence == "rank 2 computes at 71 % of the others"


@pytest.mark.parametrize("seconds", [{}, {(0,): 1.0}, {(0, 1): 1.0}])
def test_too_few_members_give_no_slow_ones(seconds: dict[tuple[int, ...], float]) -> None:
    assert slow_members(seconds) == []
