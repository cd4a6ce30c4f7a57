"""Planted faults: a link at half rate, a host and a server with a busy core are put into a lab, and what reconcile then says of
the run is held against what was planted. The same runs without a fault have none."""

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
from scaleproof.validator.measure import MeasureOptions, measure_here
from scaleproof.validator.netlab.compatibility import lab_cluster
from scaleproof.validator.netlab.lab import Netlab, require
from scaleproof.validator.reconciliation.explain import Explanation, explain

_TIMEOUT_S: Final = 60.0
# A machine that others use can hide a fault and can look like one, so that runs are made again, so often at most.
_ATTEMPTS: Final = 3
# Beside three that spin, whoever has to use the same core gets a quarter of it.
_SPINNING: Final = 3
# Ends with the process that has started it, whatever becomes of that.
_SPIN: Final = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
while os.getppid() == int(sys.argv[2]):
    pass
"""
# Memory is so slow that paced updates are no longer than they should be while their core is idle, and are when it is not.
_CLUSTER: Final[dict[str, Any]] = {
    "nodes": 4,
    "node": {"cores": 2},
    "device": {"name": "a core", "peak": {"fp32": "50 GFLOP/s"}, "memory": "8 GiB", "memory_bandwidth": "3 GB/s"},
    "collectives": {"library": "gloo"},
}
# Layers take a core so long that it cannot be had for them at once, as it can for what slept most of the time.
_WIDE: Final = {"kind": "mlp", "layers": 6, "inputs": 1024, "hidden": 1024, "outputs": 1024}
_DEEP: Final = {"kind": "gpt", "layers": 8, "hidden": 128, "heads": 4, "vocabulary": 256, "sequence": 64}
Measure = Callable[["PlantedFault", bool], Run]


@dataclass(frozen=True)
class PlantedFault:
    """What is planted. kind, who: how reconcile is to name it. rates: of the links, without and with the fault on host 1.
    busy: the rank that is bound to a busy core, and the others to another one; None where no core is busy."""

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
        """As it is described, or as it is where a link is slow."""
        network: dict[str, Any] = {"bandwidth": self.rate, "latency": "60 us"}
        if with_fault and self.slow_rate:
            network["unlike"] = [{"at": [1], "bandwidth": self.slow_rate}]
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


# Ranks take turns, so that those that share a core do not hold one another up, and each message moves alone.
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
    """What came of a fault. expected: what is to be said of it. explanation: of the run that has it, held against a prediction
    that has not; healthy: of the run without it. attempts: how many runs of either kind it took."""

    name: str
    expected: str
    explanation: Explanation
    healthy: Explanation
    attempts: int

    @property
    def named(self) -> str:
        """What is said of it; nothing where it was not found, or where the run without it has faults as well."""
        return "" if self.healthy.faults else next((words for words in _words(self.explanation) if self.expected in words), "")


def find_faults(tell: Callable[[str], None]) -> list[Planted]:
    """Plants every fault in turn. tell: is told what is going on. Raises RunError where this machine cannot."""
    require()
    found = []
    for fault in FAULTS:
        tell(f"planting {fault.name}")
        found.append(planted(fault))
    return found


def planted(fault: PlantedFault, measure: Measure | None = None) -> Planted:
    """Runs what the fault is planted in, with it and without, again where that does not tell them apart. Raises RunError."""
    runs = measure or measured
    predicted = predict(fault.scenario(), interval=False)
    for attempt in range(1, _ATTEMPTS + 1):
        explanation, healthy = (explain(predicted, runs(fault, broken)) for broken in (True, False))
        result = Planted(fault.name, expected(fault), explanation, healthy, attempt)
        if result.named:
            break
    return result


def expected(fault: PlantedFault) -> str:
    """The words by which reconcile names it."""
    begin = {"messages": "messages from and to {}", "compute": "compute of {} takes", "updates": "updates on {} take"}
    return begin[fault.kind].format(fault.who)


def _words(explanation: Explanation) -> Sequence[str]:
    return [fault.words for fault in explanation.faults]


def measured(fault: PlantedFault, with_fault: bool) -> Run:
    """Trains in a lab, with the fault in it or without. Raises RunError where this machine cannot."""
    scenario = fault.scenario(with_fault)
    with Netlab(lab_cluster(scenario)) as lab, ExitStack() as stack:
        hosts = lab.ranks_hosts(scenario)
        if with_fault and fault.busy is not None:
            shared, own = _cores()
            hosts = [replace(host, cores=(own if rank == fault.busy else shared,)) for rank, host in enumerate(hosts)]
            for _ in range(_SPINNING):
                stack.enter_context(spinning(own))
        return measure_here(scenario, hosts, MeasureOptions(_TIMEOUT_S), "netlab")


def _cores() -> tuple[int, int]:
    """One for all ranks but one, and one for that. Raises RunError where there is no second."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise RunError("a busy core is planted beside one that is not, and this process may use one alone; allow it two")
    return usable[0], usable[-1]


@contextmanager
def spinning(core: int) -> Iterator[int]:
    """A process, by its id, that keeps a core of this machine busy while the context lasts."""
    # where the kernel shares cores among sessions first, one of its own has its part whoever else runs
    process = subprocess.Popen([sys.executable, "-S", "-c", _SPIN, str(core), str(os.getpid())], start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
