"""Run: the result of a prediction or a measurement, and how it is derived from spans, saved and loaded.

A Run always has a summary; spans, which are intervals of each rank's work, waiting and communication, are optional.
"""

from __future__ import annotations

import glob
import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.spans import TimeIntervals

Origin = Literal["predicted", "measured"]


class Phase(IntEnum):
    """The kind of work, communication or waiting in a span."""

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
        """The phase's name in lower case."""
        return self.name.lower()


class Stream(IntEnum):
    """MAIN: compute and waiting of a rank, whose spans never overlap. COMMUNICATION: transfers, which overlap with MAIN."""

    MAIN = 0
    COMMUNICATION = 1


COMPUTE_PHASES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
COMMUNICATION_PHASES: Final = (Phase.SYNCHRONISE, Phase.SEND, Phase.RECEIVE)
SPANS_FILE: Final = "spans.npz"
# Key of the digest of the spans in `run.json`; its value is "" without spans.
_SPANS_DIGEST: Final = "spans_digest"
# Maximum size of all columns, uncompressed: fifty million spans.
_MOST_SPANS_BYTES: Final = 2 * 2**30
# Properties that a summary has in addition to the fields.
_DERIVED: Final = (
    "samples_per_s", "samples_per_s_per_rank", "tokens_per_s", "tokens_per_s_per_rank", "mfu", "hfu", "bubble_fraction",
    "time_to_target_s", "time_to_target_interval_s",
)  # fmt: skip
BREAKDOWN: Final = (
    "compute", "slowest_rank", "exposed_communication", "bubble", "waiting_for_server", "waiting_for_ranks",
    "waiting_for_input", "other",
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
    """Spans as columns of equal length, one row per span.

    arrival_s: the rank is ready; start_s: work or transfer begins; end_s: it is complete. [arrival, start) is waiting for other
    ranks, [start, end) is work or transfer; compute never waits, so that its arrival is its start. A WAIT span is waiting for a
    server from arrival to end, an INPUT span waiting for samples. Times have the same origin on all ranks.
    stage, microbatch: −1 where they do not apply.
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
        """The columns by name, in the order of `SPAN_COLUMNS`."""
        return {name: getattr(self, name) for name in SPAN_COLUMNS}

    def where(self, mask: NDArray[np.bool_]) -> Spans:
        """The rows that `mask` selects."""
        return Spans(**{name: column[mask] for name, column in self.columns().items()})


@dataclass(frozen=True)
class Run:
    """One training run, predicted or measured. Fields are None or empty where they are unknown.

    scenario: its name. framework: the training software of a predicted run; framework_is_default: whether the scenario left it
    out. ranks: processes or devices; compute_ranks: those that train (the others are servers).
    samples: per step, over all workers; tokens: per step, if the model reads tokens.
    step_time_s: slope over steady steps. phase_s: mean seconds per step and training rank in each phase of its main stream.
    breakdown_s: step time by cause, adding up to step_time_s; "slowest_rank" is the predicted difference between the compute
    time of the slowest rank that others wait for and the mean. communication_s: mean seconds per step and training rank with
    transfers in flight: "exposed" while the rank waits for them, "hidden" while it computes or waits for something else.
    model_flops: of a step's forward and backward passes over all samples; hardware_flops: including recomputation;
    peak_flops: FLOP/s of a training rank's device at the training precision.
    efficiency, speed_up, baseline: for weak and strong scaling, against the run that `baseline` describes.
    memory_bytes_per_rank: peak of the training rank that needs the most; memory_bytes: the same by holder;
    memory_by_stage: `name`, `total_bytes` and `holders_bytes` of each kind of training rank; capacity_bytes: capacity of a
    rank; fits: whether it suffices; fit_by: settings with which it does. energy_J, cost_USD: "per_step", "per_million_samples"
    and, with tokens, "per_million_tokens". servers: statistics of parameter servers and their workers, see
    `simulator.run.staleness.summary`. to_target: updates and samples to a target loss, see
    `simulator.scenario.convergence.to_target`.

    Only predicted runs: prediction_interval_s, the 90 % interval of the step time under uncertain cluster parameters; spread:
    the share of the variance of its logarithm that each parameter causes, the largest first. Only measured runs: compute, real
    or emulated by waiting for the predicted time ("paced"), so that the run measures communication; step_time_interval_s: 95 %
    confidence interval, if there are enough steps; losses: of each step, mean over the samples; update_losses: of each update
    after the warm-up, over its samples, if workers are asynchronous; verified: `rule`, `deviation` and `tolerance` of the
    parameters against those of one process that follows the same rule. Their memory_bytes are those that torch's allocator has
    allocated, and those that it has reserved in addition.
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
    communication_s: Mapping[str, float] = field(default_factory=dict)
    framework: str = ""
    framework_is_default: bool = False
    tokens: int | None = None
    model_flops: float | None = None
    hardware_flops: float | None = None
    peak_flops: float | None = None
    efficiency: Mapping[str, float] | None = None
    speed_up: Mapping[str, float] | None = None
    baseline: Mapping[str, str] | None = None
    memory_bytes_per_rank: float | None = None
    memory_bytes: Mapping[str, float] | None = None
    memory_by_stage: tuple[Mapping[str, Any], ...] = ()
    capacity_bytes: float | None = None
    fits: bool | None = None
    fit_by: str = ""
    energy_J: Mapping[str, float] | None = None
    cost_USD: Mapping[str, float] | None = None
    servers: Mapping[str, Any] | None = None
    to_target: Mapping[str, Any] | None = None
    compute: Literal["real", "paced"] | None = None
    step_time_interval_s: tuple[float, float] | None = None
    prediction_interval_s: tuple[float, float] | None = None
    spread: Mapping[str, float] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    update_losses: tuple[float, ...] = ()
    verified: Mapping[str, Any] | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)
    rank_names: tuple[str, ...] = ()
    spans: Spans | None = None

    @property
    def framework_words(self) -> str:
        """Name of the framework, with 'by default' if the scenario names none; empty if it is not known."""
        return framework_words(self.framework, self.framework_is_default)

    @property
    def samples_per_s(self) -> float:
        """Throughput in samples per second, over all workers."""
        return self.samples / self.step_time_s if self.step_time_s > 0 else float("inf")

    @property
    def samples_per_s_per_rank(self) -> float:
        """Samples per second and training rank."""
        return self.samples_per_s / self.compute_ranks

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second; None for models without tokens."""
        return None if self.tokens is None else self.samples_per_s * self.tokens / self.samples

    @property
    def tokens_per_s_per_rank(self) -> float | None:
        """Tokens per second and training rank; None for models without tokens."""
        return None if self.tokens_per_s is None else self.tokens_per_s / self.compute_ranks

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: FLOPs of the passes over peak FLOPs of all training ranks (arXiv 2204.02311, appendix B)."""
        return self._utilisation(self.model_flops)

    @property
    def hfu(self) -> float | None:
        """Hardware FLOPs utilisation: FLOPs of passes and recomputation over peak FLOPs (arXiv 2205.05198, section 6.3)."""
        return self._utilisation(self.hardware_flops)

    def _utilisation(self, flops: float | None) -> float | None:
        possible_flops = self.compute_ranks * (self.peak_flops or 0.0) * self.step_time_s
        return None if flops is None or possible_flops == 0 else flops / possible_flops

    @property
    def bubble_fraction(self) -> float:
        """Share of a step in which training ranks wait for other stages, mean over ranks."""
        return self.breakdown_s.get("bubble", 0.0) / self.step_time_s if self.step_time_s > 0 else 0.0

    @property
    def time_to_target_s(self) -> float | None:
        """Seconds to the target loss, with the scenario's model of convergence."""
        return None if self.to_target is None else float(self.to_target["samples"]) / self.samples_per_s

    @property
    def time_to_target_interval_s(self) -> tuple[float, float] | None:
        """The 90 % interval of the seconds to the target loss.

        The errors of step time and number of steps are independent, so that the squares of their logarithms add up.
        """
        time_s, step_s = self.time_to_target_s, self.prediction_interval_s or (self.step_time_s, self.step_time_s)
        if self.to_target is None or time_s is None or min(*step_s, self.step_time_s) <= 0:
            return None
        steps_width = math.log(self.to_target["steps_interval"][1] / self.to_target["steps"])
        if self.prediction_interval_s is None and steps_width == 0:
            return None
        low, high = (math.log(edge_s / self.step_time_s) for edge_s in step_s)
        added = [math.hypot(width, steps_width) - abs(width) for width in (low, high)]
        return time_s * math.exp(low - added[0]), time_s * math.exp(high + added[1])

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings that limit the validity of the run."""
        return tuple(self.provenance.get("warnings", "").splitlines())

    def summary(self) -> dict[str, Any]:
        """All fields except the spans, and derived properties, as plain data for JSON."""
        names = [field.name for field in fields(self) if field.name != "spans"]
        return {name: _plain(getattr(self, name)) for name in (*names, *_DERIVED)}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple) else value


def framework_words(name: str, is_default: bool) -> str:
    """The name of a framework, as in 'megatron-core-0.12, by default' if the scenario does not name it."""
    return f"{name}, by default" if name and is_default else name


def from_spans(
    spans: Spans,
    step_ends_s: NDArray[np.float64],
    *,
    servers: NDArray[np.bool_],
    multiplicity: NDArray[np.int64] | None = None,
    elapsed_s: NDArray[np.float64] | None = None,
    mean: bool = False,
    **fields: Any,
) -> Run:
    """A Run whose step time, phases and breakdown are derived from spans of steady steps.

    step_ends_s: end of each step on the last rank; the first entry is the end of the step before the first steady one, so that
    steps 1, 2, … of the spans lie between consecutive entries (spans of step 0 are ignored).
    servers: whether each rank of the spans is a server. multiplicity: number of ranks that each rank of the spans represents; 1
    if None. elapsed_s: duration of the steps on each rank; that of all ranks if None. mean: whether the step time is the mean
    over all steps, where some are long for a reason, instead of the slope, which ignores outliers. fields: other fields.
    """
    count = np.ones(len(servers), dtype=np.int64) if multiplicity is None else multiplicity
    step_time_s = float(np.diff(step_ends_s).mean()) if mean else slope(step_ends_s)
    steady = spans.where((spans.step >= 1) & ~servers[spans.rank])
    # measured steps vary, so that the parts are scaled to the step time
    total_s = np.full(len(servers), step_ends_s[-1] - step_ends_s[0]) if elapsed_s is None else elapsed_s
    scale = np.divide(step_time_s, total_s, out=np.full(len(servers), 1 / (len(step_ends_s) - 1)), where=total_s > 0)
    share = count / count[~servers].sum() * scale
    main = steady.where(steady.stream == Stream.MAIN)
    breakdown = _breakdown_s(main, share[main.rank])
    breakdown["other"] = step_time_s - sum(breakdown.values())
    moving_s = _moving_s(main, steady.where(steady.stream == Stream.COMMUNICATION), share)
    exposed_s = breakdown["exposed_communication"]
    return Run(
        ranks=int(count.sum()),
        compute_ranks=int(count[~servers].sum()),
        step_time_s=step_time_s,
        step_times_s=tuple(float(t) for t in np.diff(step_ends_s)),
        phase_s=_phase_s(main, share[main.rank]),
        breakdown_s=breakdown,
        communication_s={"exposed": exposed_s, "hidden": max(0.0, moving_s - exposed_s)},
        spans=spans,
        **fields,
    )


def divided(run: Run, count: float) -> Run:
    """A run whose steps consist of `count` training steps each, with times per training step."""

    def per_step(times_s: Mapping[str, float]) -> dict[str, float]:
        return {name: seconds / count for name, seconds in times_s.items()}

    interval_s = run.step_time_interval_s
    return replace(
        run,
        step_time_s=run.step_time_s / count,
        step_times_s=tuple(seconds / count for seconds in run.step_times_s),
        step_time_interval_s=interval_s and (interval_s[0] / count, interval_s[1] / count),
        phase_s=per_step(run.phase_s),
        breakdown_s=per_step(run.breakdown_s),
        communication_s=per_step(run.communication_s),
    )


def slope(ends_s: NDArray[np.float64]) -> float:
    """Seconds per step: the median slope of the step ends over windows of two steps.

    It is robust against single slow steps, and the mean of alternating long and short steps.
    """
    return float(slopes(ends_s))


def slopes(ends_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds per step, as by `slope`, of several series of step ends along the last axis."""
    window = min(2, ends_s.shape[-1] - 1)
    return np.asarray(np.median(ends_s[..., window:] - ends_s[..., :-window], axis=-1) / window)


