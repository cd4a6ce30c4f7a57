"""Seconds of each traced rank by step: kernels, exposed transfers, waiting for other ranks, and gaps.

A rank that waits is a victim. What it waits for was late by its own work, by gaps of its device, or because it waited itself,
in another group; waiting is subtracted from every rank, so that what is left is caused by the rank itself, however long the
chain of collectives between cause and victim is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.validator.calibration.imports.kineto import DeviceWork, TracedCollective
from scaleproof.validator.calibration.imports.steps import union_of, union_s
from scaleproof.validator.reconciliation.jobs.trace_spans import (
    CallKey,
    TracedRank,
    TracedTransfer,
    exposed,
    transfer_times_s,
    transfers,
)

# Resolution of a trace's clock.
_CLOCK_S: Final = 1e-8
# Calls of a kernel with and without communication from which on both are compared.
_FEWEST_CALLS: Final = 5
Seconds = NDArray[np.float64]
# Name and shape of a kernel.
Kernel = tuple[str, str]


class Transferred(NamedTuple):
    """Calls of one collective on a rank. calls: per step. transfer_s: mean seconds of a call without waiting, since a link may
    be slow at times, but without the longest calls; error_s: standard error of it. exposed_s: mean seconds of a step."""

    exchange: TracedCollective
    way: str
    calls: float
    transfer_s: float
    error_s: float
    exposed_s: float


@dataclass(frozen=True)
class RankSeconds:
    """Seconds of a rank, each array of shape (steps,). kernels: number of calls, and seconds. busy_s: in which any kernel
    runs. waiting_s: for other ranks, in which no kernel runs. input_s: before the first kernel; gap_s: of an idle device
    after it. contended_s: mean seconds of a step that kernels take longer while communication is in progress. slack: share of
    the kernels' time before waiting for a message, which would last longer if they were quicker."""

    rank: TracedRank
    step_s: Seconds
    busy_s: Seconds
    transfer_s: Seconds
    waiting_s: Seconds
    input_s: Seconds
    gap_s: Seconds
    kernels: Mapping[Kernel, tuple[Seconds, Seconds]]
    transferred: Sequence[Transferred]
    contended_s: float
    slack: float


def seconds_of(ranks: Sequence[TracedRank]) -> list[RankSeconds]:
    """The seconds of all ranks, in their first steps that all of them have."""
    steps = min(len(one.steps.works) for one in ranks)
    times_s = transfer_times_s(ranks)
    return [_seconds(one, times_s, steps) for one in ranks]


def _seconds(rank: TracedRank, times_s: Mapping[CallKey, float], steps: int) -> RankSeconds:
    columns = {name: np.zeros(steps) for name in ("step_s", "busy_s", "transfer_s", "waiting_s", "input_s", "gap_s")}
    kernels: dict[Kernel, tuple[Seconds, Seconds]] = {}
    calls: dict[tuple[TracedCollective, str], list[float]] = {}
    shown: dict[tuple[TracedCollective, str], float] = {}
    contention, moved = _Contention(), transfers(rank, times_s)
    for step, moving in zip(range(steps), moved, strict=False):
        works, begin_s, end_s = rank.steps.works[step], rank.steps.ends_s[step], rank.steps.ends_s[step + 1]
        computes = [work for work in works if work.exchange is None]
        for work in computes:
            own = kernels.setdefault((work.name, work.shape), (np.zeros(steps), np.zeros(steps)))
            own[0][step] += 1
            own[1][step] += work.end_s - work.start_s
        contention.add(computes, [transfer.work for transfer in moving])
        for transfer in moving:
            calls.setdefault((transfer.key[1], transfer.work.way), []).append(times_s[transfer.key])
        for piece in exposed(works, moving):
            waiting_s = max(0.0, min(piece.end_s, piece.transfer.begin_s) - piece.start_s)
            columns["waiting_s"][step] += waiting_s
            columns["transfer_s"][step] += piece.end_s - piece.start_s - waiting_s
            kind = (piece.transfer.key[1], piece.transfer.work.way)
            shown[kind] = shown.get(kind, 0.0) + (piece.end_s - piece.start_s - waiting_s) / steps
        first_s = min((work.start_s for work in works), default=begin_s)
        columns["step_s"][step] = end_s - begin_s
        columns["busy_s"][step] = union_s(computes)
        columns["input_s"][step] = max(0.0, first_s - begin_s)
    known_s = columns["busy_s"] + columns["transfer_s"] + columns["waiting_s"] + columns["input_s"]
    gap_s = columns["step_s"] - known_s
    columns["gap_s"] = np.where(gap_s > _CLOCK_S, gap_s, 0.0)
    transferred = [
        Transferred(exchange, way, len(own) / steps, *_mean(own), shown.get((exchange, way), 0.0))
        for (exchange, way), own in calls.items()
    ]
    return RankSeconds(
        rank, **columns, kernels=kernels, transferred=transferred, contended_s=contention.excess_s() / steps,
        slack=_slack(rank, moved),
    )  # fmt: skip


def _slack(rank: TracedRank, moved: Sequence[Sequence[TracedTransfer]]) -> float:
    """The share of the kernels' time that is followed by waiting for a message, before this rank begins to send one."""
    moving = sorted((transfer for own in moved for transfer in own), key=lambda one: one.work.start_s)
    computes = [work for works in rank.steps.works for work in works if work.exchange is None]
    seconds = np.array([work.end_s - work.start_s for work in computes])
    following = np.searchsorted([one.work.start_s for one in moving], [work.end_s - _CLOCK_S for work in computes])
    waiting_s = [one.waiting_s if one.exchange.op == "sendrecv" and one.work.way != "send" else 0.0 for one in moving]
    absorbed_s = np.minimum(seconds, np.array([*waiting_s, 0.0])[following])
    return float(absorbed_s.sum() / seconds.sum()) if len(computes) else 0.0


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean without the longest eighth, which single stalls decide, and its standard error."""
    kept = np.sort(values)[: len(values) - len(values) // 8]
    return float(kept.mean()), float(kept.std()) / max(1, len(kept) - 1) ** 0.5


class _Contention:
    """Durations of each kernel while no communication is in progress, and while some is."""

    def __init__(self) -> None:
        self._alone_s: dict[Kernel, list[float]] = {}
        self._together_s: dict[Kernel, list[float]] = {}

    def add(self, computes: Sequence[DeviceWork], moving: Sequence[DeviceWork]) -> None:
        """Adds the kernels of a step."""
        union = union_of(moving)
        starts = np.array([work.start_s for work in computes])
        before = np.searchsorted(union.start_s, starts, side="right") - 1
        together = (before >= 0) & (starts < union.end_s[before]) if len(union.end_s) else np.zeros(len(computes), dtype=bool)
        for work, is_together in zip(computes, together.tolist(), strict=True):
            to = self._together_s if is_together else self._alone_s
            to.setdefault((work.name, work.shape), []).append(work.end_s - work.start_s)

    def excess_s(self) -> float:
        """Seconds by which kernels last longer next to communication, of those that are seen both ways."""
        total_s = 0.0
        for kernel, own in self._together_s.items():
            alone = self._alone_s.get(kernel, [])
            if min(len(own), len(alone)) >= _FEWEST_CALLS:
                total_s += len(own) * (float(np.median(own)) - float(np.median(alone)))
        return total_s
