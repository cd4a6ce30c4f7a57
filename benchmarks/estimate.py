"""How many configurations a second are estimated, time and memory, for GPT-3 175B on up to 4,096 GPUs; what a whole plan for
1,024 takes; and how far estimates are from predictions.

Run: python benchmarks/estimate.py
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from scaleproof.simulator.analysis.planner.estimate import every, memory_bytes, step_times
from scaleproof.simulator.analysis.planner.search import plan
from scaleproof.simulator.analysis.planner.space import space
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load

_MOST_GPUS = 4096
_PLANNED = 1024
_BATCH = 1536
_DRAWN = 40
# Stages into which 96 layers divide evenly.
_STAGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96)
_ERRORS = {
    "megatron-175b-3d-selene": (("batch=1536",), 1024),
    "llama-2-7b-fsdp-a100": (("strategy={kind: hybrid, workers: 8, overlap: true}",), 32),
    "mixtral-8x7b-experts-h100": (("batch=512",), 128),
    "resnet50-ring-p100": (("strategy={kind: hybrid, workers: 8, overlap: true}", "batch=512"), 16),
    "bert-large-power-sgd-10gbe": (("strategy={kind: hybrid, workers: 8}", "batch=256"), 16),
}


def rates() -> None:
    """Prints the times of a first call, tables included, and of a second in the same process."""
    scenario = load("megatron-175b-3d-selene", (f"batch={_BATCH}", f"cluster.nodes={_MOST_GPUS // 8}"))
    ranks = tuple(2**power for power in range(3, _MOST_GPUS.bit_length()))
    whole = replace(space(scenario, _MOST_GPUS), ranks=ranks, stages=_STAGES)
    for call in ("first call", "second call"):
        marks_s = [time.perf_counter()]
        found = every(whole)
        marks_s.append(time.perf_counter())
        step_times(found)
        marks_s.append(time.perf_counter())
        memory_bytes(found)
        marks_s.append(time.perf_counter())
        parts = ", ".join(
            f"{name} {took:.2f} s" for name, took in zip(("enumerate", "time", "memory"), np.diff(marks_s), strict=True)
        )
        rate = len(found) / (marks_s[-1] - marks_s[0])
        print(f"{call}: {len(found):,} configurations, {parts}: {rate:,.0f} a second")


def plans() -> None:
    """Prints the time of a whole plan, with the intervals of its results."""
    scenario = load("megatron-175b-3d-selene", (f"batch={_BATCH}",))
    for call in ("first call", "second call"):
        began_s = time.perf_counter()
        planned = plan(scenario, _PLANNED)
        planned.configurations.response(np.array([choice.row for choice in planned.best]))
        took_s = time.perf_counter() - began_s
        count = f"{len(planned.configurations):,}"
        searched = f"{planned.replayed} replayed and {planned.predicted} predicted in {planned.search_s:.2f} s"
        detail = f"estimated in {planned.estimate_s:.2f} s, {searched}"
        detail += f", proved: {planned.proved}"
        print(f"plan for {_PLANNED:,} GPUs, {call}: {took_s:.2f} s; {count} {detail}")


def errors() -> None:
    """Prints errors of estimates, and how many times as long predictions take, of random configurations with small programs."""
    for name, (overrides, ranks) in _ERRORS.items():
        found = every(space(load(name, overrides), ranks))
        pieces = np.where(found.zero >= 2, 60, found.stages) * found.microbatches * found.chunks
        rows = np.random.default_rng(0).choice(np.flatnonzero(pieces < 20_000), _DRAWN, replace=False)
        began_s = time.perf_counter()
        times = step_times(found)
        each_s = (time.perf_counter() - began_s) / len(found)
        began_s = time.perf_counter()
        predicted_s = np.array([timed(found.scenario(row)).step_time_s for row in rows.tolist()])
        ratio = (time.perf_counter() - began_s) / len(rows) / each_s
        off, least = np.abs(times.expected_s[rows] / predicted_s - 1), times.least_s[rows] / predicted_s - 1
        print(
            f"{name:<28} {len(found):>8,}: median {np.median(off):.2%}, 95th percentile {np.quantile(off, 0.95):.1%}, worst "
            f"{off.max():.1%}; bound {np.median(least):+.2%} in the median, {least.max():+.2%} at most; "
            f"prediction takes {ratio:,.0f} times as long"
        )


if __name__ == "__main__":
    rates()
    plans()
    errors()
