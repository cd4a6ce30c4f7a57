"""Collectives: lines through the times of each operation and group, and how far off such lines are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import numpy as np

from scaleproof.simulator.cluster.collectives.algorithms import Op, bus_factor
from scaleproof.simulator.cluster.quantities import DEVIATIONS, format_share
from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.cluster_file.section import Section, count, interval, rate_text, seconds_text, timed
from scaleproof.validator.calibration.fit import curve_fitting
from scaleproof.validator.calibration.fit.curve_fitting.choice import ALPHA_BETA, PIECEWISE
from scaleproof.validator.calibration.fit.curve_fitting.lines import FASTEST_S
from scaleproof.validator.calibration.fit.curve_fitting.pieces import holding, pieces
from scaleproof.validator.calibration.fit.curve_fitting.shapes import Segment
from scaleproof.validator.calibration.fit.message_lines import line
from scaleproof.validator.probe.points import Point

# The largest size moves for so large a share of its latency at least, else its rate is noise.
_SHARE: Final = 0.5
# What is measured again is never nearer.
_LEAST: Final = 0.01
_LARGE_BYTES: Final = 2**16
_ENOUGH: Final = 3
# Of what the smallest buffer takes, the latency is at least so much.
_PART: Final = 0.25
# Of a line.
_COEFFICIENTS: Final = 2


def measured(points: Sequence[Point], link_Bps: float = math.inf) -> Section:
    """`collectives`: the entries of each operation and group; those that cannot be fitted are told of.

    link_Bps: what a node's only link carries, which no larger buffer is faster than, however fast the first bytes get through.
    """
    by_group: defaultdict[tuple[Op, int, int], list[Point]] = defaultdict(list)
    for point in timed(points, "collective"):
        by_group[cast(Op, point.what), len(point.ranks), round(point.numbers["nodes"])].append(point)
    entries, notes, errors, spent_s = [], [], [], []
    for (op, ranks, nodes), every in by_group.items():
        name = f"{op} over {ranks} ranks" + (f" on {nodes} nodes" if nodes > 1 else "")
        try:
            least_s = bus_factor(op, ranks) / link_Bps if ranks == nodes else 0.0
            found, used, cores_busy = _lines(every, name, least_s)
        except InputError as error:
            notes.append(f"left out: {error}")
            continue
        if max(point.size for point in used) * found[-1].seconds_per_byte < _SHARE * found[-1].latency_s:
            notes.append(f"left out: {name}: what a byte takes cannot be told from the latency; give a larger --budget")
            continue
        entries += [_entry(op, ranks, nodes, piece, cores_busy) for piece in _floored(found, every)]
        errors.append(_error(found, used))
        spent_s.append(sum(sum(point.seconds) for point in every))
    if not entries:
        return Section(told=notes)
    reach = DEVIATIONS * max(_LEAST, _ordinary(errors, spent_s))
    ends = (format_share(math.exp(side * reach)) for side in (-1, 1))
    return Section({"measured": entries}, {"collectives": interval(ends, count(timed(points, "collective")))}, notes)


def _lines(every: Sequence[Point], name: str, least_s: float) -> tuple[Sequence[Segment], Sequence[Point], float]:
    """What a group takes, in pieces where protocols show, the points that tell how well, and busy cores.

    One line counts each relative error for as long as that size takes: steps are off by seconds. least_s: that a byte of large
    ones takes. Raises InputError for too few sizes.
    """
    whole = line(every, (ALPHA_BETA, PIECEWISE), name)
    if whole.fitted.model == PIECEWISE:
        return pieces(whole.fitted, [point.size for point in every], least_s), _large(every), whole.cores_busy
    used, medians_s = _large(every), [point.median_s for point in _large(every)]
    found = Segment(0.0, *curve_fitting.line([point.size for point in used], medians_s, medians_s, least_s))
    return [found], used, whole.cores_busy


def _large(points: Sequence[Point]) -> Sequence[Point]:
    """Those of sizes that steps spend their time on, where there are enough: one line does not fit small ones as well."""
    large = [point for point in points if point.size >= _LARGE_BYTES]
    return large if len({point.size for point in large}) >= _ENOUGH else points


def _floored(found: Sequence[Segment], every: Sequence[Point]) -> Iterator[Segment]:
    """The pieces, the first with some latency: links that let the first bytes through faster make large buffers look as if
    they had none."""
    least_s = _PART * min(every, key=lambda point: point.size).median_s
    yield found[0]._replace(latency_s=max(least_s, found[0].latency_s))
    yield from found[1:]


def _error(found: Sequence[Segment], used: Sequence[Point]) -> float:
    """Standard deviation of the relative error at the largest size.

    What squared errors count in the fit says how they fall with the size: the longer one takes, the less part of it is noise.
    """
    held = [holding(found, point.size) for point in used]
    squares_s = sum(
        point.median_s * math.log(point.median_s / (piece.latency_s + point.size * piece.seconds_per_byte)) ** 2
        for point, piece in zip(used, held, strict=True)
    )
    free = max(1, len(used) - _COEFFICIENTS * len(set(held)))
    return math.sqrt(squares_s / free / max(point.median_s for point in used))


def _ordinary(errors: Sequence[float], spent_s: Sequence[float]) -> float:
    """The median of the groups' errors, each for the time that was given to it: half is given to what training mostly sends."""
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
