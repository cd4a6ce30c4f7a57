"""A pipeline of 64 stages and 512 microbatches, every pass and message a task: built and replayed, against plain SimPy.

Run: python benchmarks/pipeline.py
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

import simpy

from scaleproof.simulator.engine import is_contended, replay
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.job import Job

_RUNS = 7
_MESSAGES = 100_000
_SCENARIO = {
    "model": {"kind": "gpt", "layers": 64, "hidden": 1024, "heads": 16, "vocabulary": 50257, "sequence": 1024},
    "cluster": {
        "nodes": 8,
        "node": {"devices": 8, "cards": 8, "link": {"bandwidth": "300 GB/s", "latency": "5 us"}},
        "network": {"bandwidth": "400 GB/s", "latency": "10 us"},
        "device": {
            "name": "even",
            "peak": {"fp32": "100 TFLOP/s"},
            "memory": "80 GiB",
            "memory_bandwidth": "2 TB/s",
        },
    },
    "strategy": {"kind": "pipeline", "stages": 64, "microbatches": 512, "schedule": "1f1b"},
    "batch": {"total": 512},
}


def _seconds(work: Callable[[], object]) -> float:
    """The shortest of several runs."""
    times = []
    for _ in range(_RUNS):
        start_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - start_s)
    return min(times)


def _plain_simpy() -> None:
    """Messages as the shortest process that SimPy lets one write: wait, put, get."""
    environment = simpy.Environment()
    queue = simpy.Store(environment)

    def rank() -> Generator[simpy.Event, object, None]:
        for _ in range(_MESSAGES):
            yield environment.timeout(1.0)
            queue.put(None)
            yield queue.get()

    environment.process(rank())
    environment.run()


def main() -> None:
    """Prints seconds of each part, and how many times faster a task is than plain SimPy's message."""
    scenario = Scenario.model_validate(_SCENARIO)

    def job() -> Job:
        return Job(scenario.model.build_layers(), scenario.cluster, scenario.samples_per_worker, "fp32", "adam")

    derived = job()
    program = compile_step(scenario.strategy, derived)
    timeline = replay.simulate(program, 1)
    message_s = _seconds(_plain_simpy) / _MESSAGES
    derive_s = _seconds(lambda: job().costs(512))
    build_s = _seconds(lambda: compile_step(scenario.strategy, derived))
    replay_s = _seconds(lambda: replay.simulate(program, 1))
    check_s = _seconds(lambda: is_contended(timeline))
    print(f"plain SimPy: {message_s * 1e6:.2f} us a message")
    print(f"{len(program):,} tasks, contended: {is_contended(timeline)}")
    print(f"layers and their costs: {derive_s:.4f} s")
    print(f"build: {build_s:.4f} s")
    print(f"replay of one step: {replay_s:.4f} s")
    both_s = build_s + replay_s
    print(f"build and replay: {both_s:.4f} s, {message_s * len(program) / both_s:,.0f} times faster a task")
    print(f"is it contended: {check_s:.4f} s")


if __name__ == "__main__":
    main()
