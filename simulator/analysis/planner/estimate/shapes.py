"""Cuts: a model cut into stages, of which many are alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scaleproof.simulator.analysis.planner.estimate.communication.stage_messages import StageMessages
from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers
from scaleproof.simulator.analysis.planner.estimate.pipeline.closed_forms import CLOSED
from scaleproof.simulator.analysis.planner.estimate.pipeline.equivalent_stages import EquivalentStages
from scaleproof.simulator.memory.in_flight import WHOLE
from scaleproof.simulator.model.layers import NOT_COUNTED, Counted, Layer, cut_into_stages
from scaleproof.simulator.strategy.pipeline.schedule import ScheduleName, stage_of


# Stages, chunks, and the number of a schedule.
Key = tuple[int, int, int]


@dataclass(frozen=True)
class Cut:
    """A model cut into `count` stages: where each begins and ends, of which kind it is, the first stage of each kind."""

    count: int
    ranges: list[range]
    begins: Numbers
    stops: Numbers
    kind_of: Numbers
    kinds: list[int]

    @classmethod
    def of(cls, layers: Sequence[Layer], count: int, counted: Counted) -> Cut:
        ranges = cut_into_stages(layers, count, counted if count > 1 else NOT_COUNTED)
        known: dict[tuple[str, ...], int] = {}
        kind_of = [known.setdefault(tuple(layers[i].signature for i in stage), len(known)) for stage in ranges]
        begins, stops = (np.array([getattr(stage, end) for stage in ranges]) for end in ("start", "stop"))
        return cls(count, ranges, begins, stops, np.array(kind_of), [kind_of.index(kind) for kind in range(len(known))])


class _Sum(NamedTuple):
    """What a rank sums for its stage of some chunk, of a kind. before: how many stages of each kind are summed after it."""

    chunk: int
    kind: int
    before: Numbers


class ConfigurationShape:
    """passing, agreeing: the rows of both tables. codes: of each row of the first its passes, and how its ranks are placed."""

    def __init__(
        self, key: Key, passing: Configurations, agreeing: Configurations, codes: Numbers, cut: Cut, messages: StageMessages
    ) -> None:
        self.passing, self.agreeing, self.cut, (self.pass_code, self.placed) = passing, agreeing, cut, codes
        self.stages, self.chunks, schedule = key
        self.kept = passing.space.kept_over(self.stages)
        # what is gathered before a stage's first pass for the whole step
        self.keeps = self.stages > 1 and not self.kept.get("reshard", True)
        self.is_uniform = passing.space.scenario.cluster.is_uniform
        self.schedule: ScheduleName = passing.space.schedules[schedule] if self.stages > 1 else "1f1b"
        self.stage_of = np.array(
            [[stage_of(self.schedule, self.stages, rank, chunk) for chunk in range(self.chunks)] for rank in range(self.stages)]
        )
        kinds = [tuple(row) for row in cut.kind_of[self.stage_of].tolist()]
        # of ranks that have alike stages the first has the longest way to the last and back
        self.ranks = sorted({*(kinds.index(kind) for kind in set(kinds)), self.stages - 1})
        self.splits = self.schedule not in WHOLE
        if self.schedule not in CLOSED:
            # of alike ranks each may be the slowest, and sums of the last be followed by least
            self.ranks = sorted({*self.ranks, *(self.stages - 1 - kinds[::-1].index(kind) for kind in set(kinds))})
        own = {kind: [rank for rank, one in enumerate(kinds) if one == kind] for kind in set(kinds)}
        # passes of others are not asked for where they tell nothing of these
        self.told = self.ranks if self.schedule == "interleaved_1f1b" else list(range(self.stages))
        self.places = [self.told.index(rank) for rank in self.ranks]
        self.alike = [[at] if self.schedule in CLOSED else own[kinds[at]] for at in self.places]
        self.held = self.stage_of[self.ranks]
        # how many stages of each kind a rank has
        self.has = np.array([np.bincount(cut.kind_of[held], minlength=len(cut.kinds)) for held in self.held])
        rank_of = np.argsort(self.stage_of, axis=None) // self.chunks
        self.ways = np.zeros((int(self.placed.max()) + 1, cut.count - 1), dtype=np.int64)
        for place in np.flatnonzero(np.bincount(self.placed)).tolist():
            self.ways[place] = messages.ask(place, rank_of)
        self.crosses = rank_of[:-1] != rank_of[1:]

    def alike_stages(self, hands_on: Numbers) -> EquivalentStages:
        """In all rows. hands_on: by layer, equal for those that hand on as much as one another."""
        ways = (column.tobytes() for column in np.ascontiguousarray(self.ways.T))
        behind = [*zip(self.crosses.tolist(), hands_on[self.cut.stops[:-1] - 1].tolist(), ways, strict=True), ()]
        known: dict[object, int] = {}
        each = zip(self.cut.kind_of.tolist(), [(), *behind[:-1]], behind, strict=True)
        return EquivalentStages([known.setdefault(one, len(known)) for one in each], self.stages)

    def sums(self, rank: int, every: bool) -> Iterator[_Sum]:
        """Those of a rank's sums that may end last, beside that of its first stage, one of `ranks` by its number: of stages of
        a kind that follow one another the first and the last, between which all goes up evenly unless `every` counts."""
        kinds = self.cut.kind_of[self.held[rank]].tolist()
        for i in range(1, len(kinds)):
            if every or i == len(kinds) - 1 or not kinds[i - 1] == kinds[i] == kinds[i + 1]:
                yield _Sum(i, kinds[i], np.bincount(kinds[:i], minlength=len(self.cut.kinds)))
