"""Compute of ranks in single steps: how long it lasts without disturbance, and the rank whose compute varies much more than
that of others."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.spans import COMPUTE_PHASES, Phase, Stream
from scaleproof.simulator.run.run import Run

# standard deviation over mean from which on compute varies, and its ratio to that of peers
_VARIES: Final = 0.2
_MORE_THAN_PEERS: Final = 3.0
# smallest share of the step time that the variation costs
_NOTICED: Final = 0.05
_FEWEST_STEPS: Final = 4
# share of a rank's steps that last no longer than one without disturbance
_UNDISTURBED: Final = 0.25


class VaryingRank(NamedTuple):
    """variation: standard deviation over mean of its compute in a step; of_peers: median of others'. ratio: of its mean to its
    shortest step."""

    rank: int
    variation: float
    of_peers: float
    ratio: float


def varying_rank(run: Run, training: NDArray[np.bool_]) -> VaryingRank | None:
    """The training rank whose compute varies the most, if by much, and by much more than that of its peers."""
    compute_s, _ = _by_step(run, training, COMPUTE_PHASES)
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


def undisturbed_share(run: Run, ranks: NDArray[np.bool_], phases: tuple[Phase, ...]) -> NDArray[np.float64]:
    """Duration of a span of these phases in a rank's undisturbed steps over its mean duration, shape (ranks,); 1 for others.

    A slow device lengthens every step, other work that takes a core for a while only some. So the lower quartile of steps shows
    how fast a device is, and of few steps the fastest one.
    """
    duration_s, spans = _by_step(run, ranks, phases)
    result = np.ones(len(ranks))
    for rank, own_s, count in zip(np.flatnonzero(ranks), duration_s, spans, strict=False):
        if (steps := count > 0).any() and (mean_s := own_s.sum() / count.sum()) > 0:
            result[rank] = np.quantile(own_s[steps] / count[steps], _UNDISTURBED, method="lower") / mean_s
    return result


def _by_step(run: Run, ranks: NDArray[np.bool_], phases: tuple[Phase, ...]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Seconds of these phases of each of the ranks in each measured step, and the number of spans, each (ranks, steps); empty
    without spans."""
    if run.spans is None or run.origin != "measured":
        return np.zeros((0, 0)), np.zeros((0, 0), dtype=np.int64)
    spans = run.spans.where((run.spans.step >= 1) & (run.spans.stream == Stream.MAIN))
    own = spans.where(np.isin(spans.phase, phases) & ranks[spans.rank])
    cells, shape = (own.rank, own.step - 1), (len(ranks), int(spans.step.max(initial=0)))
    duration_s, count = np.zeros(shape), np.zeros(shape, dtype=np.int64)
    np.add.at(duration_s, cells, own.end_s - own.start_s)
    np.add.at(count, cells, 1)
    return duration_s[ranks], count[ranks]
