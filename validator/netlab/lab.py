"""netlab: a cluster's hosts and links on one Linux machine, by means of the kernel.

Each node is a network namespace with an interface and an address of its own; bridges join them, and every link is limited in
both directions to the scenario's bandwidth. Computation shares the machine's cores.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.common.units import format_bytes, format_time_s
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.job import Host, nodes_of_ranks
from scaleproof.validator.launch.namespaces import Holder
from scaleproof.validator.netlab import wiring
from scaleproof.validator.netlab.self_test import LabReport, probe

_COMMAND_S: Final = 30.0


class Netlab:
    """The hosts of a cluster as network namespaces, while the context lasts.

    One process keeps the namespaces open and ends with this one, so that nothing is left behind.
    """

    interface = wiring.INTERFACE

    def __init__(self, cluster: Cluster) -> None:
        """Raises InputError where no lab can be built for the cluster."""
        self._plan = wiring.plan(cluster)
        self.hosts = cluster.nodes
        self._holder: Holder | None = None

    def __enter__(self) -> Self:
        """Builds the lab. Raises RunError where this machine cannot."""
        require()
        self._has_netem = has_netem()
        self._holder = Holder(1 + self.hosts, wiring.SETTINGS)
        try:
            self._build(*self._holder.paths)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()

    def namespace(self, host: int) -> Path:
        """The namespace of a host, as a path that processes can join. Raises RunError where the lab is not up."""
        if self._holder is None or not self._holder.alive:
            raise RunError("the lab is not up: it was not entered, or the process that keeps it was ended; build it again")
        return self._holder.paths[1 + host]

    def address(self, host: int) -> str:
        """IP address of a host."""
        return self._plan.address(host)

    def capacity_Bps(self, host: int) -> float:
        """Bytes/s of frames that a host's link carries in each direction, headers included."""
        return self._plan.on_wire * self._plan.hosts[host].rate_Bps

    def command(self, host: int, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` on a host. Raises RunError where the lab is not up."""
        return _inside(self.namespace(host), argv)

    def ranks_hosts(self, scenario: Scenario) -> list[Host]:
        """The host of each rank of a scenario. Raises RunError where the lab is not up."""
        return [Host(self.namespace(node), self.interface) for node in nodes_of_ranks(scenario)]

    def limit(self, host: int, rate_Bps: float) -> None:
        """Changes the rate of a host's link in both directions. Raises RunError where the lab is not up."""
        self.limit_upload(host, rate_Bps)
        assert self._holder is not None, "the lab is up"
        _batch("tc", self._holder.paths[0], [wiring.changed_limit(self._plan, f"host{host}", rate_Bps)])

    def limit_upload(self, host: int, rate_Bps: float) -> None:
        """Changes the rate at which a host sends. Raises RunError where the lab is not up."""
        _batch("tc", self.namespace(host), [wiring.changed_limit(self._plan, self.interface, rate_Bps)])

    @contextmanager
    def upload_limiter(self, host: int) -> Iterator[Callable[[float], None]]:
        """A function that changes the rate at which a host sends, in bytes/s and at once, within the context."""
        with subprocess.Popen(self.command(host, ["tc", "-batch", "-"]), stdin=subprocess.PIPE, text=True) as tc:
            lines = tc.stdin
            assert lines is not None

            def limit(rate_Bps: float) -> None:
                print(wiring.changed_limit(self._plan, self.interface, rate_Bps), file=lines, flush=True)

            yield limit

    @property
    def mtu(self) -> int:
        """Bytes of a frame without the header of Ethernet."""
        return self._plan.mtu

    def self_test(self) -> LabReport:
        """Measures the lab within seconds: each link alone, all links at once, and the round-trip time."""
        return probe(self._plan, [self.namespace(host) for host in range(self.hosts)], self.provenance())

    def provenance(self) -> dict[str, str]:
        """Provenance of the lab: its links, latency, buckets and settings."""
        buckets = sorted({self._plan.bucket_bytes(cable.rate_Bps) for cable in self._plan.hosts})
        requested = f"{format_time_s(self._plan.latency_s)} one way"
        if self._plan.uplinks:
            requested += f" and {format_time_s(self._plan.hop_latency_s)} per hop between leaves"
        own = f"that of the software only: this kernel has no netem to add the requested {requested}"
        latency = f"netem, {requested}, and that of the software" if self._has_netem else own
        bucket = " and ".join(map(format_bytes, buckets))
        fixed = {"mtu": str(self._plan.mtu), "congestion control": wiring.CONGESTION_CONTROL}
        return wiring.describe(self._plan) | {"latency": latency, "bucket": bucket} | fixed

    def _build(self, fabric: Path, *hosts: Path) -> None:
        _batch("ip", fabric, wiring.fabric_links(self._plan, hosts))
        _batch("tc", fabric, wiring.fabric_limits(self._plan, self._has_netem))
        for host, namespace in enumerate(hosts):
            _batch("ip", namespace, wiring.host_links(self._plan, host))
            _batch("tc", namespace, wiring.host_limits(self._plan, host, self._has_netem))

    def _close(self) -> None:
        if self._holder is not None:
            self._holder.close()
            self._holder = None


def require() -> None:
    """Raises RunError where this machine cannot build a lab."""
    if not sys.platform.startswith("linux"):
        raise RunError(f"netlab needs Linux's network namespaces, and this is {sys.platform}; measure on local processes")
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("nsenter", "util-linux"), ("unshare", "util-linux")):
        if shutil.which(tool) is None:
            raise RunError(f"netlab needs the command {tool}; apt-get install {package}")
    if os.geteuid() != 0:
        raise RunError("netlab makes network namespaces, which only root may; run it with sudo")


def has_netem() -> bool:
    """Whether the kernel can delay packets, tried in a temporary namespace."""
    command = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    return _run(command).returncode == 0


def _inside(namespace: Path, argv: Sequence[str]) -> list[str]:
    return ["nsenter", f"--net={namespace}", "--", *argv]


def _batch(tool: str, namespace: Path, lines: Iterable[str]) -> None:
    """Runs a batch of `ip` or `tc` commands. Raises RunError with the tool's message."""
    done = _run(_inside(namespace, [tool, "-batch", "-"]), "".join(f"{line}\n" for line in lines))
    if done.returncode:
        reason = " ".join(done.stderr.split())
        raise RunError(f"the lab cannot be built: {tool}: {reason}; does the kernel have veth, bridge, tbf, htb and u32?")


def _run(command: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=_COMMAND_S)
    except subprocess.TimeoutExpired:
        raise RunError(
            f"the lab cannot be built: {' '.join(command)} takes longer than {_COMMAND_S:.0f} s; try again"
        ) from None
