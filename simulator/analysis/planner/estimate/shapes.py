"""Shapes of configurations: numbers of stages and chunks, and the schedule. How a model is cut into stages, and which ranks
have them."""

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

# Stages, chunks, and the index of a schedule.
ShapeKey = tuple[int, int, int]


@dataclass(frozen=True)
class StageCut:
    """A model cut into `count` stages: layers of each stage, the kind of each stage, and the first stage of each kind."""

    count: int
    ranges: list[range]
    begins: Numbers
    stops: Numbers
    kind_of: Numbers
    kinds: list[int]

    @classmethod
    def of(cls, layers: Sequence[Layer], count: int, counted: Counted) -> StageCut:
        """Cuts layers into stages of about equal numbers of blocks. Stages of one kind have layers with equal signatures."""
        ranges = cut_into_stages(layers, count, counted if count > 1 else NOT_COUNTED)
        known: dict[tuple[str, ...], int] = {}
        kind_of = [known.setdefault(tuple(layers[i].signature for i in stage), len(known)) for stage in ranges]
        begins, stops = (np.array([getattr(stage, end) for stage in ranges]) for end in ("start", "stop"))
        return cls(count, ranges, begins, stops, np.array(kind_of), [kind_of.index(kind) for kind in range(len(known))])


class _Sum(NamedTuple):
    """A sum of gradients for one stage of a rank. kind: of the stage; before: how many stages of each kind the rank sums after
    it."""

    chunk: int
    kind: int
    before: Numbers


class ConfigurationShape:
    """A shape with the rows of both of its tables, of passes and of gradient synchronisation.

    codes: of each row of the first table, its layer times and its placement. own_stages, stage_counts: of each of `ranks`, its
    stages, and how many of each kind. timed_ranks: the ranks whose passes are timed; equivalent_ranks: for each of `ranks`, the
    indices among them of those that have equal stages.
    """

    def __init__(
        self,
        key: ShapeKey,
        pass_rows: Configurations,
        sync_rows: Configurations,
        codes: Numbers,
        cut: StageCut,
        messages: StageMessages,
    ) -> None:
        self.pass_rows, self.sync_rows, self.cut, (self.pass_code, self.placement_code) = pass_rows, sync_rows, cut, codes
        self.stages, self.chunks, schedule = key
        self.kept = pass_rows.space.kept_over(self.stages)
        # whether the parameters gathered before a stage's first pass are kept for the whole step
        self.keeps = self.stages > 1 and not self.kept.get("reshard", True)
        self.is_uniform = pass_rows.space.scenario.cluster.is_uniform
        self.schedule: ScheduleName = pass_rows.space.schedules[schedule] if self.stages > 1 else "1f1b"
        self.stage_of = np.array(
            [[stage_of(self.schedule, self.stages, rank, chunk) for chunk in range(self.chunks)] for rank in range(self.stages)]
        )
        kinds = [tuple(row) for row in cut.kind_of[self.stage_of].tolist()]
        # of ranks with equal stages, the first has the longest way to the last rank and back
        self.ranks = sorted({*(kinds.index(kind) for kind in set(kinds)), self.stages - 1})
        self.splits = self.schedule not in WHOLE
        if self.schedule not in CLOSED:
            # of ranks with equal stages each may be the slowest, and the last has the least work left to hide its sums
            self.ranks = sorted({*self.ranks, *(self.stages - 1 - kinds[::-1].index(kind) for kind in set(kinds))})
        own = {kind: [rank for rank, one in enumerate(kinds) if one == kind] for kind in set(kinds)}
        # other ranks' passes do not matter for these
        self.timed_ranks = self.ranks if self.schedule == "interleaved_1f1b" else list(range(self.stages))
        self.timed_index = [self.timed_ranks.index(rank) for rank in self.ranks]
        self.equivalent_ranks = [[at] if self.schedule in CLOSED else own[kinds[at]] for at in self.timed_index]
        self.own_stages = self.stage_of[self.ranks]
        self.stage_counts = np.array(
            [np.bincount(cut.kind_of[own_stages], minlength=len(cut.kinds)) for own_stages in self.own_stages]
        )
        rank_of = np.argsort(self.stage_of, axis=None) // self.chunks
        self.routes = np.zeros((int(self.placement_code.max()) + 1, cut.count - 1), dtype=np.int64)
        for place in np.flatnonzero(np.bincount(self.placement_code)).tolist():
            self.routes[place] = messages.request(place, rank_of)
        self.crosses = rank_of[:-1] != rank_of[1:]

    def equivalent_stages(self, sent_class: Numbers) -> EquivalentStages:
        """Classes of stages with equal times in all rows. sent_class: of each layer, equal for layers that send messages of
        equal size."""
        routes = (column.tobytes() for column in np.ascontiguousarray(self.routes.T))
        after = [*zip(self.crosses.tolist(), sent_class[self.cut.stops[:-1] - 1].tolist(), routes, strict=True), ()]
        known: dict[object, int] = {}
        each = zip(self.cut.kind_of.tolist(), [(), *after[:-1]], after, strict=True)
        return EquivalentStages([known.setdefault(one, len(known)) for one in each], self.stages)

    def sums(self, rank: int, include_all: bool) -> Iterator[_Sum]:
        """Sums that may be a rank's last, in addition to that of its first stage. rank: index in `ranks`.

        Of consecutive stages of one kind these are the first and the last, as the end times between them are linear, unless
        `include_all`.
        """
        kinds = self.cut.kind_of[self.own_stages[rank]].tolist()
        for i in range(1, len(kinds)):
            if include_all or i == len(kinds) - 1 or not kinds[i - 1] == kinds[i] == kinds[i + 1]:
                yield _Sum(i, kinds[i], np.bincount(kinds[:i], minlength=len(self.cut.kinds)))
