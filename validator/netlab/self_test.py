"""The lab's self-test: what its links carry, each alone and all at once, before anything measured on them is believed.

Rates are of payload, as received over TCP: from one host to the next, then through each end of a link by itself.
All ends are sockets of this process, each made in its host's namespace.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import socket
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.common.units import format_Bps, format_bytes, format_time_s
from scaleproof.validator.netlab.fan_flows import Flow, fans
from scaleproof.validator.netlab.namespaces import inside
from scaleproof.validator.netlab.wiring import WiringPlan, bucket_bytes
from scaleproof.validator.record.cpu_usage import Processors

_CORES: Final = os.cpu_count() or 1
_ALONE_S: Final = 3.0  # for all links, one after the other
_ENDS_S: Final = 1.5  # for all their ends
_LEAST_S, _MOST_S = 0.03, 0.1  # for one of them
_TOGETHER_S: Final = 0.3
# A link whose rate is further off than this is tried again, then warned of.
_TOLERANCE: Final = 0.1
_ATTEMPTS: Final = 3
_RETRY_S: Final = 8.0  # no more attempts after this time
# Above this share of all cores' time, the cores are what limits.
_SATURATED: Final = 0.8
_ROUND_TRIPS: Final = 200
_ROUND_TRIPS_S: Final = 1.0  # fewer of them where they take longer
# TCP finds a link's rate within so many round trips.
_ROUND_TRIPS_TO_START: Final = 20
# A transfer is cut off when it takes four times as long as it should, and this.
_SLACK_S: Final = 0.1
_TIMEOUT_S: Final = 10.0
_CHUNK_BYTES: Final = 256 * 1024
_NAMED: Final = 4


class Transfer(NamedTuple):
    """What was measured of one link, or of several flows at once.

    bucket_bytes: what came at once before the rate did. cores_busy: share of all cores' time, meanwhile.
    """

    name: str
    asked_Bps: float
    measured_Bps: float
    bucket_bytes: float
    cores_busy: float

    @property
    def share(self) -> float:
        """Measured over asked."""
        return self.measured_Bps / self.asked_Bps


@dataclass(frozen=True)
class LabReport:
    """What the self-test found.

    alone: from each host to the next by itself, uplinks that their hosts can fill included. ends: one end of a link by itself.
    hidden: ends that cannot be tried so, because what they are joined to is not faster than they are. together: all hosts'
    links at once. cores: of this machine. lab: the provenance of what was built.
    """

    alone: tuple[Transfer, ...]
    ends: tuple[Transfer, ...]
    hidden: tuple[str, ...]
    together: Transfer
    cores: int
    round_trip_s: float
    lab: Mapping[str, str]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why not to believe the lab, one line each; none if nothing is wrong."""
        off = [transfer for transfer in (*self.alone, *self.ends) if abs(transfer.share - 1) > _TOLERANCE]
        told = [
            f"{transfer.name}: {format_Bps(transfer.measured_Bps)} measured, {format_Bps(transfer.asked_Bps)} asked"
            f"{self._reason(transfer)}"
            for transfer in off[:_NAMED]
        ]
        if len(off) > _NAMED:
            told.append(f"{len(off) - _NAMED} more links are off by over {_TOLERANCE:.0%}")
        if self.together.share < 1 - _TOLERANCE:
            told.append(f"all links at once carry {self.together.share:.0%} of what is asked{self._reason(self.together)}")
        return tuple(told)

    def _reason(self, transfer: Transfer) -> str:
        if transfer.share > 1:
            return ": it is not limited so; build the lab again, and leave its links alone while it stands"
        if transfer.cores_busy >= _SATURATED:
            cores = f"{self.cores} cores are" if self.cores > 1 else "core is"
            return f" while the {cores} busy: they are the limit, not the links; lower the rate, or build fewer hosts"
        return f", and the cores are {transfer.cores_busy:.0%} busy; test again, and lower the rate if it stays so"

    def _ends(self) -> str:
        """Which ends were tried by themselves, and what came of it."""
        told = []
        if self.ends:
            most = max(transfer.share for transfer in self.ends)
            told.append(f"{len(self.ends)} tried by themselves, {most:.1%} of the rate at most")
        if self.hidden:
            named = ", ".join(self.hidden[:_NAMED]) + (", ..." if len(self.hidden) > _NAMED else "")
            told.append(f"{len(self.hidden)} seen together with their other end only, which is not faster ({named})")
        return "; ".join(told)

    def provenance(self) -> dict[str, str]:
        """What was built, and what was measured of it."""
        shares = [transfer.share for transfer in self.alone]
        apparent = format_bytes(statistics.median(transfer.bucket_bytes for transfer in self.alone))
        rate = f"{self.lab['link rate']} asked, {statistics.median(shares):.1%} of it measured"
        together = f"{self.together.share:.1%} of the rate, {self.together.cores_busy:.0%} of {self.cores} cores busy"
        return {
            **self.lab,
            "link rate": f"{rate} (from {min(shares):.1%} to {max(shares):.1%} of {len(shares)} links)",
            "link ends": self._ends(),
            "bucket": f"{self.lab['bucket']}, {apparent} apparent",
            "round trip": f"{format_time_s(self.round_trip_s)} over TCP",
            "all links at once": together,
        }


