"""Flows on one link: the allocator's cost per flow against bare SimPy's for the same two events; a fabric of 512 flows; and an
all-to-all of a million messages.

A flow is a start and an end. A fixed number of flows is always active: where one ends, the next starts after a short
pause. Bare SimPy knows beforehand how long each flow takes and makes a timeout for its start and one for its end. The allocator
shares the link: every start and end changes the rates of all who are there.

Run: python benchmarks/flows.py
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import numpy as np
import simpy

from scaleproof.simulator.engine.max_min import Allocator, finish_times
from scaleproof.simulator.program import Use

_FLOWS = 20_000
_REPEATS = 7

# what starts a flow, made of the flows' sizes and of what to call at the end of one
Starter = Callable[[Iterator[float], Callable[..., None]], Callable[[simpy.Event], None]]


def _run(environment: simpy.Environment, at_a_time: int, starter: Starter) -> float:
    """Seconds that all flows take to simulate."""
    generator = np.random.default_rng(0)
    sizes = iter(generator.uniform(0.5, 1.5, _FLOWS).tolist())
    pauses_s = iter(generator.uniform(0.01, 0.03, _FLOWS).tolist())

    def end(_: object = None) -> None:
        if (pause_s := next(pauses_s, None)) is not None:
            environment.timeout(pause_s).callbacks.append(start)

    start = starter(sizes, end)
    for _ in range(at_a_time):
        end()
    begin = time.perf_counter()
    environment.run()
    seconds = time.perf_counter() - begin
    assert next(sizes, None) is None
    return seconds


def bare(at_a_time: int) -> float:
    """Two timeouts a flow, which takes as long as its share of the link would let it on average."""
    environment = simpy.Environment()

    def starter(sizes: Iterator[float], end: Callable[..., None]) -> Callable[[simpy.Event], None]:
        def start(_: simpy.Event) -> None:
            environment.timeout(next(sizes) * at_a_time).callbacks.append(end)

        return start

    return _run(environment, at_a_time, starter)


def shared(at_a_time: int) -> float:
    """One link that carries one unit of size a second."""
    environment = simpy.Environment()
    allocator, uses = Allocator(environment, [1.0]), (Use(0),)

    def starter(sizes: Iterator[float], end: Callable[..., None]) -> Callable[[simpy.Event], None]:
        def start(_: simpy.Event) -> None:
            allocator.start(next(sizes), math.inf, 1.0, uses, end)

        return start

    return _run(environment, at_a_time, starter)


def leaf_spine(leaves: int, hosts: int, spines: int, flows: int) -> float:
    """Seconds for flows of random sizes between random hosts, all at once; links up and down, no oversubscription."""
    generator = np.random.default_rng(0)
    ends = generator.permuted(np.tile(np.arange(leaves * hosts), (flows, 1)), axis=1)[:, :2].tolist()
    in_host, up, down = leaves * hosts, 2 * leaves * hosts, 2 * leaves * hosts + leaves * spines
    routes = []
    for (source, target), spine in zip(ends, generator.integers(spines, size=flows).tolist(), strict=True):
        climb = [up + source // hosts * spines + spine, down + target // hosts * spines + spine]
        routes.append([source, *(climb if source // hosts != target // hosts else []), in_host + target])
    bandwidth_Bps = np.repeat([12.5e9, 12.5e9 * hosts / spines], [2 * leaves * hosts, 2 * leaves * spines])
    sizes_bytes = generator.uniform(1e6, 1e8, flows)
    begin = time.perf_counter()
    ends_s = finish_times(bandwidth_Bps, routes, sizes_bytes, np.zeros(flows))
    assert (ends_s >= sizes_bytes / 12.5e9 * (1 - 1e-9)).all()
    return time.perf_counter() - begin


def alltoall(leaves: int, hosts: int, spines: int, oversubscription: float) -> float:
    """Seconds for a message between every two hosts, all at once; the spine follows from the sum of both numbers."""
    ranks = leaves * hosts
    source, target = np.nonzero(~np.eye(ranks, dtype=np.bool_))
    spine, crosses = (source + target) % spines, source // hosts != target // hosts
    up = 2 * ranks + source // hosts * spines + spine
    down = 2 * ranks + (leaves + target // hosts) * spines + spine
    routes = np.stack([source, ranks + target, up, down], axis=1).tolist()
    for index in np.flatnonzero(~crosses).tolist():
        del routes[index][2:]
    up_Bps = 12.5e9 * hosts / spines / oversubscription
    bandwidth_Bps = np.repeat([12.5e9, up_Bps], [2 * ranks, 2 * leaves * spines])
    begin = time.perf_counter()
    ends_s = finish_times(bandwidth_Bps, routes, np.full(len(routes), 1e6), np.zeros(len(routes)))
    seconds = time.perf_counter() - begin
    # the busiest links, up and down of a leaf, are full from begin to end
    assert math.isclose(ends_s.max(), 1e6 * hosts * (ranks - hosts) / spines / up_Bps, rel_tol=1e-9)
    return seconds


def main() -> None:
    """Prints microseconds a flow and the ratio, then the seconds of the fabric and of the all-to-all: the least of several
    runs."""
    for at_a_time in (1, 2, 8, 64):
        # alternately, so that other load affects both equally
        pairs = [(bare(at_a_time), shared(at_a_time)) for _ in range(_REPEATS)]
        bare_us, shared_us = (min(column) / _FLOWS * 1e6 for column in zip(*pairs, strict=True))
        times = f"SimPy {bare_us:.2f} us a flow, allocator {shared_us:.2f} us"
        print(f"{at_a_time} at a time: {times}, {shared_us / bare_us:.2f} times as much")
    for leaves, hosts, spines in ((8, 16, 4), (16, 16, 8)):
        seconds = min(leaf_spine(leaves, hosts, spines, 512) for _ in range(3))
        print(f"512 flows over {leaves} leaves of {hosts} hosts and {spines} spines: {seconds:.2f} s")
    seconds = min(alltoall(32, 32, 16, 2.0) for _ in range(3))
    print(f"all-to-all of 1,024 ranks, 1,047,552 messages over 32 leaves of 32 hosts and 16 spines: {seconds:.2f} s")


if __name__ == "__main__":
    main()
