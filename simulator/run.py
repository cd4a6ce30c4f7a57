"""Run: what a prediction and a measurement both return.

The summary is always there; spans (who did what, when) only on request. Everything that is derived from spans is derived
here, once, for both sides.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

Origin = Literal["predicted", "measured"]


class Phase(IntEnum):
    """What a rank does in a span."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    SYNCHRONISE = 3
    SEND = 4
    RECEIVE = 5
    WAIT = 6
    INPUT = 7

    @property
    def label(self) -> str:
        return self.name.lower()


class Stream(IntEnum):
    """MAIN is what holds a rank up: its spans never overlap. COMMUNICATION runs beside it."""

    MAIN = 0
    COMMUNICATION = 1


COMPUTE_PHASES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
_SUMMARY: Final = (
    "origin", "scenario", "strategy", "ranks", "compute_ranks", "samples", "step_time_s", "samples_per_s", "efficiency",
    "baseline", "breakdown_s", "phase_s", "memory_bytes_per_rank", "memory_bytes", "fits", "fit_by", "step_times_s",
    "provenance", "rank_names",
)  # fmt: skip
BREAKDOWN: Final = (
    "compute", "exposed_communication", "bubble", "waiting_for_server", "waiting_for_ranks", "waiting_for_input", "other",
)  # fmt: skip
SPAN_COLUMNS: Final[dict[str, type]] = {
    "rank": np.int32,
    "step": np.int32,
    "stream": np.int8,
    "phase": np.int8,
    "stage": np.int32,
    "microbatch": np.int32,
    "arrival_s": np.float64,
    "start_s": np.float64,
    "end_s": np.float64,
    "size_bytes": np.float64,
}


@dataclass(frozen=True)
class Spans:
    """Columns of equal length, one row per span.

    arrival_s: when the rank was ready for it; start_s: when work or bytes began to move; end_s: when it was done.
    [arrival, start) is waiting for others, [start, end) is doing; compute never waits, so its arrival is its start.
    stage and microbatch are −1 where they do not apply.
    A WAIT span is waiting for a server from arrival to end, an INPUT span for samples. Seconds count from the same zero on
    all ranks.
    """

    rank: NDArray[np.int32]
    step: NDArray[np.int32]
    stream: NDArray[np.int8]
    phase: NDArray[np.int8]
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    arrival_s: NDArray[np.float64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    size_bytes: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.rank)

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> Spans:
        """Spans from any sequences of equal length, one per column."""
        return cls(**{name: np.asarray(columns[name], dtype=kind) for name, kind in SPAN_COLUMNS.items()})

    def columns(self) -> dict[str, NDArray[Any]]:
        return {name: getattr(self, name) for name in SPAN_COLUMNS}

    def where(self, mask: NDArray[np.bool_]) -> Spans:
        """The rows that `mask` selects."""
        return Spans(**{name: column[mask] for name, column in self.columns().items()})


@dataclass(frozen=True)
class Run:
    """One training run, predicted or measured.

    scenario: its name. ranks: processes or devices; compute_ranks: those that train (the rest are servers).
    samples: per step, over all workers. step_time_s: slope over steady steps. phase_s: mean seconds per step and training
    rank in each phase on its main stream. breakdown_s: the same time by cause, adding up to step_time_s.
    efficiency and baseline: weak and strong scaling against a named run; absent until there is one.
    memory_bytes_per_rank: of the training rank that needs the most, at its peak; memory_bytes: the same by what holds it.
    fits: whether the device has as much. fit_by: what to set so that it does, where it does not. None and "" until known.
    """

    origin: Origin
    scenario: str
    strategy: str
    ranks: int
    compute_ranks: int
    samples: int
    step_time_s: float
    step_times_s: tuple[float, ...]
    phase_s: Mapping[str, float]
    breakdown_s: Mapping[str, float]
    efficiency: Mapping[str, float] | None = None
    baseline: Mapping[str, str] | None = None
    memory_bytes_per_rank: float | None = None
    memory_bytes: Mapping[str, float] | None = None
    fits: bool | None = None
    fit_by: str = ""
    provenance: Mapping[str, str] = field(default_factory=dict)
    rank_names: tuple[str, ...] = ()
    spans: Spans | None = None

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.step_time_s if self.step_time_s > 0 else float("inf")

    @property
    def samples_per_s_per_rank(self) -> float:
        return self.samples_per_s / self.compute_ranks

    def summary(self) -> dict[str, Any]:
        """Everything but the spans, as plain data for JSON."""
        plain = {name: getattr(self, name) for name in _SUMMARY}
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in plain.items()}