def _phase_s(main: Spans, share: NDArray[np.float64]) -> dict[str, float]:
    """Mean seconds per step and training rank in each phase, waiting included."""
    total = np.bincount(main.phase, weights=(main.end_s - main.arrival_s) * share, minlength=len(Phase))
    return {phase.label: float(total[phase]) for phase in Phase}


def _breakdown_s(main: Spans, share: NDArray[np.float64]) -> dict[str, float]:
    """Mean seconds per step and training rank by cause: compute, exposed communication, and waiting by what is waited for."""
    doing, waiting = (main.end_s - main.start_s) * share, (main.start_s - main.arrival_s) * share
    compute = np.isin(main.phase, COMPUTE_PHASES)
    peers = np.isin(main.phase, (Phase.SEND, Phase.RECEIVE))
    server, ranks = main.phase == Phase.WAIT, main.phase == Phase.SYNCHRONISE
    parts = {
        "compute": doing[compute].sum(),
        # not visible in spans; predictions split it from compute
        "slowest_rank": 0.0,
        "exposed_communication": doing[peers | ranks].sum(),
        "bubble": waiting[peers].sum(),
        "waiting_for_server": (doing + waiting)[server].sum(),
        "waiting_for_ranks": waiting[ranks].sum(),
        "waiting_for_input": (doing + waiting)[main.phase == Phase.INPUT].sum(),
    }
    return {name: float(value) for name, value in parts.items()}


