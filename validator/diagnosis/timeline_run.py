"""The run of one traced step of a few ranks, for timelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from scaleproof.simulator.analysis.diagnosis import Diagnosis
from scaleproof.simulator.common.communication import UNKNOWN
from scaleproof.simulator.common.spans import Spans
from scaleproof.simulator.run.breakdown import from_spans
from scaleproof.simulator.run.run import Run
from scaleproof.validator.calibration.imports.kineto import TracedCollective
from scaleproof.validator.reconciliation.jobs.trace_spans import (
    SpanColumns,
    TracedRank,
    add_rank,
    transfer_times_s,
    transfers,
)

_MOST: Final = 16


class _Unknown:
    """Dimensions of communication of a job without a scenario."""

    def number(self, exchange: TracedCollective) -> int:
        """None is known."""
        return UNKNOWN


def run_of(ranks: Sequence[TracedRank], found: Diagnosis) -> Run:
    """The step of median duration of the ranks of findings, the median one, and those that wait the least and the most."""
    chosen = {one.rank for one in found.notable_ranks(_MOST)}
    steps_s = np.diff([rank.steps.ends_s[: 1 + min(len(one.steps.works) for one in ranks)] for rank in ranks]).max(axis=0)
    step = int(np.argsort(steps_s)[len(steps_s) // 2])
    one_step = [_cut(rank, step) for rank in ranks]
    times_s = transfer_times_s(one_step)
    shown = [rank for rank in one_step if rank.rank in chosen]
    to = SpanColumns()
    for index, rank in enumerate(shown):
        add_rank(index, rank, transfers(rank, times_s), _Unknown(), to)
    ends_s = np.array([0.0, steps_s[step]])
    times = from_spans(Spans.of(to.columns), ends_s, servers=np.zeros(len(shown), dtype=bool))
    return Run(
        **vars(times),
        origin="measured",
        scenario="job",
        strategy="traced",
        samples=1,
        rank_names=tuple(f"rank {rank.rank}" for rank in shown),
    )


def _cut(rank: TracedRank, step: int) -> TracedRank:
    """A rank with one of its steps."""
    steps = rank.steps
    return replace(rank, steps=replace(steps, works=steps.works[step : step + 1], ends_s=steps.ends_s[step : step + 2]))