def from_spans(
    spans: Spans,
    step_ends_s: NDArray[np.float64],
    *,
    servers: NDArray[np.bool_],
    multiplicity: NDArray[np.int64] | None = None,
    **fields: Any,
) -> Run:
    """A Run whose step time, phases and breakdown are derived from spans of steady steps.

    step_ends_s: when each step ended, on the last rank; the first entry is the end of the step before the first steady one,
    so steps 1, 2, … of the spans lie between consecutive entries (spans of step 0 do not count).
    servers: for each rank of the spans, whether it is a server. multiplicity: how many ranks each stands for, one if absent.
    """
    count = np.ones(len(servers), dtype=np.int64) if multiplicity is None else multiplicity
    step_time_s = slope(step_ends_s)
    main = spans.where((spans.step >= 1) & (spans.stream == Stream.MAIN) & ~servers[spans.rank])
    share = count[main.rank] / (count[~servers].sum() * (len(step_ends_s) - 1))
    # measured steps vary: parts are scaled to the step they are parts of, which the slope describes best
    mean_s = float(step_ends_s[-1] - step_ends_s[0]) / (len(step_ends_s) - 1)
    share = share * (step_time_s / mean_s if mean_s > 0 else 1.0)
    breakdown = _breakdown_s(main, share)
    breakdown["other"] = step_time_s - sum(breakdown.values())
    return Run(
        ranks=int(count.sum()),
        compute_ranks=int(count[~servers].sum()),
        step_time_s=step_time_s,
        step_times_s=tuple(float(t) for t in np.diff(step_ends_s)),
        phase_s=_phase_s(main, share),
        breakdown_s=breakdown,
        spans=spans,
        **fields,
    )


def slope(ends_s: NDArray[np.float64]) -> float:
    """Seconds per step: the median slope over windows of two steps.

    Single slow steps do not move it, and steps that are long and short in turn count with their mean.
    """
    window = min(2, len(ends_s) - 1)
    return float(np.median(ends_s[window:] - ends_s[:-window])) / window


def _phase_s(main: Spans, share: NDArray[np.float64]) -> dict[str, float]:
    """Mean seconds per step and training rank in each phase, waiting included."""
    total = np.bincount(main.phase, weights=(main.end_s - main.arrival_s) * share, minlength=len(Phase))
    return {phase.label: float(total[phase]) for phase in Phase}


def _breakdown_s(main: Spans, share: NDArray[np.float64]) -> dict[str, float]:
    """Seconds by cause: doing is compute or exposed communication; waiting goes by whom the rank waits for."""
    doing, waiting = (main.end_s - main.start_s) * share, (main.start_s - main.arrival_s) * share
    compute = np.isin(main.phase, COMPUTE_PHASES)
    peers = np.isin(main.phase, (Phase.SEND, Phase.RECEIVE))
    server, ranks = main.phase == Phase.WAIT, main.phase == Phase.SYNCHRONISE
    parts = {
        "compute": doing[compute].sum(),
        "exposed_communication": doing[peers | ranks].sum(),
        "bubble": waiting[peers].sum(),
        "waiting_for_server": (doing + waiting)[server].sum(),
        "waiting_for_ranks": waiting[ranks].sum(),
        "waiting_for_input": (doing + waiting)[main.phase == Phase.INPUT].sum(),
    }
    return {name: float(value) for name, value in parts.items()}


def save(run: Run, folder: Path) -> None:
    """Writes `run.json`, and `spans.npz` where the run has spans, each aside and then renamed."""
    folder.mkdir(parents=True, exist_ok=True)
    if run.spans is not None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **run.spans.columns())
        write_aside(folder / "spans.npz", buffer.getvalue())
    write_aside(folder / "run.json", (json.dumps(run.summary(), indent=2) + "\n").encode())


def load_run(folder: Path) -> Run:
    """The run that `save` wrote into `folder`. Raises OSError, ValueError or KeyError when it is not one."""
    plain = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    plain.pop("samples_per_s")
    for name in ("step_times_s", "rank_names"):
        plain[name] = tuple(plain[name])
    spans_file = folder / "spans.npz"
    if spans_file.is_file():
        # through memory, so that a damaged file is not left open
        with np.load(io.BytesIO(spans_file.read_bytes()), allow_pickle=False) as columns:
            plain["spans"] = Spans.of(columns)
    return Run(**plain)


def write_aside(path: Path, content: bytes) -> None:
    """Writes a file so that it is either the old one or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    aside.write_bytes(content)
    aside.replace(path)
