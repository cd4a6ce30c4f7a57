"""Corrections of clocks: offset and drift that convert one clock's times to another's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

# Largest rate at which Linux slews a clock, MAXFREQ in linux/timex.h; quartz drifts by a tenth of it.
_MOST_DRIFT: Final = 500e-6


class ClockReading(NamedTuple):
    """Offset of another clock at one time of this clock, offset_s ± uncertainty_s."""

    at_s: float
    offset_s: float
    uncertainty_s: float


class RoundTrip(NamedTuple):
    """A message there and back: sent_s and back_s by this clock, replied_s by the other."""

    sent_s: float
    replied_s: float
    back_s: float


@dataclass(frozen=True)
class Correction:
    """Adds offset_s at zero_s, and `drift` more for each second after it.

    The sum is right to ± uncertainty_s from the first reading to the last, and the drift to ± drift_uncertainty, if both clocks
    run evenly.
    """

    zero_s: float
    offset_s: float
    drift: float
    uncertainty_s: float
    drift_uncertainty: float

    def of(self, times_s: Any) -> Any:
        """Times, a float or an array, converted to the other clock."""
        return times_s + (self.offset_s + self.drift * (times_s - self.zero_s))


def read(round_trips: Sequence[RoundTrip]) -> ClockReading:
    """Reads the other clock by several messages there and back.

    Its time was read between the sending of each message and its return, however long either way took: each round trip bounds
    the offset on both sides, and the tightest bounds count.
    """
    begin_s, end_s = round_trips[0].sent_s, round_trips[-1].back_s
    low_s = max(trip.replied_s - trip.back_s for trip in round_trips)
    high_s = min(trip.replied_s - trip.sent_s for trip in round_trips)
    drifted_s = 2 * _MOST_DRIFT * (end_s - begin_s) / 2
    return ClockReading((begin_s + end_s) / 2, (low_s + high_s) / 2, abs(high_s - low_s) / 2 + drifted_s)


def between(first: ClockReading, last: ClockReading) -> Correction:
    """The linear correction between two readings. Straight lines within the readings' bounds differ most at an end."""
    elapsed_s = max(last.at_s - first.at_s, 1e-9)
    return Correction(
        first.at_s,
        first.offset_s,
        (last.offset_s - first.offset_s) / elapsed_s,
        max(first.uncertainty_s, last.uncertainty_s),
        (first.uncertainty_s + last.uncertainty_s) / elapsed_s,
    )
