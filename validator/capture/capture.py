"""Captures a script: plays ranks, finds which are equivalent, and puts the steps of their classes into one file."""

from __future__ import annotations

import json
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from scaleproof.simulator.captured.record import Capture, RecordedRanks
from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.capture.backend.calls import OperatorCall
from scaleproof.validator.capture.communication.matching import IssuedCalls, unmatched
from scaleproof.validator.capture.failures import sentence
from scaleproof.validator.capture.job import CaptureJob
from scaleproof.validator.capture.playing.places import ReportedPlace
from scaleproof.validator.capture.playing.player import FAILURE, RECORD, RankRecord, read_record
from scaleproof.validator.capture.playing.processes import JOB, LOG, RESOURCES, AllWaitError, Players
from scaleproof.validator.capture.rank_classes import EquivalentRanks, axes_of, find_classes, ranges, with_differences
from scaleproof.validator.capture.replaced.files import remove_written

# Calls of operators of a class by their rows.
Calls = Mapping[int, OperatorCall]
KEPT_LOG: Final = "rank-{}.txt"
_LOG_HINT: Final = "--log DIR keeps what it printed"
# Most characters of a line that the script printed.
_LONGEST: Final = 200
# Most ranks of a class that its name lists.
_LISTED: Final = 3


@dataclass(frozen=True)
class CaptureOptions:
    """How a script is captured. device, cluster: names, for the file. timeout_s: for all ranks. log: the folder that gets what
    ranks print, if any. samples, tokens: of a step of all ranks, None if inputs show them."""

    device: str
    cluster: str | None = None
    timeout_s: float = 600.0
    log: Path | None = None
    samples: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class CaptureCosts:
    """What a capture cost: seconds in all, ranks that were played, and the most bytes of one of them."""

    spent_s: float
    played: int
    memory_bytes: int


def capture(job: CaptureJob, options: CaptureOptions, progress: Callable[[str], None]) -> tuple[Capture, CaptureCosts]:
    """Captures a script. Raises RunError in one sentence where the script fails, never takes a step, or takes too long."""
    captured, costs, _ = capture_with_calls(job, options, progress)
    return captured, costs


def capture_with_calls(
    job: CaptureJob, options: CaptureOptions, progress: Callable[[str], None]
) -> tuple[Capture, CaptureCosts, list[Calls]]:
    """As `capture`, with the calls of operators of each class by their rows, if the job keeps them."""
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="scaleproof-capture-", ignore_cleanup_errors=True) as path:
        folder = Path(path)
        (folder / JOB).write_bytes(pickle.dumps(job))
        concurrent = len(os.sched_getaffinity(0))
        players = Players(folder, begin_s + options.timeout_s, concurrent, progress, job)
        try:
            played = _RankHashes(job, folder, players, options)
            # the groups of the first rank show how ranks are divided
            played([0, job.world_size - 1])
            axes = axes_of(played.record(0).all_groups, job.world_size)
            classes = find_classes(job.world_size, axes, played)
            found = [(one, played.record(one.played)) for one in classes]
            captured, calls = _captured(job, options, found), [record.calls for _, record in found]
        finally:
            players.close()
            remove_written(folder)
            _keep_logs(folder, options.log)
        used = [json.loads(file.read_text()) for file in folder.glob(RESOURCES.format("*"))]
    memory_bytes = max((one["memory_bytes"] for one in used), default=0)
    return captured, CaptureCosts(time.monotonic() - begin_s, len(used), memory_bytes), calls


