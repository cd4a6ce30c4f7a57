"""Links: from the times of messages to what a cluster file says of the links inside nodes and of the network between them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.validator.calibration.cluster_file.section import Section, interval, rate_text, seconds_text, timed
from scaleproof.validator.calibration.fit.curve_fitting import groups
from scaleproof.validator.calibration.fit.curve_fitting.choice import ALPHA_BETA, MODELS, PIECEWISE
from scaleproof.validator.calibration.fit.message_lines import Line, line, told
from scaleproof.validator.probe.pairs import ACROSS, SAME_LEAF, SAME_NODE, SAME_SOCKET
from scaleproof.validator.probe.points import Point

_INSIDE: Final = (SAME_SOCKET, SAME_NODE)
_BETWEEN: Final = (SAME_LEAF, ACROSS)
# Two messages that pass one another take as long as one where the link is full duplex, twice as long where it is not.
_HALF_DUPLEX: Final = 1.6
# What a receiver loses for each further sender counts from here on: less is noise.
_INCAST: Final = 0.03


def inside(points: Sequence[Point]) -> Section:
    """`node.link`; nothing where no two ranks of a node were probed.

    Without an overhead: what keeps a host busy there is told by the cores.
    """
    found = _of(points, "send", _INSIDE)
    if not found:
        return Section()
    alike, odd = _without_odd(found, {}, "")
    fitted = line(alike, (ALPHA_BETA, PIECEWISE), "messages inside a node")
    return Section(_fields(fitted, bits=False), _intervals("node.link", fitted, bits=False), odd + told(fitted, "node.link"))


def between(points: Sequence[Point], nodes: Sequence[int], cluster: Cluster) -> Section:
    """`network`, as the cluster describes it but for what was measured; nothing where no two nodes were probed.

    Its latency and bandwidth are those of the nearest nodes. nodes: of each rank.
    """
    nearest = next((group for group in _BETWEEN if _of(points, "send", (group,))), None)
    if nearest is None or cluster.network is None:
        return Section()
    alike, odd = _without_odd(_of(points, "send", (nearest,)), dict(enumerate(nodes)), "host")
    fitted = line(alike, MODELS, "messages between nodes", _of(points, "stream", (nearest,)))
    fields = _fields(fitted, bits=True)
    if cluster.network.topology.has_own_links:
        fields["unlike"] = list(_unlike(points, nodes, fitted))
    fields |= _crowded(points, fitted)
    if nearest == SAME_LEAF and (hop_s := _hop_s(points, nodes, cluster)) is not None:
        fields["topology"] = {"hop_latency": seconds_text(hop_s)}
    return Section(fields, _intervals("network", fitted, bits=True), odd + told(fitted, "network"))


def _of(points: Sequence[Point], what: str, classes: Sequence[str]) -> list[Point]:
    return [point for point in timed(points, "message", what) if point.group in classes]


def _fields(found: Line, bits: bool) -> dict[str, Any]:
    fields = {"bandwidth": rate_text(found.bandwidth_Bps, bits), "latency": seconds_text(found.latency_s)}
    if found.overhead_s > 0:
        fields["overhead"] = seconds_text(found.overhead_s)
    return fields | {"cores_busy": round(found.cores_busy, 3)}


def _intervals(name: str, found: Line, bits: bool) -> dict[str, dict[str, Any]]:
    measurements = found.fitted.measurements
    rates = (rate_text(rate_Bps, bits) for rate_Bps in found.bandwidth_interval_Bps)
    intervals = {
        f"{name}.bandwidth": interval(rates, measurements),
        f"{name}.latency": interval(map(seconds_text, found.latency_interval_s), measurements),
    }
    if found.overhead_s > 0:
        ends = map(seconds_text, found.fitted.overhead_interval_s)
        intervals[f"{name}.overhead"] = interval(ends, measurements)
    return intervals


def _largest(points: Sequence[Point]) -> dict[tuple[int, ...], float]:
    """Median seconds of each pair's messages of the largest size that all of them have."""
    by_pair: defaultdict[tuple[int, ...], dict[float, float]] = defaultdict(dict)
    for point in points:
        by_pair[point.ranks][point.size] = point.median_s
    common = set.intersection(*(set(sizes) for sizes in by_pair.values()))
    return {pair: sizes[max(common)] for pair, sizes in by_pair.items()} if common else {}


def _without_odd(points: Sequence[Point], member: Mapping[int, int], noun: str) -> tuple[list[Point], list[str]]:
    """The points of pairs that are like the others, and a line for each member or pair that is not.

    member: what ranks are called by, themselves if empty.
    """
    seconds = {tuple(member.get(rank, rank) for rank in pair): value for pair, value in _largest(points).items()}
    odd = groups.compare(seconds, noun or "rank")
    slow = {one.members for one in odd}

    def is_alike(point: Point) -> bool:
        ends = tuple(member.get(rank, rank) for rank in point.ranks)
        return not any(set(members) <= set(ends) for members in slow)

    alike = [point for point in points if is_alike(point)]
    return alike or list(points), [str(one) for one in odd]


def _unlike(points: Sequence[Point], nodes: Sequence[int], found: Line) -> Iterator[dict[str, Any]]:
    """Nodes whose own link is slower than the others', each with its part of their bandwidth."""
    sends = _of(points, "send", _BETWEEN)
    seconds = {tuple(nodes[rank] for rank in pair): value for pair, value in _largest(sends).items()}
    for one in groups.compare(seconds, "host"):
        if len(one.members) == 1:
            yield {"at": list(one.members), "bandwidth": rate_text(found.bandwidth_Bps / one.ratio, bits=True)}


def _crowded(points: Sequence[Point], found: Line) -> dict[str, Any]:
    """What is less than it would be where each message had a link of its own: both ways at once, and many to one."""
    fields: dict[str, Any] = {}
    alone_s = found.fitted.at
    both = [point.median_s / alone_s(point.size) for point in _of(points, "exchange", _BETWEEN)]
    if both and statistics.median(both) > _HALF_DUPLEX:
        fields["duplex"] = "half"
    crowds = [point for point in timed(points, "message", "incast") if point.numbers["senders"] > 1]
    if crowds:
        largest = max(point.size for point in crowds)
        lost = [_incast(point, found) for point in crowds if point.size == largest]
        if (most := statistics.median(lost)) > _INCAST:
            fields["incast"] = round(most, 3)
    return fields


def _incast(point: Point, found: Line) -> float:
    """The share of its bandwidth that a receiver loses for each further sender, as `Link.incast` has it."""
    senders = point.numbers["senders"]
    # asked first, then sent
    moving_s = point.median_s - 2 * found.latency_s
    return (moving_s * found.bandwidth_Bps / (senders * point.size) - 1) / (senders - 1)


def _hop_s(points: Sequence[Point], nodes: Sequence[int], cluster: Cluster) -> float | None:
    """What a link beyond the shortest way adds to the latency of small messages."""
    assert cluster.network is not None
    near, far = (_of(points, "send", (group,)) for group in _BETWEEN)
    if not far:
        return None
    smallest = min(point.size for point in near)
    near_s = statistics.median(point.median_s for point in near if point.size == smallest)
    wiring = cluster.network.wiring(cluster.nodes)
    further = [
        (point.median_s - near_s) / hops
        for point in far
        if point.size == smallest and (hops := wiring.route(*(nodes[rank] for rank in point.ranks)).further_hops)
    ]
    return max(0.0, statistics.median(further)) if further else None
