"""Artificial points of clusters with known numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from scaleproof.validator.calibration.cluster_file.from_points import CalibrationFacts
from scaleproof.validator.probe.points import Point

SIZES = tuple(4**power for power in range(1, 13))
LATENCY_S = 60e-6
BANDWIDTH_BPS = 60e6
BASE: dict[str, Any] = {
    "name": "lab",
    "description": "four hosts",
    "nodes": 4,
    "node": {"devices": 1},
    "network": {"bandwidth": "500 Mbit/s", "latency": "50 us"},
    "device": {"name": "cpu", "peak": {"fp32": "50 GFLOP/s"}, "memory": "8 GiB", "memory_bandwidth": "10 GB/s"},
    "collectives": {"library": "gloo"},
}


def times(median_s: float, count: int = 9, noise: float = 0.01, seed: int = 0) -> tuple[float, ...]:
    """Repetitions around a median."""
    return tuple((median_s * np.exp(noise * np.random.default_rng(seed).standard_normal(count))).tolist())


def sends(
    pairs: Sequence[tuple[int, int]],
    group: str = "same leaf",
    rate: Callable[[int, int], float] = lambda one, other: BANDWIDTH_BPS,
    latency_s: float = LATENCY_S,
    sizes: Sequence[int] = SIZES,
    what: str = "send",
) -> list[Point]:
    """Messages that take latency + size / rate of their pair."""
    return [
        Point(
            "message", what, f"rank {a} to rank {b}", (a, b), group, size, "bytes",
            times(latency_s + size / rate(a, b), seed=hash((a, b, size)) % 2**31), "narrow", 0.8,
        )
        for a, b in pairs
        for size in sizes
    ]  # fmt: skip


def all_pairs(ranks: int) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(ranks), 2))


def sums(ranks: int, nodes: int, latency_s: float, rate_Bps: float, op: str = "all_reduce") -> list[Point]:
    """A collective that takes latency + size / rate."""
    return [
        Point(
            "collective", op, f"ranks 0-{ranks - 1}", tuple(range(ranks)), f"{ranks} ranks on {nodes} nodes", size, "bytes",
            times(latency_s + size / rate_Bps, seed=size), "time", 1.2, {"nodes": float(nodes)},
        )
        for size in SIZES[3:]
    ]  # fmt: skip


def facts(base: Mapping[str, Any] | None = BASE, nodes: Sequence[int] = range(4), on: str = "netlab") -> CalibrationFacts:
    return CalibrationFacts(on, tuple(nodes), "fp32", base, {"host": "here", "date": "2026-01-01"})
