"""Timed steps are repeated until their median is known or the budget is spent."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from scaleproof.validator.probe import adaptive
from scaleproof.validator.probe.adaptive import Repetition, _order, by_size, half_width, repeat, timed, undisturbed
from scaleproof.validator.probe.points import NARROW, TIME
from tests.validator.probe.conftest import Hands, stand_still


@pytest.mark.parametrize("count", [5, 6, 8, 20, 21, 100, 501])
def test_order_statistics_enclose_the_median_in_90_percent_of_cases(count: int) -> None:
    k = _order(count)
    # the true median lies outside where fewer than k of the times lie on one side of it
    assert 2 * binom.cdf(k - 1, count, 0.5) <= 0.1 < 2 * binom.cdf(k, count, 0.5)


def test_fewer_than_five_times_give_no_interval() -> None:
    assert [half_width([1.0] * count) for count in range(6)] == [math.inf] * 5 + [0.0]


@given(st.lists(st.floats(1e-6, 1.0), min_size=5, max_size=40), st.floats(1e-3, 1e3))
def test_the_relative_width_is_independent_of_order_and_unit(seconds: list[float], unit: float) -> None:
    width = half_width(seconds)
    assert half_width([one * unit for one in reversed(seconds)]) == pytest.approx(width)


def test_steady_times_stop_once_the_interval_is_narrow(hands: Hands) -> None:
    samples = repeat(lambda: hands.step(0.001), budget_s=10.0)
    assert samples.stopped == NARROW
    assert samples.seconds == (0.001,) * 8
    assert hands.steps == 2 + 8, "two are the warm-up's"
    assert samples.spent_s == pytest.approx(0.010)
    assert samples.step_s == pytest.approx(0.001)
    assert samples.cores_busy == pytest.approx(0.5)


def _noisy(hands: Hands) -> Callable[[], float]:
    # from 0.1 to 10 ms, short and long in turn
    seconds = itertools.cycle(1e-4 * 100 ** (place * 34 % 97 / 97) for place in range(97))
    return lambda: hands.step(next(seconds))


def test_unsteady_times_stop_at_the_time_limit(hands: Hands) -> None:
    samples = repeat(_noisy(hands), budget_s=0.1)
    assert samples.stopped == TIME
    assert 0.05 < samples.spent_s < 0.12
    assert half_width(samples.seconds) > 0.02


def test_repetitions_of_a_quick_step_are_limited(hands: Hands) -> None:
    samples = repeat(_noisy(hands), budget_s=1e6)
    assert samples.stopped == TIME
    assert len(samples.seconds) == 500


def test_a_step_that_takes_the_whole_budget_runs_once(hands: Hands) -> None:
    samples = repeat(lambda: hands.step(7.0), budget_s=2.0)
    assert (samples.seconds, samples.stopped, hands.steps) == ((7.0,), TIME, 1)


def test_a_few_outliers_neither_change_the_median_nor_prolong_the_probe(hands: Hands) -> None:
    seconds = itertools.cycle([0.001] * 9 + [1.0])
    samples = repeat(lambda: hands.step(next(seconds)), budget_s=100.0)
    assert samples.stopped == NARROW
    assert np.median(samples.seconds) == 0.001


def _line(hands: Hands, per_byte_s: float) -> Callable[[int], Callable[[], float]]:
    return lambda size: lambda: hands.step(0.001 + per_byte_s * size)


def test_sizes_share_the_budget_and_those_beyond_it_are_skipped(hands: Hands) -> None:
    # a second per mebibyte
    found = dict(by_size(_line(hands, 2.0**-20), [2**24, 2**10, 2**20, 2**12, 2**22], budget_s=8.0))
    assert list(found) == [2**10, 2**12, 2**20], "three of 4 MiB take twelve seconds"
    assert hands.now_s < 8.5


def test_large_sizes_have_larger_shares(hands: Hands) -> None:
    """Where times vary, small sizes use up their own shares: 1, 2 and 3 sixths."""
    spent = [samples.spent_s for _, samples in by_size(lambda _: _noisy(hands), [4, 64, 1024], budget_s=0.6)]
    assert spent == pytest.approx([0.1, 0.2, 0.3], abs=0.02)


@given(st.floats(0, 1e-5), st.floats(0.01, 5.0))
def test_all_sizes_stay_within_about_the_budget(per_byte_s: float, budget_s: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        hands = stand_still(patch)
        longest_s = 0.0
        for size, samples in by_size(_line(hands, per_byte_s), [4**power for power in range(1, 13)], budget_s):
            longest_s = 0.001 + per_byte_s * size
            assert samples.seconds
        assert hands.now_s <= budget_s + 3 * longest_s


@pytest.mark.usefixtures("alone")
def test_a_step_of_several_parts_gives_times_per_part() -> None:
    whole, part = timed(lambda: sum(range(200_000))), timed(lambda: sum(range(200_000)), parts=1000)
    assert 0 < part() < whole()


def _repetitions(*lost: float) -> list[Repetition]:
    """Repetitions of 1, 2, 3, … seconds with the given lost shares."""
    return [Repetition(float(second), share * second) for second, share in enumerate(lost, 1)]


def test_undisturbed_repetitions_count_if_they_are_at_least_half() -> None:
    assert undisturbed(_repetitions(0, 0, 0)) == [1, 2, 3]
    assert undisturbed(_repetitions(0, 0.5, 0.01)) == [1, 3]
    assert undisturbed(_repetitions(0.3, 0.5, 0.1, 0.01)) == [3, 4]  # the better half


@given(st.lists(st.tuples(st.floats(1e-6, 10), st.floats(0, 1)), min_size=1))
def test_at_least_half_of_the_repetitions_count(each: list[tuple[float, float]]) -> None:
    assert 2 * len(undisturbed([Repetition(*one) for one in each])) >= len(each)


def test_what_happens_once_is_not_timed(hands: Hands) -> None:
    """The first call of a collective creates a communicator, which takes seconds."""
    first = itertools.chain([3.0], itertools.repeat(0.0))
    step_of = lambda size: lambda: hands.step(next(first) + 0.001 + 1e-9 * size)  # noqa: E731
    found = dict(by_size(step_of, [4, 4096, 2**24], budget_s=1.0))
    assert list(found) == [4, 4096, 2**24]
    assert max(found[4].seconds) == pytest.approx(0.001, rel=1e-3)
    assert found[4].stopped == NARROW


def test_a_step_is_sustained_for_the_budget_and_its_times_are_in_order(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither narrow times nor a warm-up end or shorten it."""
    monkeypatch.setattr(adaptive, "lost_s", lambda: 0.0)
    slower = itertools.chain([0.125, 0.125], itertools.repeat(0.25))
    samples = adaptive.sustain(lambda: hands.step(next(slower)), 1.25)
    assert samples.seconds == (0.125, 0.125, 0.25, 0.25, 0.25, 0.25)
    assert (samples.stopped, samples.spent_s) == ("time", 1.25)
