"""Corrections between clocks stay within their stated error for any offset and message delay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator

from scaleproof.validator.record.clock_correction import ClockReading, Correction, RoundTrip, between, read

ROUNDS = 32


class Clocks:
    """Two clocks, of which the one is `offset_s` behind the other and loses `drift`, and a network between them."""

    def __init__(self, offset_s: float, drift: float, seed: int, latency_s: float, asymmetry: float) -> None:
        self.offset_s, self.drift = offset_s, drift
        self.random: Generator = np.random.default_rng(seed)
        self.latency_s, self.asymmetry = latency_s, asymmetry
        self.now_s = 5000.0

    def other(self, own_s: float) -> float:
        return own_s + self.offset_s + self.drift * own_s

    def round_trips(self) -> list[RoundTrip]:
        round_trips = []
        for _ in range(ROUNDS):
            sent_s = self.now_s
            there_s, back_s = self.latency_s * self.random.lognormal(0.0, 1.0, 2) * (1.0, self.asymmetry)
            self.now_s += there_s
            replied_s = self.other(self.now_s)
            self.now_s += back_s
            round_trips.append(RoundTrip(sent_s, replied_s, self.now_s))
        return round_trips


@given(
    offset_s=st.floats(-20_000, 20_000),
    drift=st.floats(-100e-6, 100e-6),
    seed=st.integers(0, 2**31),
    latency_s=st.floats(5e-6, 5e-3),
    asymmetry=st.floats(0.1, 20.0),
    trained_s=st.floats(0.1, 10_000),
)
def test_clocks_are_aligned_within_the_stated_error(
    offset_s: float, drift: float, seed: int, latency_s: float, asymmetry: float, trained_s: float
) -> None:
    clocks = Clocks(offset_s, drift, seed, latency_s, asymmetry)
    first = read(clocks.round_trips())
    begin_s = clocks.now_s
    clocks.now_s += trained_s
    end_s = clocks.now_s
    last = read(clocks.round_trips())

    correction = between(first, last)

    own_s = np.linspace(begin_s, end_s, 101)
    errors_s = np.abs(correction.of(own_s) - clocks.other(own_s))
    # sums of hours resolve nanoseconds at best
    assert errors_s.max() <= correction.uncertainty_s + 1e-8
    assert abs(correction.drift - drift) <= correction.drift_uncertainty + 1e-8


def test_the_stated_error_is_at_most_the_fastest_round_trip() -> None:
    clocks = Clocks(3.0, 20e-6, 1, latency_s=1e-3, asymmetry=1.0)
    round_trips = clocks.round_trips()

    reading = read(round_trips)

    fastest_s = min(trip.back_s - trip.sent_s for trip in round_trips)
    assert reading.uncertainty_s < fastest_s / 2 + 1e-3 * (round_trips[-1].back_s - round_trips[0].sent_s)


def test_a_correction_is_linear_between_its_readings() -> None:
    correction = between(ClockReading(10.0, 5.0, 0.1), ClockReading(20.0, 6.0, 0.3))

    assert correction == Correction(10.0, 5.0, pytest.approx(0.1), 0.3, pytest.approx(0.04))
    assert correction.of(15.0) == pytest.approx(20.5)
