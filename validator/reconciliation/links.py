"""Rate of messages from one rank to another, and the slow ones.

Spans do not name the peer of a message, but both ends of a message have a span that starts, or ends, at the same instant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.spans import Phase, Spans, Stream
from scaleproof.simulator.run.run import Run

# ratio of seconds per byte to those of others from which on a link is slow
_SLOW: Final = 1.35
# smallest share of the step time that a pair's messages take for their rate to count
_NOTICED: Final = 0.05
Ends = tuple[int, int]


class Link(NamedTuple):
    """A pair of ranks, or one rank for all its messages, whose bytes take `ratio` times as long as those of others. way: of the
    rank's messages, "from", "to", or "" for both."""

    ranks: tuple[int, ...]
    ratio: float
    way: str = ""


def slow_links(run: Run, training: NDArray[np.bool_]) -> list[Link]:
    """Slow links among messages of the same kind (between training ranks, or with servers), slowest first."""
    if run.spans is None:
        return []
    by_kind: dict[bool, dict[Ends, float]] = defaultdict(dict)
    for ends, seconds in seconds_per_byte(run.spans, _NOTICED * run.step_time_s).items():
        by_kind[bool(training[list(ends)].all())][ends] = seconds
    links = [link for pairs in by_kind.values() if (link := _slow(pairs)) is not None]
    return sorted(links, key=lambda link: -link.ratio)


def _slow(pairs: Mapping[Ends, float]) -> Link | None:
    """The slow link, if the ways between ranks are divided at the widest gap: a rank that is an end of all slow ways and of no
    fast one, or the source or the target of them, or a single slow pair. None if the slow ways have nothing in common."""
    ordered = sorted(pairs, key=lambda ends: pairs[ends])
    steps = [pairs[after] / pairs[before] for before, after in pairwise(ordered)]
    if not steps or max(steps) < _SLOW:
        return None
    cut = 1 + steps.index(max(steps))
    fast, slow = ordered[:cut], ordered[cut:]
    ratio = median(pairs[ends] for ends in slow) / median(pairs[ends] for ends in fast)
    causes: dict[str, int] = {}
    for way, of_ends in _WAYS.items():
        # a rank that is also an end of a fast way is not the cause
        common = set.intersection(*map(of_ends, slow)) - {rank for ends in fast for rank in of_ends(ends)}
        if len(common) == 1:
            causes[way] = common.pop()
    if "" in causes or len(causes) == 1:
        way = min(causes)
        return Link((causes[way],), ratio, way)
    between = {tuple(sorted(ends)) for ends in slow}
    return Link(between.pop(), ratio) if len(between) == 1 else None


_WAYS: Final[Mapping[str, Callable[[Ends], set[int]]]] = {
    "": set,
    "from": lambda ends: {ends[0]},
    "to": lambda ends: {ends[1]},
}


def seconds_per_byte(spans: Spans, least_s: float = 0.0) -> dict[Ends, float]:
    """Median seconds per byte from one rank to another, of messages whose two ends can be matched, by (source, target).

    least_s: seconds per step that the messages of a pair must take, in both directions together, to be included.
    """
    sends, receives = (np.flatnonzero((spans.phase == phase) & (spans.step >= 1)) for phase in (Phase.SEND, Phase.RECEIVE))
    is_communication = spans.stream == Stream.COMMUNICATION
    if is_communication[sends].any() and is_communication[receives].any():
        # the main stream repeats the same messages
        sends, receives = sends[is_communication[sends]], receives[is_communication[receives]]
    steps = len(np.unique(spans.step[sends]))
    messages_of: dict[Ends, list[tuple[float, float]]] = defaultdict(list)
    instants = (_same_instant(times_s, sends, receives) for times_s in (spans.start_s, spans.end_s))
    for send, receive in set(map(tuple, np.concatenate(list(instants)).tolist())):
        ends = int(spans.rank[send]), int(spans.rank[receive])
        sizes = [float(size) for size in (spans.size_bytes[send], spans.size_bytes[receive]) if size > 0]
        seconds = float(max(spans.end_s[send], spans.end_s[receive]) - min(spans.start_s[send], spans.start_s[receive]))
        if ends[0] != ends[1] and sizes and seconds > 0:
            messages_of[ends].append((seconds, min(sizes)))
    total_s = {ends: sum(seconds for seconds, _ in messages) for ends, messages in messages_of.items()}
    return {
        ends: median(seconds / size for seconds, size in messages)
        for ends, messages in messages_of.items()
        if total_s[ends] + total_s.get(ends[::-1], 0.0) >= least_s * steps
    }


def _same_instant(times_s: NDArray[np.float64], sends: NDArray[np.int64], receives: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of a send and a receive at the same instant, shape (pairs, 2). Instants with several of either are left out."""
    unique = []
    for rows in (sends, receives):
        _, first, count = np.unique(times_s[rows], return_index=True, return_counts=True)
        unique.append(rows[first[count == 1]])
    _, left, right = np.intersect1d(times_s[unique[0]], times_s[unique[1]], return_indices=True)
    return np.stack([unique[0][left], unique[1][right]], axis=1)
