"""What a diagnosis of a job's files found, as data for JSON, text and pages."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import AllowInfNan

from scaleproof.simulator.analysis.evidence import Evidence
from scaleproof.simulator.common.record import Record
from scaleproof.simulator.common.units import format_percent

# File of a diagnosis in its folder, and folder of the run with the spans of its traces.
FILE: Final = "diagnosis.json"
JOB_FOLDER: Final = "job"

Cause = Literal[
    "stuck rank", "slow rank", "slow device", "throttling", "slow link", "slow host", "input", "imbalance", "jitter",
    "slower since", "drift", "periodic stall", "stalls", "memory retries", "out of memory", "contention",
    "exposed communication", "idle device",
]  # fmt: skip
# What a job loses although nothing is broken: the layout and the software decide it.
_COSTS: Final[tuple[Cause, ...]] = ("contention", "exposed communication", "idle device")
# A number that may be unknown, which JSON has as null.
_Seconds = Annotated[float, AllowInfNan(False)]


class Finding(Record):
    """A cause of lost time.

    where: rank, host and device in words; ranks, hosts, device: the same as data, device of a single rank. since: the range of
    time or iterations in words; first, last: numbers of its first and last iteration or step, counted as in the file. loss_s:
    seconds lost in each step of that range, None where the files do not show it; error: its relative standard error, None if
    unknown. share: of a step; of the rate, where only rates are known. words: a sentence without full stop. source: file, or
    FILE:LINE.
    """

    derived: ClassVar = ("is_fault",)

    cause: Cause
    words: str
    share: float
    loss_s: _Seconds | None = None
    error: float | None = None
    confidence: Literal["high", "medium", "low"] = "high"
    where: str = ""
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    device: str = ""
    since: str = ""
    first: int | None = None
    last: int | None = None
    source: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether something is slower than its peers or than before; else the time is what the layout costs all ranks."""
        return bool(self.ranks) or self.cause not in _COSTS


class RankTimes(Record):
    """Mean seconds of a rank in each step. compute_s: in kernels; slowdown: of the same kernels relative to other ranks;
    transfer_s: of exposed communication without waiting; input_s, gap_s: in which the device is idle, before the first kernel
    of the step and after it."""

    rank: int
    host: str
    device: str
    step_s: float
    compute_s: float
    transfer_s: float
    waiting_s: float
    input_s: float
    gap_s: float
    slowdown: float


class Iterations(Record):
    """Step times of a log, or of traces. times: at the same places, such as '10:01:20'; empty if unknown. starts: positions at
    which another regime begins. unit: s, or relative where only rates are known."""

    name: str
    numbers: tuple[int, ...]
    seconds: tuple[float, ...]
    times: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()
    unit: Literal["s", "relative"] = "s"


class HostRate(Record):
    """A host in logs of nccl-tests. logs: that it takes part in; slow: those of them that are slow. GBps: median of the largest
    bandwidth of each log."""

    host: str
    logs: int
    slow: int
    GBps: float


class SnapshotMemory(Record):
    """Memory of a rank in a snapshot. allocated_bytes, reserved_bytes: when it was taken; peak_bytes: the most of its history.
    holders: lines of the program with the most live bytes at the peak, in words. retries: of the allocator."""

    rank: int
    device: str
    allocated_bytes: float
    reserved_bytes: float
    peak_bytes: float
    retries: int
    holders: tuple[str, ...] = ()


class WhatIf(Record):
    """What a change would give. gain: relative change of the throughput, with its 90 % interval where it is known."""

    change: str
    gain: float
    low: float | None = None
    high: float | None = None


class Normal(Record):
    """The prediction of the same job. mfu: measured. low_s, high_s: 90 % interval of the predicted step time. best_mfu:
    predicted of the best layout, None without a better one. evidence: published runs that are similar."""

    scenario: str
    framework: str
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    mfu: float | None = None
    predicted_mfu: float | None = None
    best_mfu: float | None = None
    what_ifs: tuple[WhatIf, ...] = ()
    evidence: Evidence | None = None

    @property
    def words(self) -> str:
        """Whether the measured step time is normal."""
        if self.mfu is not None and self.mfu > 1:
            return f"the step times are not of {self.scenario}, of which they mean {format_percent(self.mfu, 0)} MFU"
        ratio = self.measured_s / self.predicted_s
        if self.measured_s > self.high_s:
            return f"slower than this software usually is: {ratio:.3g} times the predicted step time"
        if self.measured_s < self.low_s:
            return f"faster than predicted: {ratio:.3g} times the predicted step time"
        return "normal for this software: the step time is in the 90 % prediction interval"


class Diagnosis(Record):
    """What a job's files show. files: what was read, in words. step_s: median step time, None if no file has it. findings: by
    loss, faults first, and those that name a place before those that do not, unless they cost much less."""

    derived: ClassVar = ("headline",)

    files: tuple[str, ...]
    findings: tuple[Finding, ...]
    step_s: float | None = None
    ranks: tuple[RankTimes, ...] = ()
    iterations: tuple[Iterations, ...] = ()
    hosts: tuple[HostRate, ...] = ()
    memory: tuple[SnapshotMemory, ...] = ()
    notes: tuple[str, ...] = ()
    normal: Normal | None = None

    def __repr__(self) -> str:
        return "\n".join([self.headline, *(f"  {found.words}" for found in self.findings[1:])])

    @property
    def faults(self) -> tuple[Finding, ...]:
        """Findings that are faults."""
        return tuple(found for found in self.findings if found.is_fault)

    @property
    def headline(self) -> str:
        """The first fault, or a sentence on a job without faults."""
        if self.faults:
            return self.faults[0].words
        cost = next(iter(self.findings), None)
        rest = f"; {cost.cause} takes {format_percent(cost.share)} of each step" if cost else ""
        even = f"nothing is slower than its peers, and no step slower than before{rest}"
        is_slow = self.normal is not None and self.normal.measured_s > self.normal.high_s
        return f"{self.normal.words}, although {even}" if self.normal is not None and is_slow else even

    def notable_ranks(self, most: int) -> list[RankTimes]:
        """At most a number of ranks, in order: the median one, those of findings, and the ones that wait the least and most."""
        ranks = sorted(self.ranks, key=lambda one: one.waiting_s)
        named = {number for found in self.findings for number in found.ranks}
        middle = ranks[len(ranks) // 2].rank if ranks else -1
        first = sorted(ranks, key=lambda one: (one.rank != middle, one.rank not in named))
        late = most // 4
        return sorted([*first[:-late][: most - late], *first[-late:]], key=lambda one: one.rank)

    def worst_share(self) -> float:
        """The largest share of a step that a fault costs; 0 without faults."""
        return max((found.share for found in self.faults), default=0.0)
