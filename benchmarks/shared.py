"""How far replay of declared sharing is from the events engine, over parameter servers of many shapes.

Run: python benchmarks/shared.py
"""

from __future__ import annotations

import itertools
import time

import numpy as np

from scaleproof.simulator.engine import events, replay
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.job import Job

_WORKERS = (2, 3, 8, 13, 16, 30)
_SERVERS = (1, 2, 3, 5, 8)
_DEVICES = (1, 2, 4, 8)


def _scenario(workers: int, servers: int, devices: int, placement: str) -> Scenario:
    return Scenario.model_validate(
        {
            "model": {"kind": "gpt", "layers": 6, "hidden": 64, "heads": 4, "vocabulary": 256, "sequence": 32},
            "cluster": {
                "nodes": 64,
                "node": {"devices": devices, "link": {"bandwidth": "10 GB/s", "latency": "5 us"}},
                "network": {"bandwidth": "10 Gbit/s", "latency": "20 us"},
                "device": {
                    "name": "small",
                    "peak": {"fp32": "1 TFLOP/s"},
                    "memory": "8 GiB",
                    "memory_bandwidth": "100 GB/s",
                },
            },
            "strategy": {"kind": "parameter_server", "workers": workers, "servers": servers, "placement": placement},
            "batch": {"total": workers},
        }
    )


def _error(scenario: Scenario) -> tuple[float, float, float]:
    """The relative error of the step time, and the seconds that replay and events took."""
    job = Job(scenario.model.build_layers(), scenario.cluster, scenario.samples_per_worker, "fp32", "sgd")
    program = compile_step(scenario.strategy, job)
    steps_s, took_s = [], []
    for simulate in (replay.simulate_concurrent, events.simulate):
        start_s = time.perf_counter()
        timeline = simulate(program, 3)
        took_s.append(time.perf_counter() - start_s)
        steps_s.append(np.diff(timeline.step_ends_s())[-1])
    return float(steps_s[0] / steps_s[1] - 1), took_s[0], took_s[1]


def main() -> None:
    """Prints the errors of each placement, and the worst shape."""
    for placement in ("dedicated", "colocated"):
        shapes = list(itertools.product(_WORKERS, _SERVERS, _DEVICES))
        found = np.array([_error(_scenario(*shape, placement)) for shape in shapes])
        errors = np.abs(found[:, 0])
        worst = int(errors.argmax())
        print(
            f"{placement}: {len(shapes)} shapes, error of the step time: median {np.median(errors):.2g}, "
            f"{(errors > 1e-9).sum()} above 1e-9, worst {found[worst, 0]:+.2g} "
            "at {} workers, {} servers, {} devices a node; ".format(*shapes[worst])
            + f"replay {1e3 * np.median(found[:, 1]):.2f} ms, events {1e3 * np.median(found[:, 2]):.2f} ms"
        )


if __name__ == "__main__":
    main()
