"""Match: what the predicted and the measured run of a scenario spend on the same things.

A kind of span is matched by (rank class, stream, phase, stage, microbatch), its seconds averaged over steady steps and over the
ranks that the class stands for. Where only one side tells stages or microbatches, it is matched by what both tell.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from scaleproof.simulator.run.run import Run, Stream
from scaleproof.validator.reconciliation.members import class_of_ranks
from scaleproof.validator.reconciliation.tally import Numbers, Tally, in_step, tally

Place = tuple[int, int, int]  # rank class, stream, phase


class Kind(NamedTuple):
    """Spans that are alike. rank: the predicted rank class. stage, microbatch: −1 where not told."""

    rank: int
    stream: int
    phase: int
    stage: int
    microbatch: int


class Spent(NamedTuple):
    """Of one rank of a class in a step: seconds of doing and of waiting, and bytes."""

    doing_s: float
    waiting_s: float
    size_bytes: float

    @property
    def all_s(self) -> float:
        return self.doing_s + self.waiting_s


class MatchedSpans(NamedTuple):
    """What one kind of span comes to on both sides. share: of its rank class in means over training ranks."""

    kind: Kind
    predicted: Spent
    measured: Spent
    share: float

    @property
    def is_main(self) -> bool:
        """Whether it holds its rank up."""
        return self.kind.stream == Stream.MAIN

    @property
    def difference_s(self) -> float:
        """Predicted − measured, in seconds of the mean over training ranks."""
        return (self.predicted.all_s - self.measured.all_s) * self.share


@dataclass(frozen=True)
class Matched:
    """class_of: of each measured rank the predicted class. pairs: what has a partner.

    unmatched_s: what training ranks do on their main streams of which the other side does nothing, predicted − measured seconds
    per step, by phase.
    """

    predicted: Tally
    measured: Tally
    class_of: Numbers
    pairs: tuple[MatchedSpans, ...]
    unmatched_s: Mapping[int, float]


def match(predicted: Run, measured: Run) -> Matched | None:
    """None where spans of a side are missing, or ranks do not go in step, so that only breakdowns can be compared."""
    here, there = tally(predicted), tally(measured)
    if here is None or there is None or not (in_step(predicted) and in_step(measured)):
        return None
    class_of = class_of_ranks(predicted, measured)
    ours, theirs = _Side.of(here, np.arange(len(here.share))), _Side.of(there, class_of)
    unmatched_s: dict[int, float] = defaultdict(float)
    for own, other, sign in ((ours, theirs, 1.0), (theirs, ours, -1.0)):
        for phase, seconds in own.alone_s(other).items():
            unmatched_s[phase] += sign * seconds
    pairs = tuple(pair for place in ours.rows.keys() & theirs.rows.keys() for pair in _pairs(place, ours, theirs))
    return Matched(here, there, class_of, tuple(sorted(pairs)), dict(unmatched_s))


class _Side(NamedTuple):
    """A run's rows by the (rank class, stream, phase) that they are of; ranks: how many of the run's each class has."""

    told: Tally
    rows: Mapping[Place, list[int]]
    ranks: Mapping[int, int]

    @classmethod
    def of(cls, told: Tally, class_of: Numbers) -> Self:
        rows: dict[Place, list[int]] = defaultdict(list)
        for row, place in enumerate(zip(class_of[told.rank].tolist(), told.stream.tolist(), told.phase.tolist(), strict=True)):
            rows[place].append(row)
        return cls(told, rows, Counter(class_of.tolist()))

    def alone_s(self, other: _Side) -> dict[int, float]:
        """Seconds of doing in phases that the other side does not have."""
        known = {(rank, phase) for rank, _, phase in other.rows if rank >= 0}
        result: dict[int, float] = defaultdict(float)
        for (rank, stream, phase), rows in self.rows.items():
            if stream == Stream.MAIN and (rank, phase) not in known:
                result[phase] += float((self.told.doing_s[rows] * self.told.share[self.told.rank[rows]]).sum())
        return {phase: seconds for phase, seconds in result.items() if seconds > 0}

    def spent(self, place: Place, depth: int) -> dict[tuple[int, ...], Spent]:
        """Of one rank of the class, by as many of stage and microbatch as `depth` says."""
        rows = self.rows[place]
        labels = np.stack([self.told.stage, self.told.microbatch])[:depth, rows]
        found: dict[tuple[int, ...], Spent] = {}
        for label in np.unique(labels, axis=1).T if depth else [np.zeros(0, dtype=np.int64)]:
            chosen = np.array(rows)[(labels == label[:, None]).all(axis=0)]
            columns = (self.told.doing_s, self.told.waiting_s, self.told.size_bytes)
            found[tuple(label.tolist())] = Spent(*(float(column[chosen].sum()) / self.ranks[place[0]] for column in columns))
        return found


def _pairs(place: Place, ours: _Side, theirs: _Side) -> Iterator[MatchedSpans]:
    """By microbatch where both tell the same ones, else by stage, else all together."""
    rank, stream, phase = place
    share = float(ours.told.share[rank])
    for depth in (2, 1, 0):
        predicted, measured = ours.spent(place, depth), theirs.spent(place, depth)
        if predicted.keys() == measured.keys():
            for label in predicted:
                stage, microbatch = (*label, -1, -1)[:2]
                yield MatchedSpans(Kind(rank, stream, phase, stage, microbatch), predicted[label], measured[label], share)
            return
