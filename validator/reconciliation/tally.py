"""Totals of a run's spans for each rank and kind of span, in seconds per step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.run.run import Run
from scaleproof.validator.reconciliation.members import multiplicity, servers

Numbers = NDArray[np.int64]
Seconds = NDArray[np.float64]
# what distinguishes kinds of spans, in addition to the rank
KEY = ("stream", "phase", "stage", "microbatch")


class Tally(NamedTuple):
    """Columns with a row for each kind of span of each rank; values are means per step of the run.

    doing_s: seconds of work or transfer. waiting_s: seconds of waiting for others. spans: number of spans. share: of each rank
    in means over training ranks, shape (ranks,), 0 for servers.
    """

    rank: Numbers
    stream: Numbers
    phase: Numbers
    stage: Numbers
    microbatch: Numbers
    doing_s: Seconds
    waiting_s: Seconds
    size_bytes: Seconds
    spans: Seconds
    share: Seconds

    def where(self, mask: NDArray[np.bool_]) -> Tally:
        """The rows that `mask` selects."""
        columns = {name: getattr(self, name)[mask] for name in self._fields if name != "share"}
        return self._replace(**columns)

    @property
    def main(self) -> NDArray[np.bool_]:
        """Mask of the rows on main streams."""
        result: NDArray[np.bool_] = self.stream == Stream.MAIN
        return result

    def by_rank(self, values: Seconds, mask: NDArray[np.bool_]) -> Seconds:
        """Sums of `values` over the rows that `mask` selects, shape (ranks,)."""
        return np.bincount(self.rank[mask], weights=values[mask], minlength=len(self.share)).astype(np.float64)


def tally(run: Run) -> Tally | None:
    """Totals of a run's spans; None if the run has no spans of a steady step, or its ranks are unknown.

    Seconds are scaled so that those on main streams add up to the part of the step time that the run's spans cover.
    """
    if run.spans is None or not run.rank_names:
        return None
    is_server, ranks = servers(run), multiplicity(run)
    spans = run.spans.where(run.spans.step >= 1)
    if not len(spans) or spans.rank.max() >= len(ranks) or is_server.all():
        return None
    share = np.where(is_server, 0.0, ranks) / ranks[~is_server].sum()
    keys = np.stack([spans.rank, *(getattr(spans, name) for name in KEY)]).astype(np.int64)
    (rank, stream, phase, stage, microbatch), kind = np.unique(keys, axis=1, return_inverse=True)
    kind = kind.ravel()

    def total(values: Seconds) -> Seconds:
        return np.bincount(kind, weights=values, minlength=len(rank)).astype(np.float64)

    doing_s, waiting_s = total(spans.end_s - spans.start_s), total(spans.start_s - spans.arrival_s)
    waits = np.isin(phase, (Phase.WAIT, Phase.INPUT))
    doing_s, waiting_s = np.where(waits, 0.0, doing_s), np.where(waits, doing_s + waiting_s, waiting_s)
    covered_s = float(((doing_s + waiting_s) * share[rank])[stream == Stream.MAIN].sum())
    scale = (run.step_time_s - run.breakdown_s.get("other", 0.0)) / covered_s if covered_s > 0 else 0.0
    per_step = _per_step(run, len(np.unique(spans.step)), scale)
    columns = doing_s * scale, waiting_s * scale, total(spans.size_bytes) * per_step, total(np.ones(len(spans))) * per_step
    return Tally(rank, stream, phase, stage, microbatch, *columns, share)


def in_step(run: Run) -> bool:
    """Whether all ranks take the same steps; otherwise each counts its own."""
    return run.spans is not None and len(np.unique(run.spans.step[run.spans.step >= 1])) <= len(run.step_times_s)


def _per_step(run: Run, numbers: int, scale: float) -> float:
    """Factor from counts over all spans to counts per step: 1 / number of steps. numbers: of distinct step numbers, each of
    which may stand for several steps."""
    if not in_step(run) or scale <= 0:
        return scale
    return 1 / (numbers * max(1, round(1 / (scale * numbers))))
