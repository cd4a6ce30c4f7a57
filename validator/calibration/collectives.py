"""Collectives: a line through the times of each operation and group, and how far off such lines are."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from simulator.cluster.quantities import DEVIATIONS
from simulator.errors import InputError
from validator.calibration.lines import line
from validator.calibration.section import Section, count, interval, rate_text, seconds_text, share_text, timed
from validator.fit.choice import ALPHA_BETA
from validator.probe.points import Point

# The largest size moves for so large a share of its latency at least, else its rate is noise.
_SHARE: Final = 0.5
# What is measured again is never nearer.
_LEAST: Final = 0.01
_LARGE_BYTES: Final = 2**16
_ENOUGH: Final = 3
# Of what the smallest buffer takes, the latency is at least so much.
_PART: Final = 0.25


def measured(points: Sequence[Point]) -> Section:
    """`collectives`: one entry per operation and group; those that cannot be fitted are told of."""
    by_group: defaultdict[tuple[str, int, int], list[Point]] = defaultdict(list)
    for point in timed(points, "collective"):
        by_group[point.what, len(point.ranks), round(point.numbers["nodes"])].append(point)
    entries, notes, scatters = [], [], []
    for (op, ranks, nodes), every in by_group.items():
        name = f"{op} over {ranks} ranks" + (f" on {nodes} nodes" if nodes > 1 else "")
        mine = _large(every)
        try:
            found = line(mine, (ALPHA_BETA,), name)
        except InputError as error:
            notes.append(f"left out: {error}")
            continue
        if max(point.size for point in mine) / found.bandwidth_Bps < _SHARE * found.latency_s:
            notes.append(f"left out: {name}: what a byte takes cannot be told from the latency; give a larger --budget")
            continue
        # links that let the first bytes through faster make large buffers look as if they had no latency
        least_s = _PART * min(every, key=lambda point: point.size).median_s
        entries.append(_entry(op, ranks, nodes, max(least_s, found.latency_s), found.bandwidth_Bps, found.cores_busy))
        scatters.append(found.fitted.scatter)
    if not entries:
        return Section(told=notes)
    reach = DEVIATIONS * max(_LEAST, statistics.median(scatters))
    ends = (share_text(math.exp(side * reach)) for side in (-1, 1))
    return Section({"measured": entries}, {"collectives": interval(ends, count(timed(points, "collective")))}, notes)


def _large(points: Sequence[Point]) -> Sequence[Point]:
    """Those of sizes that steps spend their time on, where there are enough: one line does not fit small ones as well."""
    large = [point for point in points if point.size >= _LARGE_BYTES]
    return large if len({point.size for point in large}) >= _ENOUGH else points


def _entry(op: str, ranks: int, nodes: int, latency_s: float, bandwidth_Bps: float, cores_busy: float) -> dict[str, Any]:
    return {
        "op": op,
        "ranks": ranks,
        **({"nodes": nodes} if nodes > 1 else {}),
        "bandwidth": rate_text(bandwidth_Bps, bits=False),
        "latency": seconds_text(latency_s),
        "cores_busy": round(cores_busy, 3),
    }
