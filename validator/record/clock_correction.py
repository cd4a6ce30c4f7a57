"""Corrections: what to add to one clock's times to have another's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

# Linux slews a clock by no more, MAXFREQ in linux/timex.h; quartz strays by a tenth of it.
_MOST_DRIFT: Final = 500e-6


class Reading(NamedTuple):
    """How far a clock is from another at one moment of its own: offset_s is right to ± uncertainty_s."""

    at_s: float
    offset_s: float
    uncertainty_s: float


class Answer(NamedTuple):
    """A message there and back: asked_s and back_s by the one clock, answered_s by the other."""

    asked_s: float
    answered_s: float
    back_s: float


@dataclass(frozen=True)
class Correction:
    """offset_s is to be added at zero_s, and drift more for each second from then on.

    The sum is right to ± uncertainty_s from the first reading to the last, the drift to ± drift_uncertainty, where both clocks
    run evenly.
    """

    zero_s: float
    offset_s: float
    drift: float
    uncertainty_s: float
    drift_uncertainty: float

    def of(self, times_s: Any) -> Any:
        """Times, one or an array, by the other clock."""
        return times_s + (self.offset_s + self.drift * (times_s - self.zero_s))


def read(answers: Sequence[Answer]) -> Reading:
    """The other clock by several messages there and back.

    It was read after each was asked and before it was back, however long either way took: each holds the offset between two
    bounds, and all of them together between the closest.
    """
    begin_s, end_s = answers[0].asked_s, answers[-1].back_s
    low_s = max(answer.answered_s - answer.back_s for answer in answers)
    high_s = min(answer.answered_s - answer.asked_s for answer in answers)
    strayed_s = 2 * _MOST_DRIFT * (end_s - begin_s) / 2
    return Reading((begin_s + end_s) / 2, (low_s + high_s) / 2, abs(high_s - low_s) / 2 + strayed_s)


def between(first: Reading, last: Reading) -> Correction:
    """What holds from one reading to the other: as two straight lines within the readings' bounds part at most at an end."""
    elapsed_s = max(last.at_s - first.at_s, 1e-9)
    return Correction(
        first.at_s,
        first.offset_s,
        (last.offset_s - first.offset_s) / elapsed_s,
        max(first.uncertainty_s, last.uncertainty_s),
        (first.uncertainty_s + last.uncertainty_s) / elapsed_s,
    )