def probe(lab: WiringPlan, namespaces: Sequence[Path], provenance: Mapping[str, str]) -> LabReport:
    """Measures a lab that stands. Raises RunError naming two hosts where nothing gets through."""
    ends = _Ends(lab, namespaces)
    ring = list(_ring(lab))
    round_trip_s = ends.round_trip_s(*ring[0][:2])
    each_s = min(max(_ALONE_S / len(ring), _LEAST_S), _MOST_S)
    alone = [ends.best(f"host {flow.source} to host {flow.target}", [flow], flow.asked_Bps, each_s) for flow in ring]
    for leaf, flows in _between_leaves(lab):
        up_Bps = lab.uplinks[leaf].rate_Bps
        if sum(flow.asked_Bps for flow in flows) > up_Bps:
            alone.append(ends.best(f"uplink of leaf {leaf}", flows, up_Bps, each_s))
    tried, hidden = _each_end(ends)
    together = ends.transfer("all links", ring, sum(flow.asked_Bps for flow in ring), _TOGETHER_S)
    return LabReport(tuple(alone), tried, hidden, together, _CORES, round_trip_s, provenance)


def _each_end(ends: _Ends) -> tuple[tuple[Transfer, ...], tuple[str, ...]]:
    """What passes each end of a link that others can overfill, and the names of the rest."""
    all_fans = list(fans(ends.lab))
    each_s = min(max(_ENDS_S / len(all_fans), _LEAST_S), _MOST_S)
    tried = [ends.best(fan.name, fan.flows, fan.asked_Bps, each_s) for fan in all_fans if fan.flows]
    return tuple(tried), tuple(fan.name for fan in all_fans if not fan.flows)


def _ring(lab: WiringPlan) -> Iterator[Flow]:
    """Each host to the next: those of a leaf after one another, and alike ones beside each other."""
    cables = lab.hosts
    order = sorted(range(len(cables)), key=lambda host: (lab.leaves.index(cables[host].bridge), cables[host].rate_Bps))
    for source, target in zip(order, [*order[1:], order[0]], strict=True):
        yield Flow(source, target, lab.way_Bps(source, target))


def _between_leaves(lab: WiringPlan) -> Iterator[tuple[int, list[Flow]]]:
    """For each leaf that has an uplink, and another to send to: flows of its hosts to as many of the next."""
    leaves = [[host for host, cable in enumerate(lab.hosts) if cable.bridge == up.bridge] for up in lab.uplinks]
    if len(leaves) > 1:
        for number, (own, others) in enumerate(zip(leaves, [*leaves[1:], leaves[0]], strict=True)):
            pairs = zip(own, others, strict=False)
            yield number, [Flow(source, target, _narrower_Bps(lab, source, target)) for source, target in pairs]


def _narrower_Bps(lab: WiringPlan, source: int, target: int) -> float:
    return min(lab.hosts[source].rate_Bps, lab.hosts[target].rate_Bps)


