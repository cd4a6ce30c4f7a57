"""A study of 10,000 points: ResNet-50 by ring and by servers over workers, bandwidth and latency, on all cores of the machine;
then one core's time for it, for points one by one, and for 4,000 points that differ in their devices.

Run: python benchmarks/studies.py
"""

from __future__ import annotations

import math
import pickle
import tempfile
import time
from typing import Any

import numpy as np

from scaleproof.simulator.analysis.study.evaluate import rows
from scaleproof.simulator.analysis.study.study import read
from scaleproof.simulator.analysis.study.sweep import Task, sweep, tasks

_STUDY: dict[str, Any] = {
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
# Axes of the same study that replace those of links.
_DEVICES = {
    "cluster.device.peak.fp32": {"from": "5 TFLOP/s", "to": "50 TFLOP/s", "points": 20, "log": True},
    "cluster.device.memory_bandwidth": {"from": "300 GB/s", "to": "3000 GB/s", "points": 10, "log": True},
}
_ONE_BY_ONE = 50


def main() -> None:
    """Prints the time of each form of evaluation."""
    study = read(_STUDY)
    with tempfile.TemporaryDirectory() as folder:
        begun_s, first_s = time.perf_counter(), []
        found = sweep(study, folder, progress=lambda points: first_s.append(time.perf_counter()))
        took_s = time.perf_counter() - begun_s
    assert found["error"].isna().all()
    working_s = first_s[-1] - first_s[0]
    print(f"{len(study):,} points: {took_s:.2f} s with the start of processes, {len(study) / took_s:,.0f} points/s")
    print(f"  from the first task to the last: {working_s:.2f} s, {len(study) / working_s:,.0f} points/s")
    some = np.linspace(0, len(study) - 1, _ONE_BY_ONE, dtype=np.int64)
    together, alone = tasks(study, np.arange(len(study)), alone=8), [Task(some, together=False)]
    axes = {field: axis for field, axis in _STUDY["axes"].items() if not field.startswith("cluster")} | _DEVICES
    of_devices = read({**_STUDY, "axes": axes})
    for name, one, parts, intervals in (
        ("together", study, together, False),
        ("together, with intervals", study, together, True),
        ("one by one", study, alone, False),
        ("one by one, with intervals", study, alone, True),
        ("on different devices, together", of_devices, tasks(of_devices, np.arange(len(of_devices)), alone=8), False),
    ):
        begun_s, points = time.process_time(), sum(len(part.points) for part in parts)
        blob = pickle.dumps(one)
        for part in parts:
            rows(blob, part.points, intervals, part.together, math.inf)
        print(f"  {name}: {points / (time.process_time() - begun_s):,.0f} points per second of processor")


if __name__ == "__main__":
    main()
