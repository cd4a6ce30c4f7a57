"""Links: how fast messages move between each two ranks, and whose are slow.

Spans do not say with whom; both sides of a message have one that starts, or ends, at the same instant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.run.run import Phase, Run, Spans, Stream

# so many times the seconds per byte of others is slow
_SLOW: Final = 1.35
# of the step time, what messages have to take for their rate to be told
_NOTICED: Final = 0.05
Ends = tuple[int, int]


class Link(NamedTuple):
    """Ranks between which, or one from and to which, a byte takes `ratio` times as long as between others."""

    ranks: tuple[int, ...]
    ratio: float


def slow_links(run: Run, training: NDArray[np.bool_]) -> list[Link]:
    """The slow ones among messages of the same kind, between training ranks, or to and from servers; the slowest first."""
    if run.spans is None:
        return []
    by_kind: dict[bool, dict[Ends, float]] = defaultdict(dict)
    for ends, seconds in seconds_per_byte(run.spans, _NOTICED * run.step_time_s).items():
        by_kind[bool(training[list(ends)].all())][ends] = seconds
    found = [link for pairs in by_kind.values() if (link := _slow(pairs)) is not None]
    return sorted(found, key=lambda link: -link.ratio)


def _slow(pairs: Mapping[Ends, float]) -> Link | None:
    """What is slow when the pairs are cut in two where the gap is the widest: one rank, which all slow pairs have in common and
    which has no other; or one pair. Slow pairs that have nothing in common are no link's fault."""
    ordered = sorted(pairs, key=lambda ends: pairs[ends])
    steps = [pairs[after] / pairs[before] for before, after in pairwise(ordered)]
    if not steps or max(steps) < _SLOW:
        return None
    cut = 1 + steps.index(max(steps))
    fast, slow = ordered[:cut], ordered[cut:]
    ratio = median(pairs[ends] for ends in slow) / median(pairs[ends] for ends in fast)
    # a rank with a pair that is as fast as others is not what is slow
    common = set.intersection(*map(set, slow)) - {rank for ends in fast for rank in ends}
    if len(common) == 1:
        return Link((common.pop(),), ratio)
    return Link(slow[0], ratio) if len(slow) == 1 else None


def seconds_per_byte(spans: Spans, least_s: float = 0.0) -> dict[Ends, float]:
    """Between each two ranks, the lower number first, the median of their messages that can be told from others.

    least_s: seconds of a step that a pair's messages take at least to be told.
    """
    sends, receives = (np.flatnonzero((spans.phase == phase) & (spans.step >= 1)) for phase in (Phase.SEND, Phase.RECEIVE))
    beside = spans.stream == Stream.COMMUNICATION
    if beside[sends].any() and beside[receives].any():
        # what holds ranks up tells of the same messages again
        sends, receives = sends[beside[sends]], receives[beside[receives]]
    steps = len(np.unique(spans.step[sends]))
    found: dict[Ends, list[tuple[float, float]]] = defaultdict(list)
    instants = (_same_instant(times_s, sends, receives) for times_s in (spans.start_s, spans.end_s))
    for send, receive in set(map(tuple, np.concatenate(list(instants)).tolist())):
        ends = sorted((int(spans.rank[send]), int(spans.rank[receive])))
        sizes = [float(size) for size in (spans.size_bytes[send], spans.size_bytes[receive]) if size > 0]
        seconds = float(max(spans.end_s[send], spans.end_s[receive]) - min(spans.start_s[send], spans.start_s[receive]))
        if ends[0] != ends[1] and sizes and seconds > 0:
            found[ends[0], ends[1]].append((seconds, min(sizes)))
    return {
        ends: median(seconds / size for seconds, size in messages)
        for ends, messages in found.items()
        if sum(seconds for seconds, _ in messages) >= least_s * steps
    }


def _same_instant(times_s: NDArray[np.float64], sends: NDArray[np.int64], receives: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of sends and of receives at the same instant, shape (pairs, 2). An instant of several is left out."""
    lone = []
    for rows in (sends, receives):
        _, first, count = np.unique(times_s[rows], return_index=True, return_counts=True)
        lone.append(rows[first[count == 1]])
    _, left, right = np.intersect1d(times_s[lone[0]], times_s[lone[1]], return_indices=True)
    return np.stack([lone[0][left], lone[1][right]], axis=1)
