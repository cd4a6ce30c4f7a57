"""Fit of collectives: lines through the times of each operation and group, and their uncertainty."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, cast, get_args

import numpy as np

from scaleproof.simulator.cluster.collectives.groups import Op, bus_factor
from scaleproof.simulator.cluster.quantities import DEVIATIONS
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_percent
from scaleproof.validator.calibration.cluster_file.section import Section, interval, rate_text, seconds_text
from scaleproof.validator.calibration.fit.choice import ALPHA_BETA, PIECEWISE
from scaleproof.validator.calibration.fit.curves import piece_at, pieces
from scaleproof.validator.calibration.fit.message_lines import line
from scaleproof.validator.calibration.fit.shapes import Segment
from scaleproof.validator.estimation.lines import FASTEST_S, straight_line
from scaleproof.validator.probe.points import Point, count, timed

# Share of its latency that the largest size's transfer takes at least; with less its rate is noise.
_SHARE: Final = 0.5
# Smallest relative error: a repeated measurement is never closer.
_LEAST: Final = 0.01
_LARGE_BYTES: Final = 2**16
_ENOUGH: Final = 3
# Smallest latency as a share of the smallest buffer's time.
_PART: Final = 0.25
# Coefficients of a line.
_COEFFICIENTS: Final = 2


def measured(points: Sequence[Point], link_Bps: float = math.inf) -> Section:
    """Section `collectives`: entries of each operation and group, with notes about those that cannot be fitted.

    link_Bps: bandwidth in bytes/s of a node's only link. It bounds the fitted rate of large buffers, which a burst of fast
    first bytes would otherwise exaggerate.
    """
    by_group: defaultdict[tuple[Op, int, int], list[Point]] = defaultdict(list)
    for point in operations(points):
        by_group[cast(Op, point.what), len(point.ranks), round(point.numbers["nodes"])].append(point)
    entries, notes, errors, spent_s = [], [], [], []
    for (op, ranks, nodes), every in by_group.items():
        name = f"{op} over {ranks} ranks" + (f" on {nodes} nodes" if nodes > 1 else "")
        try:
            least_s = bus_factor(op, ranks) / link_Bps if ranks == nodes else 0.0
            segments, used, cores_busy = _lines(every, name, least_s)
        except InputError as error:
            notes.append(f"left out: {error}")
            continue
        if max(point.size for point in used) * segments[-1].seconds_per_byte < _SHARE * segments[-1].latency_s:
            notes.append(f"left out: {name}: its bandwidth is lost in the latency; give a larger --budget")
            continue
        entries += [_entry(op, ranks, nodes, piece, cores_busy) for piece in _floored(segments, every)]
        errors.append(_error(segments, used))
        spent_s.append(sum(sum(point.seconds) for point in every))
    if not entries:
        return Section(notes=notes)
    reach = DEVIATIONS * max(_LEAST, _typical(errors, spent_s))
    ends = (format_percent(math.exp(side * reach)) for side in (-1, 1))
    return Section({"measured": entries}, {"collectives": interval(ends, count(operations(points)))}, notes)


def operations(points: Iterable[Point]) -> list[Point]:
    """Points of collectives that predictions know, which are those with equal parts."""
    return [point for point in timed(points, "collective") if point.what in get_args(Op)]


def _lines(every: Sequence[Point], name: str, least_s: float) -> tuple[Sequence[Segment], Sequence[Point], float]:
    """Segments of a group's times (several where protocols change), the points used to judge them, and busy cores.

    A single line weights each squared relative error by the time at that size, because errors in seconds add up to those of a
    step. least_s: smallest seconds per byte of large buffers. Raises InputError for too few sizes.
    """
    whole = line(every, (ALPHA_BETA, PIECEWISE), name)
    if whole.fitted.model == PIECEWISE:
        return pieces(whole.fitted, [point.size for point in every], least_s), _large(every), whole.cores_busy
    used, medians_s = _large(every), [point.median_s for point in _large(every)]
    segment = Segment(0.0, *straight_line([point.size for point in used], medians_s, medians_s, least_s))
    return [segment], used, whole.cores_busy


def _large(points: Sequence[Point]) -> Sequence[Point]:
    """Points of the sizes on which steps spend their time, if there are enough: one line does not fit small sizes as well."""
    large = [point for point in points if point.size >= _LARGE_BYTES]
    return large if len({point.size for point in large}) >= _ENOUGH else points


def _floored(segments: Sequence[Segment], every: Sequence[Point]) -> Iterator[Segment]:
    """The segments, the first with some latency: on links that pass the first bytes faster, large buffers would suggest
    no latency."""
    least_s = _PART * min(every, key=lambda point: point.size).median_s
    yield segments[0]._replace(latency_s=max(least_s, segments[0].latency_s))
    yield from segments[1:]


def _error(segments: Sequence[Segment], used: Sequence[Point]) -> float:
    """Standard deviation of the relative error at the largest size.

    The fit weights squared errors by time, which implies that relative errors fall with the size.
    """
    applied = [piece_at(segments, point.size) for point in used]
    squares_s = sum(
        point.median_s * math.log(point.median_s / (piece.latency_s + point.size * piece.seconds_per_byte)) ** 2
        for point, piece in zip(used, applied, strict=True)
    )
    free = max(1, len(used) - _COEFFICIENTS * len(set(applied)))
    return math.sqrt(squares_s / free / max(point.median_s for point in used))


def _typical(errors: Sequence[float], spent_s: Sequence[float]) -> float:
    """Median of the groups' errors, weighted by the seconds measured for each group; half of these are for what training mostly
    sends."""
    order = np.argsort(errors)
    passed = np.cumsum(np.asarray(spent_s)[order])
    return float(np.asarray(errors)[order][np.searchsorted(passed, passed[-1] / 2)])


def _entry(op: str, ranks: int, nodes: int, piece: Segment, cores_busy: float) -> dict[str, Any]:
    return {
        "op": op,
        "ranks": ranks,
        **({"nodes": nodes} if nodes > 1 else {}),
        **({"from": f"{piece.from_bytes:.0f} B"} if piece.from_bytes else {}),
        "bandwidth": rate_text(1 / max(piece.seconds_per_byte, FASTEST_S), bits=False),
        "latency": seconds_text(piece.latency_s),
        "cores_busy": round(cores_busy, 3),
    }