def _moving_s(main: Spans, communication: Spans, share: NDArray[np.float64]) -> float:
    """Mean seconds per step and training rank with transfers in flight, exposed or hidden; overlaps count once.

    share: weight of each rank. Transfers that outlast a rank's last step count at its beginning, where those of the step before
    would be.
    """
    begin_s, end_s = np.full((2, len(share)), np.inf) * [[1.0], [-1.0]]
    np.minimum.at(begin_s, main.rank, main.arrival_s)
    np.maximum.at(end_s, main.rank, main.end_s)
    exchanges = main.where(np.isin(main.phase, COMMUNICATION_PHASES))
    late = communication.where(communication.end_s > end_s[communication.rank])
    earlier_s = (end_s - begin_s)[late.rank]
    rank = np.concatenate([exchanges.rank, communication.rank, late.rank])
    start_s = np.concatenate([exchanges.start_s, communication.start_s, late.start_s - earlier_s])
    stop_s = np.concatenate([exchanges.end_s, communication.end_s, late.end_s - earlier_s])
    moving = TimeIntervals(rank, np.maximum(start_s, begin_s[rank]), np.minimum(stop_s, end_s[rank])).union()
    return float(((moving.end_s - moving.start_s) * share[moving.owner]).sum())


def save(run: Run, folder: Path) -> None:
    """Writes `run.json`, and `spans.npz` if the run has spans, each to a temporary file that is then renamed.

    The digest of the spans in `run.json` detects an interruption between the two files.
    """
    digest = ""
    if run.spans is not None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **run.spans.columns())
        digest = _digest(buffer.getvalue())
        write_atomically(folder / SPANS_FILE, buffer.getvalue())
    content = run.summary() | {_SPANS_DIGEST: digest}
    write_atomically(folder / "run.json", (json.dumps(content, indent=2) + "\n").encode())


