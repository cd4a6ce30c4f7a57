"""Run: what a prediction and a measurement both return.

The summary is always there; spans (who did what, when) only on request. Everything that is derived from spans is derived
here, once, for both sides.
"""

from __future__ import annotations

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

from scaleproof.simulator.common.spans import Stretches

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
COMMUNICATION_PHASES: Final = (Phase.SYNCHRONISE, Phase.SEND, Phase.RECEIVE)
SPANS_FILE: Final = "spans.npz"
# what `run.json` has of it, "" where there is none
_SPANS_DIGEST: Final = "spans_digest"
# of all columns, unpacked: fifty million spans
_MOST_SPANS_BYTES: Final = 2 * 2**30
# what a summary says beside the fields, since it follows from them
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

    scenario: its name. framework: the training software of a predicted run; framework_is_default: whether the scenario left it
    out. ranks: processes or devices; compute_ranks: those that train (the rest are servers).
    samples: per step, over all workers; tokens: the same, where the model reads tokens. step_time_s: slope over steady steps.
    phase_s: mean seconds per step and training rank in each phase on its main stream. breakdown_s: the same time by cause,
    adding up to step_time_s; "slowest_rank" is by how much the slowest of the ranks that wait for each other computes longer
    than the mean, as far as that is predicted from the number of ranks. communication_s: mean seconds per step and training
    rank in which something of the rank's was moving: "exposed", when it waited for that, and "hidden", when it computed or
    waited for something else.
    model_flops: of a step's forward and backward passes over all samples; hardware_flops: with what is recomputed;
    peak_flops: FLOP/s of a training rank's device at the training precision.
    efficiency, speed_up and baseline: by kind of scaling, weak and strong, against a named run; absent until there is one.
    memory_bytes_per_rank: of the training rank that needs the most, at its peak; memory_bytes: the same by what holds it;
    memory_by_stage: `name`, `total_bytes` and `holders_bytes` of each kind of training rank; capacity_bytes: what a rank has.
    fits: whether that is enough. fit_by: what to set so that it is, where it is not. None and "" until known.
    energy_J, cost_USD: "per_step", "per_million_samples" and, where there are tokens, "per_million_tokens".
    Of predicted runs alone: prediction_interval_s, where the step time is with a probability of 90 %, as far as the cluster's
    numbers are uncertain; spread: the share of its logarithm's variance that each of them brings, the largest first.
    servers: what became of parameter servers and those who wait for them, as `simulator.run.staleness.summary` has it.
    to_target: what reaching a target loss takes, as `simulator.scenario.convergence.to_target` has it, where the scenario
    models that. Of measured runs alone: compute, whether the model computed or ranks waited as long as it is predicted to, so
    that the run tells of communication; step_time_interval_s: its 95 % confidence interval, where there are enough steps to
    tell; losses: of the steps, mean over the samples; update_losses: the same of each update after the warm-up's, by the
    samples that it comes from, where workers go each on its own; verified: `rule`, `deviation` and `tolerance`, how far
    parameters are from those of one process that follows the same rule, where that was asked for. Their memory_bytes are
    those that torch's allocator had handed out of a GPU and those that it held ready beside.
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
        """Name of the framework, with 'by default' where the scenario names none; empty where it is not known."""
        return framework_words(self.framework, self.framework_is_default)

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.step_time_s if self.step_time_s > 0 else float("inf")

    @property
    def samples_per_s_per_rank(self) -> float:
        return self.samples_per_s / self.compute_ranks

    @property
    def tokens_per_s(self) -> float | None:
        return None if self.tokens is None else self.samples_per_s * self.tokens / self.samples

    @property
    def tokens_per_s_per_rank(self) -> float | None:
        return None if self.tokens_per_s is None else self.tokens_per_s / self.compute_ranks

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: what the passes need, over what all training ranks could compute meanwhile (arXiv
        2204.02311, appendix B)."""
        return self._utilisation(self.model_flops)

    @property
    def hfu(self) -> float | None:
        """Hardware FLOPs utilisation: the same with what is recomputed (arXiv 2205.05198, section 6.3)."""
        return self._utilisation(self.hardware_flops)

    def _utilisation(self, flops: float | None) -> float | None:
        could_flops = self.compute_ranks * (self.peak_flops or 0.0) * self.step_time_s
        return None if flops is None or could_flops == 0 else flops / could_flops

    @property
    def bubble_fraction(self) -> float:
        """Share of a step in which a training rank waits for other stages, mean over ranks."""
        return self.breakdown_s.get("bubble", 0.0) / self.step_time_s if self.step_time_s > 0 else 0.0

    @property
    def time_to_target_s(self) -> float | None:
        """By the scenario's model of convergence."""
        return None if self.to_target is None else float(self.to_target["samples"]) / self.samples_per_s

    @property
    def time_to_target_interval_s(self) -> tuple[float, float] | None:
        """Where that is with a probability of 90 %, as far as step time and steps are uncertain; these are independent, so that
        how far they reach, by logarithms, adds up in squares."""
        time_s, of_step_s = self.time_to_target_s, self.prediction_interval_s or (self.step_time_s, self.step_time_s)
        if self.to_target is None or time_s is None or min(*of_step_s, self.step_time_s) <= 0:
            return None
        of_steps = math.log(self.to_target["steps_interval"][1] / self.to_target["steps"])
        if self.prediction_interval_s is None and of_steps == 0:
            return None
        low, high = (math.log(edge_s / self.step_time_s) for edge_s in of_step_s)
        further = [math.hypot(reach, of_steps) - abs(reach) for reach in (low, high)]
        return time_s * math.exp(low - further[0]), time_s * math.exp(high + further[1])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is to be known before it is trusted."""
        return tuple(self.provenance.get("warnings", "").splitlines())

    def summary(self) -> dict[str, Any]:
        """Everything but the spans, as plain data for JSON, with what follows from it."""
        names = [one.name for one in fields(self) if one.name != "spans"]
        return {name: _plain(getattr(self, name)) for name in (*names, *_DERIVED)}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple) else value


def framework_words(name: str, is_default: bool) -> str:
    """'megatron-core-0.12, by default' of a framework that no scenario names."""
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

    step_ends_s: when each step ended, on the last rank; the first entry is the end of the step before the first steady one,
    so steps 1, 2, … of the spans lie between consecutive entries (spans of step 0 do not count).
    servers: for each rank of the spans, whether it is a server. multiplicity: how many ranks each stands for, one if absent.
    elapsed_s: how long each took for these steps by its own ends, as long as all together if absent. mean: all steps count
    alike, as where single ones are long for good reason, and the step time is no slope that these do not move.
    """
    count = np.ones(len(servers), dtype=np.int64) if multiplicity is None else multiplicity
    step_time_s = float(np.diff(step_ends_s).mean()) if mean else slope(step_ends_s)
    steady = spans.where((spans.step >= 1) & ~servers[spans.rank])
    # measured steps vary: parts are scaled to the step they are parts of, which the slope describes best
    took_s = np.full(len(servers), step_ends_s[-1] - step_ends_s[0]) if elapsed_s is None else elapsed_s
    scale = np.divide(step_time_s, took_s, out=np.full(len(servers), 1 / (len(step_ends_s) - 1)), where=took_s > 0)
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
    """A run each of whose steps is `count` training steps, told by one of those: times are means over them."""

    def each(times_s: Mapping[str, float]) -> dict[str, float]:
        return {name: seconds / count for name, seconds in times_s.items()}

    interval_s = run.step_time_interval_s
    return replace(
        run,
        step_time_s=run.step_time_s / count,
        step_times_s=tuple(seconds / count for seconds in run.step_times_s),
        step_time_interval_s=interval_s and (interval_s[0] / count, interval_s[1] / count),
        phase_s=each(run.phase_s),
        breakdown_s=each(run.breakdown_s),
        communication_s=each(run.communication_s),
    )