class _RankHashes:
    """Plays ranks and keeps their hashes, one for all that do the same."""

    def __init__(self, job: CaptureJob, folder: Path, players: Players, options: CaptureOptions) -> None:
        self._job, self._folder, self._players, self._options = job, folder, players, options
        self._hashes: dict[int, str] = {}
        self._issued: dict[int, IssuedCalls] = {}
        self._kinds: list[RankRecord] = []

    def __call__(self, ranks: Iterable[int]) -> Mapping[int, str]:
        """Plays ranks that have not been played, and returns the hashes of all that have been. Raises RunError."""
        try:
            failed = self._players.play(rank for rank in ranks if rank not in self._hashes)
        except TimeoutError:
            raise RunError(self._late()) from None
        except AllWaitError:
            raise RunError(self._waits()) from None
        if failed is not None:
            raise RunError(self._why(failed))
        for path in self._folder.glob(RECORD.format("*")):
            rank = int(path.stem.rpartition("-")[2])
            if rank not in self._hashes:
                record = read_record(path)
                self._hashes[rank] = self._kind(record).own.operators_hash
                self._issued[rank] = record.issued
                if missing := next(filter(None, (unmatched(rank, other, self._issued) for other in self._issued)), ""):
                    raise RunError(missing)
        return self._hashes

    def _kind(self, record: RankRecord) -> RankRecord:
        """The first record of a rank that did the same."""
        found = next((kind for kind in self._kinds if kind.equals(record)), None)
        if found is None:
            self._kinds.append(record)
        return found or record

    def record(self, rank: int) -> RankRecord:
        """The record of a rank that has been played."""
        return read_record(self._folder / RECORD.format(rank))

    def _why(self, rank: int) -> str:
        """Why a rank failed."""
        path = self._folder / FAILURE.format(rank)
        printed = _last_line(self._folder / LOG.format(rank))
        if path.exists():
            log = self._options.log
            hint = f"{log / KEPT_LOG.format(rank)} has what it printed" if log is not None else _LOG_HINT
            return sentence(self._job.script.target, json.loads(path.read_bytes()) | {"printed": printed}, hint)
        code = self._players.code(rank)
        by = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        memory = "; the machine may lack memory" if code == -signal.SIGKILL else ""
        last = f" ({printed})" if printed else ""
        return f"{self._job.script.target}: rank {rank} ended with {by} before its step was recorded{memory}{last}"

    def _active(self) -> ReportedPlace | None:
        """Where a rank is, if possible one that does not wait for another rank."""
        places = self._players.places()
        return next((one for one in places if not one.waits), next(iter(places), None))

    def _waits(self) -> str:
        """Where ranks wait for ever."""
        script, active = self._job.script.target, self._active()
        where, does = (active.line or script, f"rank {active.rank}, which {active.does}") if active else (script, "a rank")
        return (
            f"{where}: {does}, waits here for ever, since no rank that is played does anything else; let a rank do "
            "what it waits for, or leave the wait out"
        )

    def _late(self) -> str:
        """Why time is up, and where the script was."""
        limit = f"within {self._options.timeout_s:g} s"
        script, active = self._job.script.target, self._active()
        if active is None:
            return f"{script}: not captured {limit}; give more time with --timeout"
        steps = f"{active.steps} of {self._job.steps} training steps" if active.steps else "no training step"
        return (
            f"{active.line or script}: {steps} {limit} on rank {active.rank}, which is at this line, where it "
            f"{active.does}; make the script's data or model smaller, take fewer --steps, or "
            "give more --timeout"
        )


def _last_line(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").strip() if log.exists() else ""
    return text.rpartition("\n")[2][:_LONGEST]


def _captured(job: CaptureJob, options: CaptureOptions, found: Sequence[tuple[EquivalentRanks, RankRecord]]) -> Capture:
    import torch

    classes = with_differences([_class_of(one, record, len(found) == 1) for one, record in found])
    warnings = dict.fromkeys(warning for _, record in found for warning in record.warnings)
    script = job.script
    return Capture(
        script=script.target, arguments=script.arguments, torch=torch.__version__, world_size=job.world_size,
        ranks_per_node=job.ranks_per_node, device=options.device, cluster=options.cluster, classes=classes,
        warnings=tuple(warnings), samples=options.samples, tokens=options.tokens,
    )  # fmt: skip


def _class_of(one: EquivalentRanks, record: RankRecord, is_only: bool) -> RecordedRanks:
    return replace(record.own, name="all ranks" if is_only else class_name(one.ranks), ranks=ranges(one.ranks), why=one.why)


def class_name(ranks: Sequence[int]) -> str:
    """A name of some ranks: 'rank 0', 'ranks 1 to 7', 'ranks 0, 8, 16, …'."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    (first, *others) = ranges(ranks)
    if not others and first.step == 1:
        return f"ranks {first[0]} to {first[-1]}"
    listed = ", ".join(map(str, ranks[:_LISTED]))
    return f"ranks {listed}{', …' if len(ranks) > _LISTED else ''}"


def _keep_logs(folder: Path, to: Path | None) -> None:
    """Copies what ranks printed."""
    if to is None:
        return
    to.mkdir(parents=True, exist_ok=True)
    for log in folder.glob(LOG.format("*")):
        rank = log.stem.rpartition("-")[2]
        (to / KEPT_LOG.format(rank)).write_bytes(log.read_bytes())
