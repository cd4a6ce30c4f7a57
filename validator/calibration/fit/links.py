"""Fit of the links inside nodes and of the network between nodes to message times."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.validator.calibration.cluster_file.section import Section, interval, rate_text, seconds_text
from scaleproof.validator.calibration.fit.choice import ALPHA_BETA, MODELS, PIECEWISE
from scaleproof.validator.calibration.fit.message_lines import Line, fit_notes, line
from scaleproof.validator.estimation import groups
from scaleproof.validator.probe.pairs import ACROSS, SAME_LEAF, SAME_NODE, SAME_SOCKET
from scaleproof.validator.probe.points import Point, timed

_INSIDE: Final = (SAME_SOCKET, SAME_NODE)
_BETWEEN: Final = (SAME_LEAF, ACROSS)
# Ratio of exchange time to one-way time from which on a link counts as half duplex: 1 if it is full duplex, 2 if half.
_HALF_DUPLEX: Final = 1.6
# Share of its bandwidth that a receiver loses per further sender, or gains with several; smaller values are noise.
_INCAST: Final = 0.03


def inside(points: Sequence[Point]) -> Section:
    """Section `node.link`; empty if no two ranks of a node were probed.

    It has no overhead: the time for which a message occupies the host is given by the busy cores.
    """
    sends = _sends(points, "send", _INSIDE)
    if not sends:
        return Section()
    regular, notes = _without_slow(sends, {}, "")
    fit = line(regular, (ALPHA_BETA, PIECEWISE), "messages inside a node")
    fields = _fields(fit, bits=False) | _duplex(points, fit, _INSIDE)
    return Section(fields, _intervals("node.link", fit, bits=False), notes + fit_notes(fit, "node.link"))


def between(points: Sequence[Point], nodes: Sequence[int], cluster: Cluster) -> Section:
    """Section `network`: the measured fields, with those of the nearest nodes; empty if no two nodes were probed.

    nodes: of each rank.
    """
    nearest = next((group for group in _BETWEEN if _sends(points, "send", (group,))), None)
    if nearest is None or cluster.network is None:
        return Section()
    regular, notes = _without_slow(_sends(points, "send", (nearest,)), dict(enumerate(nodes)), "host")
    fit = line(regular, MODELS, "messages between nodes", _sends(points, "stream", (nearest,)))
    fit = _filled(fit, points)
    fields = _fields(fit, bits=True)
    if cluster.network.topology.has_own_links:
        fields["exceptions"] = list(_slow_nodes(points, nodes, fit))
    fields |= _contention(points, fit)
    if nearest == SAME_LEAF and (hop_s := _hop_s(points, nodes, cluster)) is not None:
        fields["topology"] = {"hop_latency": seconds_text(hop_s)}
    return Section(fields, _intervals("network", fit, bits=True), notes + fit_notes(fit, "network"))


def _sends(points: Sequence[Point], what: str, classes: Sequence[str]) -> list[Point]:
    return [point for point in timed(points, "message", what) if point.group in classes]


def _fields(fit: Line, bits: bool) -> dict[str, Any]:
    fields = {"bandwidth": rate_text(fit.bandwidth_Bps, bits), "latency": seconds_text(fit.latency_s)}
    if fit.overhead_s > 0:
        fields["overhead"] = seconds_text(fit.overhead_s)
    return fields | {"cores_busy": round(fit.cores_busy, 3)}


def _intervals(name: str, fit: Line, bits: bool) -> dict[str, dict[str, Any]]:
    measurements = fit.fitted.measurements
    rates = (rate_text(rate_Bps, bits) for rate_Bps in fit.bandwidth_interval_Bps)
    intervals = {
        f"{name}.bandwidth": interval(rates, measurements),
        f"{name}.latency": interval(map(seconds_text, fit.latency_interval_s), measurements),
    }
    if fit.overhead_s > 0:
        ends = map(seconds_text, fit.fitted.overhead_interval_s)
        intervals[f"{name}.overhead"] = interval(ends, measurements)
    return intervals


def _largest(points: Sequence[Point]) -> dict[tuple[int, ...], float]:
    """Median seconds of each pair's messages of the largest size that all pairs have."""
    by_pair: defaultdict[tuple[int, ...], dict[float, float]] = defaultdict(dict)
    for point in points:
        by_pair[point.ranks][point.size] = point.median_s
    common = set.intersection(*(set(sizes) for sizes in by_pair.values()))
    return {pair: sizes[max(common)] for pair, sizes in by_pair.items()} if common else {}


