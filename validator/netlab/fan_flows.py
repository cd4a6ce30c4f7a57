"""Fans: sets of flows that saturate one end of a link, so that the self-test measures its limit.

A message from one host to the next passes a limit at either end, and a missing limit at one end is hidden by the other. So each
host sends to several others that can receive more than it may send, and receives from several that can send more than it may
receive; likewise leaves.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from scaleproof.validator.netlab.wiring import WiringPlan

# Least ratio of the rate of the other ends to that of the tested end.
_MARGIN: Final = 1.4


class Flow(NamedTuple):
    """Bytes that one host sends to another, and the rate at which they should arrive."""

    source: int
    target: int
    expected_Bps: float


class Fan(NamedTuple):
    """Flows that are limited by one end of a link. No flows where the other ends cannot saturate it."""

    name: str
    expected_Bps: float
    flows: tuple[Flow, ...]


def fans(lab: WiringPlan) -> Iterator[Fan]:
    """The fans of every end of every link, except for uplinks that their hosts cannot saturate."""
    for host, cable in enumerate(lab.hosts):
        others = _saturating_hosts(lab, host)
        out = [Flow(host, other, lab.path_Bps(host, other)) for other in others]
        yield Fan(f"out of host {host}", cable.rate_Bps, tuple(out))
        yield Fan(f"into host {host}", cable.rate_Bps, tuple(map(_reverse, out)))
    for leaf, cable in enumerate(lab.uplinks):
        own = _hosts(lab, cable.bridge)
        if len(own) < len(lab.hosts) and _sum_Bps(lab, own) > cable.rate_Bps:
            out = list(_between(lab, own))
            yield Fan(f"out of leaf {leaf}", cable.rate_Bps, tuple(out))
            yield Fan(f"into leaf {leaf}", cable.rate_Bps, tuple(map(_reverse, out)))


def _reverse(flow: Flow) -> Flow:
    return Flow(flow.target, flow.source, flow.expected_Bps)


def _saturating_hosts(lab: WiringPlan, host: int) -> Sequence[int]:
    """The fewest other hosts, those of the same leaf first, whose links together saturate the host's own link."""
    own = lab.hosts[host]
    others = sorted(set(range(len(lab.hosts))) - {host}, key=lambda other: (lab.hosts[other].bridge != own.bridge, other))
    for count in range(1, len(others) + 1):
        if _elsewhere_Bps(lab, own.bridge, others[:count]) >= _MARGIN * own.rate_Bps:
            return others[:count]
    return ()


def _between(lab: WiringPlan, own: Sequence[int]) -> Sequence[Flow]:
    """Flows from the hosts of a leaf to the same number of hosts on other leaves, if both sides saturate the uplink."""
    (bridge,) = {lab.hosts[host].bridge for host in own}
    elsewhere = [_hosts(lab, other) for other in lab.leaves if other != bridge]
    others = [host for row in itertools.zip_longest(*elsewhere) for host in row if host is not None]
    pairs = list(zip(own, others, strict=False))
    up_Bps = _up_Bps(lab, bridge)
    taken_Bps = _far_Bps(lab, [target for _, target in pairs])
    if min(_sum_Bps(lab, [source for source, _ in pairs]), taken_Bps) < _MARGIN * up_Bps:
        return ()
    return [Flow(source, target, lab.path_Bps(source, target)) for source, target in pairs]


def _elsewhere_Bps(lab: WiringPlan, bridge: str, others: Sequence[int]) -> float:
    near = [other for other in others if lab.hosts[other].bridge == bridge]
    far = [other for other in others if lab.hosts[other].bridge != bridge]
    return _sum_Bps(lab, near) + (min(_up_Bps(lab, bridge), _far_Bps(lab, far)) if far else 0.0)


def _far_Bps(lab: WiringPlan, hosts: Sequence[int]) -> float:
    """Rate at which hosts on other leaves can receive through their leaves' uplinks."""
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
