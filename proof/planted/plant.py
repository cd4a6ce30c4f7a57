"""Runs with a planted fault, in a lab, and the same runs without it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from scaleproof.proof.planted.kinds import PlantedFault
from scaleproof.proof.planted.loading import train_with_late_batches
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.perturbations import Perturbations, Straggler
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
class _LateRanks(LocalRanks):
    """Ranks of which some wait for each of their batches. loading_s: seconds by rank."""

    loading_s: Mapping[int, float]

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], options: JobOptions) -> list[RankResult]:
        """Trains with late batches."""
        return super().run(train_with_late_batches, (dict(self.loading_s), *args), options)


def measured(fault: PlantedFault, with_fault: bool) -> Run:
    """Trains in a lab with or without the fault. Raises InputError where `measure` refuses the scenario, and RunError if this
    machine cannot build the lab."""
    scenario = fault.scenario
    check(scenario, "netlab", None)
    options = MeasureOptions(_TIMEOUT_S)
    if not with_fault:
        with Netlab(lab_cluster(scenario)) as lab:
            return measure_on(scenario, LocalRanks(lab.ranks_hosts(scenario)), options, "netlab")
    with ExitStack() as stack:
        lab = stack.enter_context(_lab(fault))
        hosts = lab.ranks_hosts(scenario)
        if fault.traffic:
            assert fault.host is not None
            # others' traffic comes from a host of its own
            stack.enter_context(background_traffic(lab, fault.host, lab.hosts - 1, fault.traffic * _described_Bps(scenario)))
        if fault.busy is not None:
            hosts = stack.enter_context(_on_a_busy_core(hosts, fault.busy, fault.on_s))
        ranks = _LateRanks(hosts, fault.loading_s) if fault.loading_s else LocalRanks(hosts)
        return measure_on(_slowed(scenario, fault.slowdown), ranks, options, "netlab")


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
            lab.limit_upload(fault.host, fault.rate * fault.upload * described_Bps)
        yield lab


def _with_neighbour(cluster: Cluster) -> Cluster:
    return cluster.model_copy(update={"nodes": cluster.nodes + 1})


def _described_Bps(scenario: Scenario) -> float:
    assert scenario.cluster.network is not None
    return scenario.cluster.network.bandwidth_Bps


def _slowed(scenario: Scenario, slowdown: Mapping[int, float]) -> Scenario:
    """The scenario with stragglers, whose emulated compute lasts longer."""
    stragglers = tuple(Straggler(ranks=(rank,), slowdown=factor) for rank, factor in slowdown.items())
    return scenario.model_copy(update={"unevenness": Perturbations(stragglers=stragglers)}) if stragglers else scenario


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
