"""Matching of the spans of the predicted and the measured run of a scenario.

Spans are matched by (rank class, stream, phase, stage, microbatch); seconds are averaged over steady steps and over the ranks
of the class. If only one side has stages or microbatches, spans are matched by what both have.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from scaleproof.simulator.common.spans import Stream
from scaleproof.simulator.run.run import Run
from scaleproof.validator.reconciliation.members import class_of_ranks
from scaleproof.validator.reconciliation.tally import Numbers, Tally, in_step, tally

Place = tuple[int, int, int]  # rank class, stream, phase


class Kind(NamedTuple):
    """Key of equivalent spans. rank: the predicted rank class. stage, microbatch: −1 if not given."""

    rank: int
    stream: int
    phase: int
    stage: int
    microbatch: int


class WorkAndWaiting(NamedTuple):
    """Seconds of work and of waiting, and bytes, of one rank of a class in a step."""

    doing_s: float
    waiting_s: float
    size_bytes: float

    @property
    def all_s(self) -> float:
        """Seconds of work and waiting."""
        return self.doing_s + self.waiting_s


class MatchedSpans(NamedTuple):
    """Spans of one kind on both sides. share: of its rank class in means over training ranks."""

    kind: Kind
    predicted: WorkAndWaiting
    measured: WorkAndWaiting
    share: float

    @property
    def is_main(self) -> bool:
        """Whether the spans are on the main stream, where they delay their rank."""
        return self.kind.stream == Stream.MAIN

    @property
    def difference_s(self) -> float:
        """Predicted − measured seconds in the mean over training ranks."""
        return (self.predicted.all_s - self.measured.all_s) * self.share


@dataclass(frozen=True)
class MatchedRuns:
    """class_of: predicted class of each measured rank. pairs: spans with a counterpart.

    unmatched_s: predicted − measured seconds per step, by phase, of work on main streams of training ranks whose phase the
    other side lacks.
    """

    predicted: Tally
    measured: Tally
    class_of: Numbers
    pairs: tuple[MatchedSpans, ...]
    unmatched_s: Mapping[int, float]


def match(predicted: Run, measured: Run) -> MatchedRuns | None:
    """Matches two runs; None if a side lacks spans or its ranks do not step synchronously, so that only breakdowns are
    comparable."""
    predicted_tally, measured_tally = tally(predicted), tally(measured)
    if predicted_tally is None or measured_tally is None or not (in_step(predicted) and in_step(measured)):
        return None
    class_of = class_of_ranks(predicted, measured)
    ours = _Side.of(predicted_tally, np.arange(len(predicted_tally.share)))
    theirs = _Side.of(measured_tally, class_of)
    unmatched_s: dict[int, float] = defaultdict(float)
    for own, other, sign in ((ours, theirs, 1.0), (theirs, ours, -1.0)):
        for phase, seconds in own.unmatched_s(other).items():
            unmatched_s[phase] += sign * seconds
    pairs = tuple(pair for place in ours.rows.keys() & theirs.rows.keys() for pair in _pairs(place, ours, theirs))
    return MatchedRuns(predicted_tally, measured_tally, class_of, tuple(sorted(pairs)), dict(unmatched_s))


class _Side(NamedTuple):
    """Rows of a run's tally by (rank class, stream, phase). ranks: number of the run's ranks in each class."""

    tally: Tally
    rows: Mapping[Place, list[int]]
    ranks: Mapping[int, int]

    @classmethod
    def of(cls, tally: Tally, class_of: Numbers) -> Self:
        rows: dict[Place, list[int]] = defaultdict(list)
        columns = (class_of[tally.rank].tolist(), tally.stream.tolist(), tally.phase.tolist())
        for row, place in enumerate(zip(*columns, strict=True)):
            rows[place].append(row)
        return cls(tally, rows, Counter(class_of.tolist()))

    def unmatched_s(self, other: _Side) -> dict[int, float]:
        """Seconds of work by phase, of phases that the other side lacks."""
        known = {(rank, phase) for rank, _, phase in other.rows if rank >= 0}
        result: dict[int, float] = defaultdict(float)
        for (rank, stream, phase), rows in self.rows.items():
            if stream == Stream.MAIN and (rank, phase) not in known:
                result[phase] += float((self.tally.doing_s[rows] * self.tally.share[self.tally.rank[rows]]).sum())
        return {phase: seconds for phase, seconds in result.items() if seconds > 0}

    def spent(self, place: Place, depth: int) -> dict[tuple[int, ...], WorkAndWaiting]:
        """Work and waiting of one rank of the class, by the first `depth` of (stage, microbatch)."""
        rows = self.rows[place]
        labels = np.stack([self.tally.stage, self.tally.microbatch])[:depth, rows]
        result: dict[tuple[int, ...], WorkAndWaiting] = {}
        for label in np.unique(labels, axis=1).T if depth else [np.zeros(0, dtype=np.int64)]:
            chosen = np.array(rows)[(labels == label[:, None]).all(axis=0)]
            columns = (self.tally.doing_s, self.tally.waiting_s, self.tally.size_bytes)
            result[tuple(label.tolist())] = WorkAndWaiting(
                *(float(column[chosen].sum()) / self.ranks[place[0]] for column in columns)
            )
        return result


def _pairs(place: Place, ours: _Side, theirs: _Side) -> Iterator[MatchedSpans]:
    """Matched spans by microbatch if both sides have the same ones, otherwise by stage if so, otherwise all as one."""
    rank, stream, phase = place
    share = float(ours.tally.share[rank])
    for depth in (2, 1, 0):
        predicted, measured = ours.spent(place, depth), theirs.spent(place, depth)
        if predicted.keys() == measured.keys():
            for label in predicted:
                stage, microbatch = (*label, -1, -1)[:2]
                yield MatchedSpans(Kind(rank, stream, phase, stage, microbatch), predicted[label], measured[label], share)
            return