def load_run(folder: Path) -> Run:
    """Loads the run that `save` wrote into `folder`. Raises OSError, ValueError or KeyError if that is not possible."""
    plain = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    for name in _DERIVED:
        plain.pop(name, None)
    for name in ("step_times_s", "losses", "update_losses", "rank_names", "memory_by_stage"):
        plain[name] = tuple(plain.get(name, ()))
    for name in ("step_time_interval_s", "prediction_interval_s"):
        if plain.get(name):
            plain[name] = tuple(plain[name])
    if any(not str(name).isprintable() for name in (plain["scenario"], plain["strategy"], *plain["rank_names"])):
        raise ValueError("its names contain control characters")
    spans = load_spans(folder, plain)
    plain.pop(_SPANS_DIGEST, None)
    return Run(**plain, spans=spans)


def load_spans(folder: Path, plain: Mapping[str, Any]) -> Spans | None:
    """Loads the spans that belong to the content `plain` of a `run.json`; None without spans.

    Raises ValueError for spans of another run or too many, OSError and others for damaged files.
    """
    path = folder / SPANS_FILE
    # older files have no digest
    digest = plain.get(_SPANS_DIGEST)
    if digest == "" or not path.is_file():
        return None
    content = path.read_bytes()
    if digest is not None and digest != _digest(content):
        raise ValueError("its spans are of another run")
    # from memory, since numpy leaves a file open that is not an archive
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(member.file_size for member in archive.infolist()) > _MOST_SPANS_BYTES:
            raise ValueError(f"its spans take more than {_MOST_SPANS_BYTES >> 30} GiB")
    with np.load(io.BytesIO(content), allow_pickle=False) as columns:
        return Spans.of(columns)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file atomically: to a temporary file that is then renamed.

    Temporary files that killed processes left of this file are deleted. Raises OSError with the path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        if _has_ended(left.name.split(".")[-2]):
            left.unlink(missing_ok=True)
    # with the process id, since another process may write the same file
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        aside.write_bytes(content)
        with aside.open("rb") as file:
            # else the content may be lost after a power failure, though the file has been renamed
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        # a full disk is reported without a path
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        # an incomplete file would occupy the disk
        aside.unlink(missing_ok=True)


def _has_ended(process: str) -> bool:
    """Whether no process of this machine has the number."""
    try:
        os.kill(int(process), 0)
    except (ValueError, PermissionError):
        return False
    except ProcessLookupError:
        return True
    return False
