"""What points show that no prediction uses, in words, for readers of a cluster file: slow ranks, failed probes, and more."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from scaleproof.simulator.common.units import format_percent, format_time_s
from scaleproof.validator.estimation import groups
from scaleproof.validator.probe.points import (
    FAILED,
    FILES_DECODED,
    FILES_READ,
    NARROW,
    SKIPPED,
    SUSTAINED,
    TIME,
    UNEVEN_ALL_TO_ALL,
    Point,
    timed,
)

NAMES: Final = ("matmul", "message", "collective", "overlap", "update", "loading", "host_copy", "host_adam")
# Numbers of sustained products, and their units.
_STATE: Final = {"clock_MHz": "MHz", "power_W": "W", "temperature_C": "°C"}
# Fewest members to compare: of two that differ, either may be the slow one.
_ENOUGH: Final = 3


def remarks(points: Sequence[Point], taken: float = 0.0) -> dict[str, str]:
    """Text by the probe's name; nothing for a probe that did not run. taken: share of the processors that predictions leave to
    collectives next to products."""
    of_name: dict[str, Callable[[Sequence[Point]], Iterator[str]]] = {
        "matmul": _sustained,
        "message": partial(_longer, "exchange", "send", "messages in both directions"),
        "collective": partial(_longer, UNEVEN_ALL_TO_ALL, "alltoall", "all-to-alls whose busiest rank receives twice the mean"),
        "overlap": partial(_overlap, taken),
        "update": _update,
        "loading": _loading,
        "host_copy": _host_copies,
        "host_adam": _host_adam,
    }
    parts_of = {name: of_name[name](points) for name in NAMES}
    return {name: ", ".join(lines) for name, parts in parts_of.items() if (lines := list(parts))}


def _sustained(points: Sequence[Point]) -> Iterator[str]:
    """Rates of products over seconds, and the state of the GPU at the end."""
    for point in timed(points, "matmul"):
        if point.group == SUSTAINED:
            of_fastest = format_percent(min(point.seconds) / point.median_s, 0)
            state = [f"{point.numbers[name]:g} {unit}" for name, unit in _STATE.items() if name in point.numbers]
            at = f"at {' and '.join(state)}" if state else "nvidia-smi reports no clock"
            yield f"{point.what} {point.size / point.median_s / 1e12:.4g} TFLOP/s, {of_fastest} of the fastest sample ({at})"


def _longer(what: str, usual: str, name: str, points: Sequence[Point]) -> Iterator[str]:
    """Times of a kind of communication over those of the usual one, by group, at the largest size that both have."""
    usual_s = {
        (point.probe, point.ranks, point.size): point.median_s for point in points if point.what == usual and point.seconds
    }
    of_group: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        key = (point.probe, point.ranks, point.size)
        if point.what == what and point.seconds and key in usual_s:
            of_group[point.group][point.size].append(point.median_s / usual_s[key])
    for group, ratios in of_group.items():
        yield f"{name} take {statistics.median(ratios[max(ratios)]):.2f} times as long ({group})"


def _overlap(taken: float, points: Sequence[Point]) -> Iterator[str]:
    slower = {point.what: point.numbers["together_s"] / point.numbers["alone_s"] for point in timed(points, "overlap")}
    if slower.keys() >= {"compute", "communication"}:
        predicted = f" ({1 / (1 - taken):.2f} times by the processors that NCCL's channels occupy)" if taken else ""
        yield f"matrix products take {slower['compute']:.2f} times as long while an all-reduce runs{predicted}"
        yield f"the all-reduce takes {slower['communication']:.2f} times as long"


def _update(points: Sequence[Point]) -> Iterator[str]:
    """Update times at the largest size that all variants have, where time per parameter dominates; sorted by variant."""
    by_what: dict[str, dict[float, Point]] = defaultdict(dict)
    for point in timed(points, "update"):
        by_what[point.what][point.size] = point
    most = max(set.intersection(*map(set, by_what.values())), default=0) if by_what else 0
    if most:
        times = (f"{what} {1e9 * by_what[what][most].median_s / most:.3g} ns" for what in sorted(by_what))
        yield f"{', '.join(times)} per parameter"


def _loading(points: Sequence[Point]) -> Iterator[str]:
    """Times of batches; of a folder of files, what a scenario has in `input`."""
    for point in timed(points, "loading"):
        if point.what == FILES_READ:
            sample, rate = point.numbers["file_bytes"], point.size / point.median_s / 1e9
            cores = timed(points, "loading", FILES_DECODED)
            decode = f", decode: {format_time_s(cores[0].median_s / cores[0].size)}" if cores else ""
            readers = f"a file a sample, {point.numbers['readers']:g} threads that read"
            yield f"input: {{storage: {{sample: {sample:.0f} B, bandwidth: {rate:.3g} GB/s}}{decode}}} ({readers})"
        elif point.what != FILES_DECODED:
            yield f"{point.size:g} samples ({point.what}) {format_time_s(point.median_s)}"


def _host_copies(points: Sequence[Point]) -> Iterator[str]:
    """Rates of the largest copies between a host and its device; copies between devices are left out."""
    sizes = {
        point.what: point for point in sorted(timed(points, "host_copy"), key=lambda one: one.size) if "host" in point.what
    }
    yield from (f"{what} {one.size / one.median_s / 1e9:.3g} GB/s" for what, one in sizes.items())


def _host_adam(points: Sequence[Point]) -> Iterator[str]:
    for point in timed(points, "host_adam"):
        rate, size = f"{point.size / point.median_s / 1e9:.3g} billion parameters/s", f"{point.size / 1e6:.3g} M"
        yield f"{rate} on {point.numbers['cores']:g} cores, by torch's fused kernel over {size} parameters in fp32"


def slow_ranks(points: Sequence[Point]) -> list[str]:
    """A note for each rank that computes slower than the others, if enough ranks computed concurrently."""
    by_work: defaultdict[tuple[str, float], dict[int, float]] = defaultdict(dict)
    for point in timed(points, "layer"):
        if point.numbers["ranks"] >= _ENOUGH:
            by_work[point.what, point.size][point.ranks[0]] = point.median_s
    relative: defaultdict[int, list[float]] = defaultdict(list)
    for seconds in by_work.values():
        for rank, own_s in seconds.items():
            relative[rank].append(own_s / statistics.median(seconds.values()))
    own: dict[tuple[int, ...], float] = {(rank,): statistics.median(ratios) for rank, ratios in relative.items()}
    return [str(outlier) for outlier in groups.slow_members(own, "rank", "computes at")]


def failed(points: Sequence[Point]) -> list[str]:
    """The probes that failed or were skipped, each with the reason."""
    return [f"{point.what} {point.stopped}" for point in points if point.stopped.startswith((FAILED, SKIPPED))]


def stops(points: Sequence[Point]) -> dict[str, str]:
    """For each probe, the number of points that reached a narrow interval and of those that used up their time."""
    counts_of: dict[str, Counter[str]] = {}
    for point in points:
        if point.seconds:
            counts_of.setdefault(point.probe, Counter())[point.stopped] += 1
    text = ", ".join(f"{probe} {counts[NARROW]} narrow and {counts[TIME]} by time" for probe, counts in counts_of.items())
    return {"stopped": text} if text else {}
