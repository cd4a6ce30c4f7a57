"""Fans: what fills one end of a link by itself, so that the self-test sees its limit.

From one host to the next a message passes a limit at either end, and where one is missing the other hides it. So each host
sends to others that can take more than it may send, and gets from others that can send more than it may get; likewise leaves.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from scaleproof.validator.netlab.wiring import WiringPlan

# By how much the other ends have to carry more than the one that is tried for it to be seen.
_MORE: Final = 1.4


class Flow(NamedTuple):
    """What one host sends to another, and at which rate it is asked to arrive."""

    source: int
    target: int
    asked_Bps: float


class Fan(NamedTuple):
    """Flows that one end limits, if they pass it at its rate and not faster. They are none where others cannot fill it."""

    name: str
    asked_Bps: float
    flows: tuple[Flow, ...]


def fans(lab: WiringPlan) -> Iterator[Fan]:
    """Of every end of every link, but of uplinks that their hosts cannot fill."""
    for host, cable in enumerate(lab.hosts):
        others = _enough(lab, host)
        out = [Flow(host, other, lab.way_Bps(host, other)) for other in others]
        yield Fan(f"out of host {host}", cable.rate_Bps, tuple(out))
        yield Fan(f"into host {host}", cable.rate_Bps, tuple(map(_back, out)))
    for leaf, cable in enumerate(lab.uplinks):
        own = _hosts(lab, cable.bridge)
        if len(own) < len(lab.hosts) and _sum_Bps(lab, own) > cable.rate_Bps:
            out = list(_between(lab, own))
            yield Fan(f"out of leaf {leaf}", cable.rate_Bps, tuple(out))
            yield Fan(f"into leaf {leaf}", cable.rate_Bps, tuple(map(_back, out)))


def _back(flow: Flow) -> Flow:
    return Flow(flow.target, flow.source, flow.asked_Bps)


def _enough(lab: WiringPlan, host: int) -> Sequence[int]:
    """The fewest others, those of its leaf first, to which the ways carry enough but for the host's own link."""
    own = lab.hosts[host]
    others = sorted(set(range(len(lab.hosts))) - {host}, key=lambda other: (lab.hosts[other].bridge != own.bridge, other))
    for count in range(1, len(others) + 1):
        if _elsewhere_Bps(lab, own.bridge, others[:count]) >= _MORE * own.rate_Bps:
            return others[:count]
    return ()


def _between(lab: WiringPlan, own: Sequence[int]) -> Sequence[Flow]:
    """From hosts of a leaf to as many of the others, leaf after leaf, if both sides carry enough."""
    (bridge,) = {lab.hosts[host].bridge for host in own}
    apart = [_hosts(lab, other) for other in lab.leaves if other != bridge]
    others = [host for row in itertools.zip_longest(*apart) for host in row if host is not None]
    pairs = list(zip(own, others, strict=False))
    up_Bps = _up_Bps(lab, bridge)
    taken_Bps = _far_Bps(lab, [target for _, target in pairs])
    if min(_sum_Bps(lab, [source for source, _ in pairs]), taken_Bps) < _MORE * up_Bps:
        return ()
    return [Flow(source, target, lab.way_Bps(source, target)) for source, target in pairs]


def _elsewhere_Bps(lab: WiringPlan, bridge: str, others: Sequence[int]) -> float:
    near = [other for other in others if lab.hosts[other].bridge == bridge]
    far = [other for other in others if lab.hosts[other].bridge != bridge]
    return _sum_Bps(lab, near) + (min(_up_Bps(lab, bridge), _far_Bps(lab, far)) if far else 0.0)


def _far_Bps(lab: WiringPlan, hosts: Sequence[int]) -> float:
    """What the uplinks of those hosts' leaves carry of theirs."""
    bridges = {lab.hosts[host].bridge for host in hosts}
    return sum(
        min(_up_Bps(lab, bridge), _sum_Bps(lab, [host for host in hosts if lab.hosts[host].bridge == bridge]))
        for bridge in bridges
    )


def _hosts(lab: WiringPlan, bridge: str) -> Sequence[int]:
    return [host for host, cable in enumerate(lab.hosts) if cable.bridge == bridge]


def _sum_Bps(lab: WiringPlan, hosts: Sequence[int]) -> float:
    return sum(lab.hosts[host].rate_Bps for host in hosts)


def _up_Bps(lab: WiringPlan, bridge: str) -> float:
    return next(cable.rate_Bps for cable in lab.uplinks if cable.bridge == bridge)
