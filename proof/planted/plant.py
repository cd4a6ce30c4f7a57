"""Runs with a planted fault, in a lab, and the same runs without it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from scaleproof.proof.planted.kinds import Lateness, PlantedFault
from scaleproof.proof.planted.loading import train_late
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.job import Host
from scaleproof.validator.launch.launch import JobOptions, LocalRanks, RankResult
from scaleproof.validator.measure import MeasureOptions, measure_on
from scaleproof.validator.netlab.compatibility import lab_cluster
from scaleproof.validator.netlab.lab import Netlab
from scaleproof.validator.netlab.traffic import background_traffic
from scaleproof.validator.preflight.checks import check

_TIMEOUT_S: Final = 60.0
# Bounds of the times for which a link stalls, and for which it does not.
_STALLS_S: Final = (0.002, 0.01)
# With three spinning processes, another process on the same core gets a quarter of it.
_SPINNING: Final = 3
# Keeps a core busy until the process that started it ends, all the time, or for random times with random pauses. Arguments: the
# core, the process id of the parent, and bounds of the times in seconds.
_SPIN: Final = """
import os, random, sys, time
core, parent = int(sys.argv[1]), int(sys.argv[2])
on_s = tuple(map(float, sys.argv[3:]))
os.sched_setaffinity(0, {core})
drawn = random.Random(parent)
until_s = time.monotonic() + drawn.uniform(*on_s) if on_s else float("inf")
while os.getppid() == parent:
    if time.monotonic() > until_s:
        time.sleep(drawn.uniform(*on_s))
        until_s = time.monotonic() + drawn.uniform(*on_s)
"""


@dataclass(frozen=True)
class _PlantedRanks(LocalRanks):
    """Ranks of which some are late. recorded: what each has recorded in the last run."""

    late: Mapping[int, Lateness]
    recorded: list[bytes] = field(default_factory=list)

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], options: JobOptions) -> list[RankResult]:
        """Trains with late ranks."""
        results = super().run(train_late, (dict(self.late), *args), options)
        self.recorded[:] = [one.recorded for one in results]
        return results


def measured(fault: PlantedFault, with_fault: bool) -> Run:
    """Trains in a lab with or without the fault. Raises InputError where `measure` refuses the scenario, and RunError if this
    machine cannot build the lab."""
    return recorded(fault if with_fault else fault.without)[0]


def recorded(fault: PlantedFault) -> tuple[Run, list[bytes]]:
    """The run with the fault, as `measured`, and what each rank has recorded."""
    scenario = fault.scenario
    check(scenario, "netlab", None)
    options = MeasureOptions(_TIMEOUT_S)
    with ExitStack() as stack:
        lab = stack.enter_context(_lab(fault))
        hosts = lab.ranks_hosts(scenario)
        if fault.traffic:
            assert fault.host is not None
            # others' traffic comes from a host of its own
            stack.enter_context(background_traffic(lab, fault.host, lab.hosts - 1, fault.traffic * _described_Bps(scenario)))
        if fault.busy is not None:
            hosts = stack.enter_context(_on_a_busy_core(hosts, fault.busy, fault.on_s))
        ranks = _PlantedRanks(hosts, fault.late)
        # how compute is slower is no part of the description
        run = measure_on(scenario.model_copy(update={"unevenness": fault.unevenness}), ranks, options, "netlab")
        return run, ranks.recorded


@contextmanager
def _lab(fault: PlantedFault) -> Iterator[Netlab]:
    """The lab with the fault's links."""
    cluster = lab_cluster(fault.scenario)
    assert cluster.network is not None
    described_Bps = cluster.network.bandwidth_Bps
    if fault.host is None:
        network = cluster.network.model_copy(update={"bandwidth_Bps": fault.rate * described_Bps})
        cluster = cluster.model_copy(update={"network": network})
    with Netlab(_with_neighbour(cluster) if fault.traffic else cluster) as lab:
        if fault.host is not None:
            lab.limit(fault.host, fault.rate * described_Bps)
            if fault.stalls:
                with _stalling(lab, fault.host, described_Bps, fault.upload):
                    yield lab
                return
            lab.limit_upload(fault.host, fault.rate * fault.upload * described_Bps)
        yield lab


@contextmanager
def _stalling(lab: Netlab, host: int, rate_Bps: float, share: float) -> Iterator[None]:
    """Limits what a host sends to a share of its rate at random times within the context."""
    ended, drawn = threading.Event(), Random(host)  # noqa: S311 - a draw that can be repeated

    with lab.upload_limiter(host) as limit:

        def stall() -> None:
            while not ended.wait(drawn.uniform(*_STALLS_S)):
                limit(share * rate_Bps)
                ended.wait(drawn.uniform(*_STALLS_S))
                limit(rate_Bps)

        thread = threading.Thread(target=stall)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _with_neighbour(cluster: Cluster) -> Cluster:
    return cluster.model_copy(update={"nodes": cluster.nodes + 1})


def _described_Bps(scenario: Scenario) -> float:
    assert scenario.cluster.network is not None
    return scenario.cluster.network.bandwidth_Bps


@contextmanager
def _on_a_busy_core(hosts: list[Host], rank: int, on_s: tuple[float, float] | None) -> Iterator[list[Host]]:
    """Hosts of ranks that share a core, except for one rank, whose core other work uses within the context."""
    shared, own = _cores()
    with ExitStack() as stack:
        for _ in range(_SPINNING):
            stack.enter_context(spinning(own, on_s))
        yield [replace(host, cores=(own if number == rank else shared,)) for number, host in enumerate(hosts)]


def _cores() -> tuple[int, int]:
    """A core for the busy rank's peers and one for that rank. Raises RunError if this process may use only one core."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise RunError("a busy core needs an idle one next to it, and this process may use only one; allow it two")
    return usable[0], usable[-1]


@contextmanager
def spinning(core: int, on_s: tuple[float, float] | None = None) -> Iterator[int]:
    """Keeps a core of this machine busy by a process within the context; yields its process id. on_s: bounds of the times for
    which it works and pauses; it never pauses if None."""
    arguments = map(str, (core, os.getpid(), *(on_s or ())))
    # if the kernel divides cores among sessions first, a separate session gets a full share
    process = subprocess.Popen([sys.executable, "-S", "-c", _SPIN, *arguments], start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