def slope(ends_s: NDArray[np.float64]) -> float:
    """Seconds per step: the median slope over windows of two steps.

    Single slow steps do not move it, and steps that are long and short in turn count with their mean.
    """
    return float(slopes(ends_s))


def slopes(ends_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """`slope` of each of several series of step ends, which lie along the last axis."""
    window = min(2, ends_s.shape[-1] - 1)
    return np.asarray(np.median(ends_s[..., window:] - ends_s[..., :-window], axis=-1) / window)


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
        # spans do not show by how much compute would be shorter if all devices were equally fast: predictions add it
        "slowest_rank": 0.0,
        "exposed_communication": doing[peers | ranks].sum(),
        "bubble": waiting[peers].sum(),
        "waiting_for_server": (doing + waiting)[server].sum(),
        "waiting_for_ranks": waiting[ranks].sum(),
        "waiting_for_input": (doing + waiting)[main.phase == Phase.INPUT].sum(),
    }
    return {name: float(value) for name, value in parts.items()}


def _moving_s(main: Spans, communication: Spans, share: NDArray[np.float64]) -> float:
    """Seconds in which something of a rank's was moving, whether it waited for that or not; overlaps count once.

    share: of each rank. What a rank's last step leaves moving counts where the step before left as much: at the beginning.
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
    moving = Stretches(rank, np.maximum(start_s, begin_s[rank]), np.minimum(stop_s, end_s[rank])).union()
    return float(((moving.end_s - moving.start_s) * share[moving.owner]).sum())


def save(run: Run, folder: Path) -> None:
    """Writes `run.json`, and `spans.npz` where the run has spans, each aside and then renamed. The former says which spans are
    its own: whoever is killed between the two leaves those of another run."""
    digest = ""
    if run.spans is not None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **run.spans.columns())
        digest = _digest(buffer.getvalue())
        write_aside(folder / SPANS_FILE, buffer.getvalue())
    told = run.summary() | {_SPANS_DIGEST: digest}
    write_aside(folder / "run.json", (json.dumps(told, indent=2) + "\n").encode())


def load_run(folder: Path) -> Run:
    """The run that `save` wrote into `folder`. Raises OSError, ValueError or KeyError when it is not one."""
    plain = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    for name in _DERIVED:
        plain.pop(name, None)
    for name in ("step_times_s", "losses", "update_losses", "rank_names", "memory_by_stage"):
        plain[name] = tuple(plain.get(name, ()))
    for name in ("step_time_interval_s", "prediction_interval_s"):
        if plain.get(name):
            plain[name] = tuple(plain[name])
    if any(not str(name).isprintable() for name in (plain["scenario"], plain["strategy"], *plain["rank_names"])):
        raise ValueError("its names have control characters")
    spans = load_spans(folder, plain)
    plain.pop(_SPANS_DIGEST, None)
    return Run(**plain, spans=spans)


def load_spans(folder: Path, plain: Mapping[str, Any]) -> Spans | None:
    """The spans beside a `run.json` that holds `plain`; None where there are none.

    Raises ValueError for those of another run and for what would fill the memory, OSError and others for what is damaged.
    """
    path = folder / SPANS_FILE
    # files of before there was a digest have none
    digest = plain.get(_SPANS_DIGEST)
    if digest == "" or not path.is_file():
        return None
    content = path.read_bytes()
    if digest is not None and digest != _digest(content):
        raise ValueError("its spans are of another run")
    # through memory: numpy leaves a file open that turns out not to be an archive
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(one.file_size for one in archive.infolist()) > _MOST_SPANS_BYTES:
            raise ValueError(f"its spans take more than {_MOST_SPANS_BYTES >> 30} GiB")
    with np.load(io.BytesIO(content), allow_pickle=False) as columns:
        return Spans.of(columns)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def write_aside(path: Path, content: bytes) -> None:
    """Writes a file so that it is either the old one or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # of this process: another one may write the same file
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        aside.write_bytes(content)
        with aside.open("rb") as file:
            # else the name may outlive a power failure, and what it names not
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError:
        # half of it would fill what is left of the disk
        aside.unlink(missing_ok=True)
        raise
