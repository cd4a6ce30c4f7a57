"""The lab's self-test: measures the rate of its links, each alone and all at once.

Rates are of payload received over TCP: from one host to the next, then through each end of a link separately. All ends are
sockets of this process, each created in its host's namespace.
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
from scaleproof.validator.launch.namespaces import inside
from scaleproof.validator.netlab.fan_flows import Flow, fans
from scaleproof.validator.netlab.wiring import WiringPlan
from scaleproof.validator.record.cpu_usage import Processors

_CORES: Final = os.cpu_count() or 1
_ALONE_S: Final = 3.0  # for all links, one after the other
_ENDS_S: Final = 1.5  # for all their ends
_LEAST_S, _MOST_S = 0.03, 0.1  # for one of them
_CONCURRENT_S: Final = 0.3
# Relative deviation of a link's rate from which it is measured again, and then warned of.
_TOLERANCE: Final = 0.1
_ATTEMPTS: Final = 3
_RETRY_S: Final = 8.0  # no more attempts after this time
# Above this share of all cores' time the cores are the bottleneck.
_SATURATED: Final = 0.8
_ROUND_TRIPS: Final = 200
_ROUND_TRIPS_S: Final = 1.0  # fewer of them where they take longer
# Round trips within which TCP reaches a link's rate.
_ROUND_TRIPS_TO_START: Final = 20
# A transfer is cut off after four times its expected duration and this time.
_SLACK_S: Final = 0.1
_TIMEOUT_S: Final = 10.0
_CHUNK_BYTES: Final = 256 * 1024
_NAMED: Final = 4


class Transfer(NamedTuple):
    """The measured rate of one link, or of several flows at once.

    bucket_bytes: initial burst. cores_busy: busy share of all cores' time.
    """

    name: str
    expected_Bps: float
    measured_Bps: float
    bucket_bytes: float
    cores_busy: float

    @property
    def share(self) -> float:
        """Ratio of the measured rate to the expected one."""
        return self.measured_Bps / self.expected_Bps


@dataclass(frozen=True)
class LabReport:
    """Results of the self-test.

    alone: from each host to the next separately, and uplinks that their hosts can saturate. ends: single ends of links.
    hidden: ends that cannot be tested separately, because the links behind them are not faster. concurrent: all hosts' links at
    once. cores: number of this machine's cores. lab: provenance of the lab.
    """

    alone: tuple[Transfer, ...]
    ends: tuple[Transfer, ...]
    hidden: tuple[str, ...]
    concurrent: Transfer
    cores: int
    round_trip_s: float
    lab: Mapping[str, str]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons not to trust measurements in the lab, one line each; none if all rates are right."""
        off = [transfer for transfer in (*self.alone, *self.ends) if abs(transfer.share - 1) > _TOLERANCE]
        warnings = [
            f"{transfer.name}: {format_Bps(transfer.measured_Bps)} measured, {format_Bps(transfer.expected_Bps)} requested"
            f"{self._reason(transfer)}"
            for transfer in off[:_NAMED]
        ]
        if len(off) > _NAMED:
            warnings.append(f"{len(off) - _NAMED} more links are off by over {_TOLERANCE:.0%}")
        if self.concurrent.share < 1 - _TOLERANCE:
            reason = self._reason(self.concurrent)
            warnings.append(f"all links at once carry {self.concurrent.share:.0%} of the requested rate{reason}")
        return tuple(warnings)

    def _reason(self, transfer: Transfer) -> str:
        if transfer.share > 1:
            return ": its limit is missing or was changed; build the lab again, and do not change its links while it is up"
        if transfer.cores_busy >= _SATURATED:
            cores = f"{self.cores} cores are" if self.cores > 1 else "core is"
            return f" while the {cores} busy: they are the limit, not the links; lower the rate, or build fewer hosts"
        return f", and the cores are {transfer.cores_busy:.0%} busy; test again, and lower the rate if it stays so"

    def _ends(self) -> str:
        """Summary of the test of single ends."""
        parts = []
        if self.ends:
            most = max(transfer.share for transfer in self.ends)
            parts.append(f"{len(self.ends)} tested separately, {most:.1%} of the rate at most")
        if self.hidden:
            named = ", ".join(self.hidden[:_NAMED]) + (", ..." if len(self.hidden) > _NAMED else "")
            parts.append(f"{len(self.hidden)} tested only together with their other end, which is not faster ({named})")
        return "; ".join(parts)

    def provenance(self) -> dict[str, str]:
        """Provenance of the lab, with the measured rates and round-trip time."""
        shares = [transfer.share for transfer in self.alone]
        apparent = format_bytes(statistics.median(transfer.bucket_bytes for transfer in self.alone))
        rate = f"{self.lab['link rate']} requested, {statistics.median(shares):.1%} of it measured"
        concurrent = f"{self.concurrent.share:.1%} of the rate, {self.concurrent.cores_busy:.0%} of {self.cores} cores busy"
        return {
            **self.lab,
            "link rate": f"{rate} (from {min(shares):.1%} to {max(shares):.1%} of {len(shares)} links)",
            "link ends": self._ends(),
            "bucket": f"{self.lab['bucket']}, {apparent} apparent",
            "round trip": f"{format_time_s(self.round_trip_s)} over TCP",
            "all links at once": concurrent,
        }