class _Ends:
    """Makes sockets on the hosts, and times what goes between them."""

    def __init__(self, lab: WiringPlan, namespaces: Sequence[Path]) -> None:
        self.lab = lab
        self.namespaces = namespaces
        self.retry_until_s = time.monotonic() + _RETRY_S

    def best(self, name: str, flows: Sequence[Flow], asked_Bps: float, seconds: float) -> Transfer:
        """The attempt nearest to what is asked: other work makes a link look slow, nothing makes a slow one look right."""
        attempts = [self.transfer(name, flows, asked_Bps, seconds)]
        while (
            abs(attempts[-1].share - 1) > _TOLERANCE / 2 and len(attempts) < _ATTEMPTS and time.monotonic() < self.retry_until_s
        ):
            attempts.append(self.transfer(name, flows, asked_Bps, seconds))
        return min(attempts, key=lambda done: abs(done.share - 1))

    def transfer(self, name: str, flows: Sequence[Flow], asked_Bps: float, seconds: float) -> Transfer:
        """All flows at once, each for about `seconds` at an even share of what is asked."""
        seconds += _ROUND_TRIPS_TO_START * 2 * self.lab.latency_s
        scale = asked_Bps / sum(flow.asked_Bps for flow in flows)
        buckets = [bucket_bytes(flow.asked_Bps) for flow in flows]
        sizes = [
            max(4 * bucket, round(bucket + scale * flow.asked_Bps * seconds))
            for flow, bucket in zip(flows, buckets, strict=True)
        ]
        with contextlib.ExitStack() as stack:
            senders, receivers = zip(*(self._connected(flow.source, flow.target, stack) for flow in flows), strict=True)
            threads = min(len(flows), max(1, _CORES // 2))
            pool = stack.enter_context(ThreadPoolExecutor(2 * threads))
            busy, begin_s = Processors(), time.perf_counter()
            until_s = begin_s + 4 * seconds + _SLACK_S
            to_send, to_receive = (list(zip(ends, sizes, strict=True)) for ends in (senders, receivers))
            receiving = [pool.submit(_receive, dict(to_receive[i::threads]), until_s) for i in range(threads)]
            sending = [pool.submit(_send, dict(to_send[i::threads]), until_s) for i in range(threads)]
            arrivals = sorted(arrival for receives in receiving for arrival in receives.result())
            cores_busy = busy.busy()
            for sends in sending:
                sends.result()
        totals = itertools.accumulate(count for _, count in arrivals)
        came = [(when_s - begin_s, total) for (when_s, _), total in zip(arrivals, totals, strict=True)]
        return Transfer(name, asked_Bps, *_rate_and_bucket([(0.0, 0), *came]), cores_busy)

    def round_trip_s(self, source: int, target: int) -> float:
        """Median time of one byte there and back. Raises RunError where it does not come back."""
        times_s: list[float] = []
        with contextlib.ExitStack() as stack:
            here, there = self._connected(source, target, stack)
            pool = stack.enter_context(ThreadPoolExecutor(1))
            pool.submit(_echo, there)
            try:
                while len(times_s) < _ROUND_TRIPS and sum(times_s) < _ROUND_TRIPS_S:
                    begin_s = time.perf_counter()
                    here.sendall(b".")
                    here.recv(1)
                    times_s.append(time.perf_counter() - begin_s)
                here.shutdown(socket.SHUT_WR)
            except OSError as error:
                raise _unreachable(source, target, error) from None
        return statistics.median(times_s)

    def _connected(self, source: int, target: int, stack: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
        """Both ends of a connection, closed with the stack. Raises RunError where there is no way."""
        address = self.lab.address(target)
        try:
            with inside(self.namespaces[target], lambda: socket.create_server((address, 0))) as listening:
                listening.settimeout(_TIMEOUT_S)
                port = listening.getsockname()[1]
                sender = inside(self.namespaces[source], lambda: socket.create_connection((address, port), _TIMEOUT_S))
                stack.enter_context(sender)
                receiver = stack.enter_context(listening.accept()[0])
        except OSError as error:
            raise _unreachable(source, target, error) from None
        for end in (sender, receiver):
            end.settimeout(_TIMEOUT_S)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sender, receiver


def _unreachable(source: int, target: int, error: OSError) -> RunError:
    return RunError(f"netlab: host {source} does not reach host {target} ({error.strerror or error}); build the lab again")


def _send(sizes_bytes: Mapping[socket.socket, int], until_s: float) -> None:
    """Sends so many bytes into each socket, as they take them."""
    chunk = memoryview(bytes(_CHUNK_BYTES))
    left = dict(sizes_bytes)
    for end in _ready(sizes_bytes, selectors.EVENT_WRITE, left, until_s):
        left[end] -= end.send(chunk[: left[end]])


def _receive(sizes_bytes: Mapping[socket.socket, int], until_s: float) -> list[tuple[float, int]]:
    """When (time.perf_counter) how many bytes came out of the sockets."""
    buffer, left, arrivals = bytearray(_CHUNK_BYTES), dict(sizes_bytes), []
    for end in _ready(sizes_bytes, selectors.EVENT_READ, left, until_s):
        count = end.recv_into(buffer)
        left[end] -= count
        arrivals.append((time.perf_counter(), count))
    return arrivals


def _ready(
    ends: Iterable[socket.socket], event: int, left: Mapping[socket.socket, int], until_s: float
) -> Iterator[socket.socket]:
    """Sockets as they are ready, each until nothing is left for it; all until the time is up."""
    with selectors.DefaultSelector() as selector:
        for end in ends:
            end.setblocking(False)
            selector.register(end, event, end)
        while selector.get_map() and (rest_s := until_s - time.perf_counter()) > 0:
            for key, _ in selector.select(rest_s):
                yield key.data
                if left[key.data] <= 0:
                    selector.unregister(key.data)


def _rate_and_bucket(arrivals: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Bytes/s from (seconds, bytes so far), and by how many bytes the first half of them was ahead of that rate.

    The last tenth is left out: flows do not end at once.
    """
    received = arrivals[-1][1]
    half_s, half_bytes = next(arrival for arrival in arrivals if arrival[1] >= 0.5 * received)
    end_s, end_bytes = next(arrival for arrival in arrivals if arrival[1] >= 0.9 * received)
    if end_s <= half_s:
        return 0.0, 0.0
    rate_Bps = (end_bytes - half_bytes) / (end_s - half_s)
    return rate_Bps, max(0.0, half_bytes - rate_Bps * half_s)


def _echo(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while received := end.recv(64):
            end.sendall(received)
