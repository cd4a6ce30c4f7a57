"""Tally: what the spans of a run come to, for each rank and kind of span, in seconds per step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.run.run import Phase, Run, Stream
from scaleproof.validator.reconciliation.members import multiplicity, servers

Numbers = NDArray[np.int64]
Seconds = NDArray[np.float64]
# what a kind of span is told by, beside its rank
KEY = ("stream", "phase", "stage", "microbatch")


class Tally(NamedTuple):
    """Columns, a row for each kind of span that a rank has: means per step of the run.

    doing_s: in which work is done or bytes move; waiting_s: in which others are waited for. spans: how many there are.
    share: of each rank in the means over training ranks, none of servers.
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
        """Rows of what holds ranks up."""
        result: NDArray[np.bool_] = self.stream == Stream.MAIN
        return result

    def by_rank(self, values: Seconds, mask: NDArray[np.bool_]) -> Seconds:
        """Sums of `values` over the rows that `mask` selects, for each rank."""
        return np.bincount(self.rank[mask], weights=values[mask], minlength=len(self.share)).astype(np.float64)


def tally(run: Run) -> Tally | None:
    """None where the run has no spans of a steady step, or its ranks are not known.

    Seconds are scaled so that those on main streams add up to what of the step time the run's spans tell.
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
    told_s = float(((doing_s + waiting_s) * share[rank])[stream == Stream.MAIN].sum())
    scale = (run.step_time_s - run.breakdown_s.get("other", 0.0)) / told_s if told_s > 0 else 0.0
    each = _per_step(run, len(np.unique(spans.step)), scale)
    columns = doing_s * scale, waiting_s * scale, total(spans.size_bytes) * each, total(np.ones(len(spans))) * each
    return Tally(rank, stream, phase, stage, microbatch, *columns, share)


def in_step(run: Run) -> bool:
    """Whether all ranks take the same steps; else each counts its own."""
    return run.spans is not None and len(np.unique(run.spans.step[run.spans.step >= 1])) <= len(run.step_times_s)


def _per_step(run: Run, told: int, scale: float) -> float:
    """What a count over all spans is to be multiplied with: 1 / the steps they are of. told: numbers of steps they have; a
    number may be of several steps."""
    if not in_step(run) or scale <= 0:
        return scale
    return 1 / (told * max(1, round(1 / (scale * told))))
