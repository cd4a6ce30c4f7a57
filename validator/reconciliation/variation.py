"""Variation of a rank's compute from step to step, and the rank whose compute varies much more than that of others."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.run.run import COMPUTE_PHASES, Run, Stream

# standard deviation over mean from which on compute varies, and its ratio to that of peers
_VARIES: Final = 0.2
_MORE_THAN_PEERS: Final = 3.0
# smallest share of the step time that the variation costs
_NOTICED: Final = 0.05
_FEWEST_STEPS: Final = 4


class VaryingRank(NamedTuple):
    """variation: standard deviation over mean of its compute in a step; of_peers: median of others'. ratio: of its mean to its
    shortest step."""

    rank: int
    variation: float
    of_peers: float
    ratio: float


def varying_rank(run: Run, training: NDArray[np.bool_]) -> VaryingRank | None:
    """The training rank whose compute varies the most, if by much, and by much more than that of its peers."""
    compute_s = _by_step(run, training)
    if compute_s.shape[0] < 2 or compute_s.shape[1] < _FEWEST_STEPS or (compute_s.mean(axis=1) <= 0).any():
        return None
    mean_s = compute_s.mean(axis=1)
    variation = compute_s.std(axis=1) / mean_s
    most = int(variation.argmax())
    of_peers = float(np.median(np.delete(variation, most)))
    costs_s = mean_s[most] - compute_s[most].min()
    if variation[most] < max(_VARIES, _MORE_THAN_PEERS * of_peers) or costs_s < _NOTICED * run.step_time_s:
        return None
    rank = int(np.flatnonzero(training)[most])
    return VaryingRank(rank, float(variation[most]), of_peers, float(mean_s[most] / compute_s[most].min()))


def _by_step(run: Run, training: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Seconds of compute of each training rank in each measured step, shape (ranks, steps); empty without spans."""
    if run.spans is None or run.origin != "measured":
        return np.zeros((0, 0))
    spans = run.spans.where((run.spans.step >= 1) & (run.spans.stream == Stream.MAIN))
    own = spans.where(np.isin(spans.phase, COMPUTE_PHASES) & training[spans.rank])
    steps = int(spans.step.max(initial=0))
    rows = np.zeros((len(training), steps))
    np.add.at(rows, (own.rank, own.step - 1), own.end_s - own.start_s)
    return rows[training]
