"""Planted faults: a lab with a link at half rate, or a host or a server with a busy core, to test whether reconcile names the
fault. The same runs without a fault must show none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.launch import LocalRanks
from scaleproof.validator.measure import MeasureOptions, measure_on
from scaleproof.validator.netlab.compatibility import lab_cluster
from scaleproof.validator.netlab.lab import Netlab, require
from scaleproof.validator.reconciliation.explain import Explanation, explain

_TIMEOUT_S: Final = 60.0
# Largest number of runs per fault: a machine with other load can hide a fault or look like one.
_ATTEMPTS: Final = 3
# With three spinning processes, another process on the same core gets a quarter of it.
_SPINNING: Final = 3
# Spins until the process that started it ends.
_SPIN: Final = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
while os.getppid() == int(sys.argv[2]):
    pass
"""
# Memory is so slow that emulated updates end in time on an idle core, and late on a busy one.
_CLUSTER: Final[dict[str, Any]] = {
    "nodes": 4,
    "node": {"cores": 2},
    "device": {"name": "a core", "peak": {"fp32": "50 GFLOP/s"}, "memory": "8 GiB", "memory_bandwidth": "3 GB/s"},
    "collectives": {"library": "gloo"},
}
# Layers compute for so long that they cannot get a full core at once, as a process that mostly slept can.
_WIDE: Final = {"kind": "mlp", "layers": 6, "inputs": 1024, "hidden": 1024, "outputs": 1024}
_DEEP: Final = {"kind": "gpt", "layers": 8, "hidden": 128, "heads": 4, "vocabulary": 256, "sequence": 64}
Measure = Callable[["PlantedFault", bool], Run]


@dataclass(frozen=True)
class PlantedFault:
    """A fault to plant. kind, who: how reconcile should name it. rates: of the links, without and with the fault on host 1.
    busy: rank that is bound to a busy core, while the others are bound to another one; None if no core is busy."""

    name: str
    kind: str
    who: str
    model: dict[str, Any]
    strategy: dict[str, Any]
    samples: int
    compute: str
    rate: str
    slow_rate: str = ""
    busy: int | None = None

    def scenario(self, with_fault: bool = False) -> Scenario:
        """The scenario, with the slow link if `with_fault`."""
        network: dict[str, Any] = {"bandwidth": self.rate, "latency": "60 us"}
        if with_fault and self.slow_rate:
            network["exceptions"] = [{"at": [1], "bandwidth": self.slow_rate}]
        return Scenario.model_validate(
            {
                "name": self.name.replace(" ", "-"),
                "model": self.model,
                "cluster": _CLUSTER | {"network": network},
                "strategy": self.strategy,
                "batch": {"total": self.samples},
                "training": {"optimizer": "adam"},
                "steps": 4,
                "compute": self.compute,
            }
        )


# Ranks take turns, so that ranks on the same core do not delay one another, and messages are sent one at a time.
FAULTS: Final = (
    PlantedFault(
        name="a link at half rate",
        kind="messages",
        who="stage 1",
        model=_DEEP,
        strategy={"kind": "pipeline", "stages": 4, "microbatches": 1, "schedule": "gpipe"},
        samples=8,
        compute="paced",
        rate="40 Mbit/s",
        slow_rate="20 Mbit/s",
    ),
    PlantedFault(
        name="a host with a busy core",
        kind="compute",
        who="stage 1",
        model=_WIDE,
        strategy={"kind": "pipeline", "stages": 3, "microbatches": 1, "schedule": "gpipe"},
        samples=512,
        compute="real",
        rate="1 Gbit/s",
        busy=1,
    ),
    PlantedFault(
        name="a server with a slow update",
        kind="updates",
        who="server 1",
        model=_WIDE,
        strategy={"kind": "parameter_server", "workers": 2, "servers": 2},
        samples=8,
        compute="paced",
        rate="1 Gbit/s",
        busy=3,
    ),
)


@dataclass(frozen=True)
class Planted:
    """Result for a fault. expected: words that should name it. explanation: of the run with the fault, relative to a prediction
    without it. healthy: explanation of the run without it. attempts: number of runs of either kind."""

    name: str
    expected: str
    explanation: Explanation
    healthy: Explanation
    attempts: int

    @property
    def named(self) -> str:
        """The sentence that names the fault; "" if it was not found, or if the run without it shows faults too."""
        return "" if self.healthy.faults else next((words for words in _words(self.explanation) if self.expected in words), "")


def find_faults(report: Callable[[str], None]) -> list[Planted]:
    """Plants every fault in turn. report: called with progress messages. Raises RunError if this machine cannot build a lab."""
    require()
    results = []
    for fault in FAULTS:
        report(f"planting {fault.name}")
        results.append(planted(fault))
    return results


def planted(fault: PlantedFault, measure: Measure | None = None) -> Planted:
    """Trains with and without the fault, again if the fault is not identified. Raises RunError."""
    runs = measure or measured
    predicted = predict(fault.scenario(), interval=False)
    for attempt in range(1, _ATTEMPTS + 1):
        explanation, healthy = (explain(predicted, runs(fault, broken)) for broken in (True, False))
        result = Planted(fault.name, expected(fault), explanation, healthy, attempt)
        if result.named:
            break
    return result


def expected(fault: PlantedFault) -> str:
    """The words by which reconcile names the fault."""
    begin = {"messages": "messages from and to {}", "compute": "compute of {} takes", "updates": "updates on {} take"}
    return begin[fault.kind].format(fault.who)


def _words(explanation: Explanation) -> Sequence[str]:
    return [fault.words for fault in explanation.faults]


def measured(fault: PlantedFault, with_fault: bool) -> Run:
    """Trains in a lab with or without the fault. Raises RunError if this machine cannot build one."""
    scenario = fault.scenario(with_fault)
    with Netlab(lab_cluster(scenario)) as lab, ExitStack() as stack:
        hosts = lab.ranks_hosts(scenario)
        if with_fault and fault.busy is not None:
            shared, own = _cores()
            hosts = [replace(host, cores=(own if rank == fault.busy else shared,)) for rank, host in enumerate(hosts)]
            for _ in range(_SPINNING):
                stack.enter_context(spinning(own))
        return measure_on(scenario, LocalRanks(hosts), MeasureOptions(_TIMEOUT_S), "netlab")


def _cores() -> tuple[int, int]:
    """A core for the busy rank's peers and one for that rank. Raises RunError if this process may use only one core."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise RunError("a busy core needs an idle one next to it, and this process may use only one; allow it two")
    return usable[0], usable[-1]


@contextmanager
def spinning(core: int) -> Iterator[int]:
    """Keeps a core of this machine busy by a process within the context; yields its process id."""
    # if the kernel divides cores among sessions first, a separate session gets a full share
    process = subprocess.Popen([sys.executable, "-S", "-c", _SPIN, str(core), str(os.getpid())], start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
