"""Profiling: a few additional steps under torch's profiler, to compare its collectives with the recorder's.

Each rank writes a trace for chrome://tracing or perfetto.dev, and a table of its collectives: durations of their spans, and of
NCCL's kernels or gloo's work. Gloo's work ends after its callback, which Python may delay.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.record.recorder import RAW_SPAN

# Steps after the measured ones; in the first the profiler warms up.
PROFILED_STEPS: Final = 4
_PROFILER_WARMUP: Final = 1
_COLUMNS: Final = ("step", "group", "match", "size_bytes", "span_s", "work", "work_s")
# Element sizes by type name in traces: gloo's ranges have names of C++, NCCL's kernels those of torch.
_ELEMENT_BYTES: Final = {
    "float": 4, "double": 8, "c10::half": 2, "c10::bfloat16": 2, "half": 2, "bfloat16": 2, "int": 4, "long": 8, "long int": 8,
    "char": 1, "byte": 1,
}  # fmt: skip


class ProfiledCollective(NamedTuple):
    """A collective in a trace. sizes_bytes: sizes by which the recorder may know it."""

    name: str
    start_s: float
    duration_s: float
    sizes_bytes: frozenset[float]


def lengthened(scenario: Scenario) -> Scenario:
    """The scenario with the additional profiled steps, which ranks train like all others."""
    return scenario.model_copy(update={"steps": scenario.steps + PROFILED_STEPS})


class Profiler:
    """Profiles the last steps of a lengthened scenario on one rank. device: torch's."""

    def __init__(self, folder: Path, rank: int, device: Any) -> None:
        self._trace = folder / f"rank{rank}.json.gz"
        self._table = folder / f"rank{rank}.csv"
        self._device = device
        self._recorded: list[bytes] = []

    def noting(self, sink: Callable[[bytes], object]) -> Callable[[bytes], object]:
        """A sink for the recorder that passes spans to `sink` and keeps a copy."""

        def both(rows: bytes) -> None:
            self._recorded.append(rows)
            sink(rows)

        return both

    def trace(self, take: Callable[[int], None], steps: Sequence[int]) -> None:
        """Takes the steps by `take` and writes their trace. Raises RunError where it cannot be written."""
        from torch.profiler import profile, schedule

        # measured steps end before the profiler begins, and its warm-up ends before the kept steps begin
        self._synchronize()
        stages = schedule(wait=0, warmup=_PROFILER_WARMUP, active=len(steps) - _PROFILER_WARMUP)
        with profile(schedule=stages, record_shapes=True) as profiler:
            for step in steps[:-1]:
                take(step)
                self._synchronize()
                profiler.step()
            take(steps[-1])
        with _writing(self._trace.parent):
            self._trace.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(self._trace))

    def write_table(self) -> None:
        """Writes a row for each collective of the traced steps. Raises RunError where it cannot be written."""
        rows = np.frombuffer(b"".join(self._recorded), dtype=RAW_SPAN)
        kept = rows["step"] > rows["step"].max() - (PROFILED_STEPS - _PROFILER_WARMUP)
        spans = rows[kept & (rows["stream"] == Stream.COMMUNICATION) & (rows["phase"] == Phase.SYNCHRONISE)]
        spans = spans[np.argsort(spans["arrival_s"], kind="stable")]
        works = matched(spans["size_bytes"].tolist(), read_works(self._trace))
        with _writing(self._table.parent), self._table.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(_COLUMNS)
            for span, work in zip(spans, works, strict=True):
                labels = [span[name] for name in _COLUMNS[:3]]
                own = [f"{span['size_bytes']:.0f}", f"{span['end_s'] - span['arrival_s']:.9f}"]
                table.writerow([*labels, *own, *((work.name, f"{work.duration_s:.9f}") if work else ("", ""))])

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"the profile could not be written to {folder}: {error.strerror}; give another folder") from None


def matched(sizes_bytes: Sequence[float], works: Sequence[ProfiledCollective]) -> list[ProfiledCollective | None]:
    """For each span's size, in order of their begin, the first unmatched collective of that size; None if all are matched."""
    left = sorted(works, key=lambda work: work.start_s)
    matches: list[ProfiledCollective | None] = []
    for size_bytes in sizes_bytes:
        place = next((place for place, work in enumerate(left) if size_bytes in work.sizes_bytes), None)
        matches.append(None if place is None else left.pop(place))
    return matches


def read_works(trace_path: Path) -> list[ProfiledCollective]:
    """Collectives in a trace: kernels of NCCL, which have numbers of elements, or ranges of gloo, which have shapes."""
    with gzip.open(trace_path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    return [
        ProfiledCollective(name, event["ts"] * 1e-6, event["dur"] * 1e-6, sizes) for event, name, sizes in _collectives(events)
    ]


def _collectives(events: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str, frozenset[float]]]:
    for event in events:
        arguments, name = event.get("args", {}), event.get("name", "")
        if event.get("cat") == "kernel" and name.startswith("nccl"):
            element_bytes = _ELEMENT_BYTES.get(str(arguments.get("dtype", "")).lower(), 0)
            elements = {arguments.get(f"{way} msg nelems", 0) for way in ("In", "Out")}
            yield event, arguments.get("Collective name", name), frozenset(float(n * element_bytes) for n in elements)
        elif event.get("cat") == "user_annotation" and name.startswith("gloo:"):
            shapes = zip(arguments.get("Input Dims", ()), arguments.get("Input type", ()), strict=True)
            sizes = [prod(dims) * _ELEMENT_BYTES.get(kind.lower(), 0) for dims, kind in shapes]
            yield event, name.removeprefix("gloo:"), frozenset([float(sum(sizes))])