def probe(lab: WiringPlan, namespaces: Sequence[Path], provenance: Mapping[str, str]) -> LabReport:
    """Measures a lab that is up. Raises RunError naming two hosts that cannot reach each other."""
    ends = _Ends(lab, namespaces)
    ring = list(_ring(lab))
    round_trip_s = ends.round_trip_s(*ring[0][:2])
    each_s = min(max(_ALONE_S / len(ring), _LEAST_S), _MOST_S)
    alone = [ends.best(f"host {flow.source} to host {flow.target}", [flow], flow.expected_Bps, each_s) for flow in ring]
    for leaf, flows in _between_leaves(lab):
        up_Bps = lab.uplinks[leaf].rate_Bps
        if sum(flow.expected_Bps for flow in flows) > up_Bps:
            alone.append(ends.best(f"uplink of leaf {leaf}", flows, up_Bps, each_s))
    single_ends, hidden = _test_ends(ends)
    concurrent = ends.transfer("all links", ring, sum(flow.expected_Bps for flow in ring), _CONCURRENT_S)
    return LabReport(tuple(alone), single_ends, hidden, concurrent, _CORES, round_trip_s, provenance)


def _test_ends(ends: _Ends) -> tuple[tuple[Transfer, ...], tuple[str, ...]]:
    """Measures each end of a link that other links can saturate; also returns the names of the rest."""
    all_fans = list(fans(ends.lab))
    each_s = min(max(_ENDS_S / len(all_fans), _LEAST_S), _MOST_S)
    transfers = [ends.best(fan.name, fan.flows, fan.expected_Bps, each_s) for fan in all_fans if fan.flows]
    return tuple(transfers), tuple(fan.name for fan in all_fans if not fan.flows)


def _ring(lab: WiringPlan) -> Iterator[Flow]:
    """Flows from each host to the next in a ring, sorted by leaf and then by the rate of the host's link."""
    cables = lab.hosts
    order = sorted(range(len(cables)), key=lambda host: (lab.leaves.index(cables[host].bridge), cables[host].rate_Bps))
    for source, target in zip(order, [*order[1:], order[0]], strict=True):
        yield Flow(source, target, lab.path_Bps(source, target))


def _between_leaves(lab: WiringPlan) -> Iterator[tuple[int, list[Flow]]]:
    """For each leaf with an uplink, if there are several: its number and flows from its hosts to those of the next leaf."""
    leaves = [[host for host, cable in enumerate(lab.hosts) if cable.bridge == up.bridge] for up in lab.uplinks]
    if len(leaves) > 1:
        for number, (own, others) in enumerate(zip(leaves, [*leaves[1:], leaves[0]], strict=True)):
            pairs = zip(own, others, strict=False)
            yield number, [Flow(source, target, _narrower_Bps(lab, source, target)) for source, target in pairs]


def _narrower_Bps(lab: WiringPlan, source: int, target: int) -> float:
    return min(lab.hosts[source].rate_Bps, lab.hosts[target].rate_Bps)


class _Ends:
    """Creates sockets on the hosts, and times transfers between them."""

    def __init__(self, lab: WiringPlan, namespaces: Sequence[Path]) -> None:
        self.lab = lab
        self.namespaces = namespaces
        self.retry_until_s = time.monotonic() + _RETRY_S

    def best(self, name: str, flows: Sequence[Flow], expected_Bps: float, seconds: float) -> Transfer:
        """The attempt nearest to the expected rate: other work can make a link look slower, but not faster."""
        attempts = [self.transfer(name, flows, expected_Bps, seconds)]
        while (
            abs(attempts[-1].share - 1) > _TOLERANCE / 2 and len(attempts) < _ATTEMPTS and time.monotonic() < self.retry_until_s
        ):
            attempts.append(self.transfer(name, flows, expected_Bps, seconds))
        return min(attempts, key=lambda done: abs(done.share - 1))

    def transfer(self, name: str, flows: Sequence[Flow], expected_Bps: float, seconds: float) -> Transfer:
        """Sends all flows at once, each for about `seconds` at its share of the expected rate."""
        seconds += _ROUND_TRIPS_TO_START * 2 * self.lab.latency_s
        scale = expected_Bps / sum(flow.expected_Bps for flow in flows)
        buckets = [self.lab.bucket_bytes(flow.expected_Bps) for flow in flows]
        sizes = [
            max(4 * bucket, round(bucket + scale * flow.expected_Bps * seconds))
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
        received = [(when_s - begin_s, total) for (when_s, _), total in zip(arrivals, totals, strict=True)]
        return Transfer(name, expected_Bps, *_rate_and_bucket([(0.0, 0), *received]), cores_busy)

    def round_trip_s(self, source: int, target: int) -> float:
        """Median round-trip time of one byte in seconds. Raises RunError where it does not come back."""
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
        """Sender and receiver of a connection, closed with the stack. Raises RunError where hosts cannot connect."""
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
    """Sends the given number of bytes into each socket, as fast as it takes them."""
    chunk = memoryview(bytes(_CHUNK_BYTES))
    left = dict(sizes_bytes)
    for end in _ready(sizes_bytes, selectors.EVENT_WRITE, left, until_s):
        left[end] -= end.send(chunk[: left[end]])


def _receive(sizes_bytes: Mapping[socket.socket, int], until_s: float) -> list[tuple[float, int]]:
    """Receives until all bytes have arrived or the time is up; returns (time.perf_counter, bytes) of each arrival."""
    buffer, left, arrivals = bytearray(_CHUNK_BYTES), dict(sizes_bytes), []
    for end in _ready(sizes_bytes, selectors.EVENT_READ, left, until_s):
        count = end.recv_into(buffer)
        left[end] -= count
        arrivals.append((time.perf_counter(), count))
    return arrivals


def _ready(
    ends: Iterable[socket.socket], event: int, left: Mapping[socket.socket, int], until_s: float
) -> Iterator[socket.socket]:
    """Yields sockets as they become ready, each until no bytes are left for it, until the time is up."""
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
    """Rate in bytes/s, and the bytes of the initial burst, from (seconds, bytes so far).

    The last tenth is left out, as flows do not end at the same time.
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