def _without_slow(points: Sequence[Point], member: Mapping[int, int], noun: str) -> tuple[list[Point], list[str]]:
    """Points of the pairs that are not slower than the others, and a note for each slow member or pair.

    member: host of each rank; the rank itself if empty.
    """
    seconds = {tuple(member.get(rank, rank) for rank in pair): value for pair, value in _largest(points).items()}
    outliers = groups.slow_members(seconds, noun or "rank")
    slow = {outlier.members for outlier in outliers}

    def is_regular(point: Point) -> bool:
        ends = tuple(member.get(rank, rank) for rank in point.ranks)
        return not any(set(members) <= set(ends) for members in slow)

    regular = [point for point in points if is_regular(point)]
    return regular or list(points), [str(outlier) for outlier in outliers]


def _slow_nodes(points: Sequence[Point], nodes: Sequence[int], fit: Line) -> Iterator[dict[str, Any]]:
    """Entries of the nodes whose own link is slower than the others', with their bandwidth."""
    sends = _sends(points, "send", _BETWEEN)
    seconds = {tuple(nodes[rank] for rank in pair): value for pair, value in _largest(sends).items()}
    for outlier in groups.slow_members(seconds, "host"):
        if len(outlier.members) == 1:
            yield {"at": list(outlier.members), "bandwidth": rate_text(fit.bandwidth_Bps / outlier.ratio, bits=True)}


def _filled(fit: Line, points: Sequence[Point]) -> Line:
    """The fit with the rate at which several senders fill the link of a receiver, where one sender does not fill it."""
    rates_Bps = [_incast_Bps(point, fit) for point in _largest_incasts(points)]
    if not rates_Bps or (rate_Bps := statistics.median(rates_Bps)) <= (1 + _INCAST) * fit.bandwidth_Bps:
        return fit
    low_Bps, high_Bps = fit.bandwidth_interval_Bps
    return replace(fit, bandwidth_Bps=rate_Bps, bandwidth_interval_Bps=(low_Bps, high_Bps * rate_Bps / fit.bandwidth_Bps))


def _contention(points: Sequence[Point], fit: Line) -> dict[str, Any]:
    """Fields for what concurrent messages lose on a shared link: a half-duplex link, and incast."""
    fields = _duplex(points, fit, _BETWEEN)
    incasts = _largest_incasts(points)
    if incasts and (lost := statistics.median(_incast(point, fit) for point in incasts)) > _INCAST:
        fields["incast"] = round(lost, 3)
    return fields


def _duplex(points: Sequence[Point], fit: Line, classes: Sequence[str]) -> dict[str, Any]:
    """The field of a half-duplex link; empty for links on which messages in both directions take about as long as in one.

    The largest messages decide: the latency of two small ones need not be that of one.
    """
    exchanges = list(_sends(points, "exchange", classes))
    largest = max((point.size for point in exchanges), default=0.0)
    both = [point.median_s / fit.fitted.at(point.size) for point in exchanges if point.size == largest]
    return {"duplex": "half"} if both and statistics.median(both) > _HALF_DUPLEX else {}


def _largest_incasts(points: Sequence[Point]) -> list[Point]:
    """Points of messages of the largest size from several ranks to one."""
    incasts = [point for point in timed(points, "message", "incast") if point.numbers["senders"] > 1]
    largest = max((point.size for point in incasts), default=0.0)
    return [point for point in incasts if point.size == largest]


def _incast(point: Point, fit: Line) -> float:
    """Share of its bandwidth that a receiver loses for each further sender, see `Link.incast`."""
    return (fit.bandwidth_Bps / _incast_Bps(point, fit) - 1) / (point.numbers["senders"] - 1)


def _incast_Bps(point: Point, fit: Line) -> float:
    """Bytes per second that arrive from all senders together, one latency after the request and one after the message."""
    moving_s = max(point.median_s - 2 * fit.latency_s, point.median_s / 2)
    return point.numbers["senders"] * point.size / moving_s


def _hop_s(points: Sequence[Point], nodes: Sequence[int], cluster: Cluster) -> float | None:
    """Seconds that a link beyond the shortest route adds to the latency of small messages; None if no such link was probed."""
    assert cluster.network is not None
    near, far = (_sends(points, "send", (group,)) for group in _BETWEEN)
    if not far:
        return None
    smallest = min(point.size for point in near)
    near_s = statistics.median(point.median_s for point in near if point.size == smallest)
    wiring = cluster.network.wiring(cluster.nodes)
    further = [
        (point.median_s - near_s) / hops
        for point in far
        if point.size == smallest and (hops := wiring.route(*(nodes[rank] for rank in point.ranks)).extra_hops)
    ]
    return max(0.0, statistics.median(further)) if further else None
