"""A study of 10,000 points: ResNet-50 by ring and by servers over workers, bandwidth and latency, on all cores of the machine;
then one core's time for it, and for as many points one by one.

Run: python benchmarks/studies.py
"""

from __future__ import annotations

import math
import pickle
import tempfile
import time

import numpy as np

from simulator.study import sweep
from simulator.study.rows import rows
from simulator.study.running import Task, tasks
from simulator.study.study import read

_STUDY = {
    "scenario": {
        "model": "resnet50",
        "cluster": "p100-25gbe",
        "strategy": "data_parallel",
        "batch": {"per_worker": 64},
        "training": {"optimizer": "momentum"},
    },
    "axes": {
        "strategy": {"ring": {"kind": "data_parallel"}, "servers": {"kind": "parameter_server", "servers": 4}},
        "strategy.workers": [2, 4, 6, 8, 12, 16, 20, 24, 28, 32],
        "cluster.network.bandwidth": {"from": "1 Gbit/s", "to": "100 Gbit/s", "points": 20, "log": True},
        "cluster.network.latency": {"from": "1 us", "to": "1 ms", "points": 25, "log": True},
    },
}
_ONE_BY_ONE = 50


def main() -> None:
    """Prints a line for each."""
    study = read(_STUDY)
    with tempfile.TemporaryDirectory() as folder:
        begun_s, first_s = time.perf_counter(), []
        found = sweep(study, folder, told=lambda points: first_s.append(time.perf_counter()))
        took_s = time.perf_counter() - begun_s
    assert found["error"].isna().all()
    working_s = first_s[-1] - first_s[0]
    print(f"{len(study):,} points: {took_s:.2f} s with the start of processes, {len(study) / took_s:,.0f} points/s")
    print(f"  from the first task to the last: {working_s:.2f} s, {len(study) / working_s:,.0f} points/s")
    blob = pickle.dumps(study)
    some = np.linspace(0, len(study) - 1, _ONE_BY_ONE, dtype=np.int64)
    together, alone = tasks(study, np.arange(len(study)), alone=8), [Task(some, together=False)]
    for name, parts, intervals in (
        ("together", together, False),
        ("together, with intervals", together, True),
        ("one by one", alone, False),
        ("one by one, with intervals", alone, True),
    ):
        begun_s, points = time.process_time(), sum(len(part.points) for part in parts)
        for part in parts:
            rows(blob, part.points, intervals, part.together, math.inf)
        print(f"  {name}: {points / (time.process_time() - begun_s):,.0f} points per second of processor")


if __name__ == "__main__":
    main()
