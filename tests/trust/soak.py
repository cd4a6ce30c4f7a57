"""Soak test: memory does not grow over a million points and thousands of scenarios in one process.

python -m tests.trust.soak 1000000

prints the resident memory of the process over time, and its growth over the second half.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.conftest import SMALL
from tests.trust.watched import InProcessExecutor

_MIB = 2**20


@dataclass(frozen=True)
class Soaked:
    """Resident bytes of a process at each of many instants. done: work units finished by then."""

    done: tuple[int, ...]
    resident_bytes: tuple[int, ...]

    @property
    def grown_bytes(self) -> float:
        """Growth over the second half, by a least-squares line."""
        half = len(self.done) // 2
        done, resident_bytes = np.array(self.done[half:], float), np.array(self.resident_bytes[half:], float)
        slope, _ = np.polyfit(done, resident_bytes, 1)
        return float(slope * (done[-1] - done[0]))

    def __str__(self) -> str:
        quarters = [self.resident_bytes[(len(self.done) - 1) * quarter // 4] / _MIB for quarter in range(5)]
        resident = ", ".join(f"{one:.0f}" for one in quarters)
        grown = f"grown in the second half: {self.grown_bytes / _MIB:+.1f}"
        return f"{self.done[-1]:,} done; MiB resident at each quarter: {resident}; {grown}"


def _soaked(counts: Iterable[int]) -> Soaked:
    """Records resident memory after each part of the work."""
    done, resident = [], []
    for count in itertools.accumulate(counts):
        done.append(count)
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
    return Soaked(tuple(done), tuple(resident))


def points(count: int) -> Soaked:
    """Points of one study, through what a sweep does with them: timed together, written as tables."""
    return _soaked(_swept(count))


def _swept(count: int) -> Iterator[int]:
    from scaleproof.simulator.analysis.study import executors
    from scaleproof.simulator.analysis.study.store import opened
    from scaleproof.simulator.analysis.study.study import read
    from scaleproof.simulator.analysis.study.sweep import done, tasks

    rates = max(1, round(count**0.5))
    numbers = {
        "cluster.network.bandwidth": {"from": "1 Gbit/s", "to": "100 Gbit/s", "points": rates},
        "cluster.network.latency": {"from": "1 us", "to": "1 ms", "points": -(-count // rates)},
    }
    study = read({"scenario": "resnet50-ring-p100", "axes": numbers})
    with tempfile.TemporaryDirectory() as name, opened(Path(name), study, intervals=False, resume=False) as results:
        for rows in done(study, tasks(study, np.arange(len(study)), 8), False, executors.Workers(InProcessExecutor, 1, ())):
            results.add(rows)
            yield len(rows)
        assert not len(results.todo())


def scenarios(count: int) -> Soaked:
    """Scenarios that are read and predicted one after another, all of them different."""
    return _soaked(_predicted(count))


def _predicted(count: int) -> Iterator[int]:
    from scaleproof.simulator.predict import predict
    from scaleproof.simulator.scenario.load import load

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "small.yaml"
        path.write_text(SMALL)
        for number in range(count):
            workers, layers = 1 + number % 16, 1 + number // 16
            strategy = f"strategy={{kind: data_parallel, workers: {workers}}}"
            predict(load(path, [strategy, "batch={per_worker: 2}", f"model.layers={layers % 50 + 1}", f"steps={2 + layers}"]))
            yield 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", type=int, help="of a study, timed together")
    parser.add_argument("--scenarios", type=int, default=10_000, help="predicted one by one (10000)")
    options = parser.parse_args(arguments)
    for what, soaked in (("points", points(options.points)), ("scenarios", scenarios(options.scenarios))):
        print(f"{what}: {soaked}", flush=True)
    print(f"{time.process_time():.0f} s of processor time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
