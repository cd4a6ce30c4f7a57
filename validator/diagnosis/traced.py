"""Findings from traces of ranks: slow devices, hosts and loaders, imbalance, jitter, slow groups, costs of the layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.diagnosis import Cause, Finding, RankTimes
from scaleproof.simulator.common.units import format_change, format_percent, format_time_s
from scaleproof.validator.diagnosis.places import FAR, MANY, SLOW, confidence, least_excess, of_ranks
from scaleproof.validator.diagnosis.ranks import Kernel, RankSeconds, seconds_of
from scaleproof.validator.diagnosis.slow_groups import slow_groups
from scaleproof.validator.estimation.robust import LEAST_DEVIATION, deviation, levels, low_median, regimes, scatter
from scaleproof.validator.reconciliation.jobs.trace_spans import TracedRank

Matrix = NDArray[np.float64]
# Smallest share of a step that a finding costs, and that of idle devices or exposed communication, which all jobs have.
_NOTICED: Final = 0.015
_NOTICED_COST: Final = 0.05
# Share of steps' waiting that jitter causes, and how much a rank varies more than its peers.
_JITTER: Final = 0.05
_VARIES: Final = 4.0
# Share of a rank's steps that may be as quick as those of its peers, if it is slow all the time.
_FEW: Final = 0.25
# Share of a step for which a stalled device is idle.
_STALL: Final = 0.1
# Fewest steps of a regime within a trace.
_FEWEST_STEPS: Final = 3
_ALL: Final = slice(None)


@dataclass(frozen=True)
class TracedFindings:
    """What traces show. step_s: of each step, the longest of all ranks."""

    findings: Sequence[Finding]
    ranks: Sequence[RankTimes]
    step_s: Sequence[float]


def diagnose_ranks(ranks: Sequence[TracedRank]) -> TracedFindings:
    """Findings from the traces of a job's ranks."""
    sides = _TracedJob(seconds_of(ranks))
    found = [
        *sides.slow_devices(),
        *sides.gaps(),
        *sides.stalls(),
        *sides.imbalance(),
        *sides.jitter(),
        *sides.links(),
        *sides.costs(),
    ]
    return TracedFindings(found, sides.table(), sides.step_s.tolist())


def _variation(values: Matrix) -> float:
    return float(np.std(values / levels(regimes(values, _FEWEST_STEPS))))


def _is_common(excess: Matrix) -> bool:
    """Whether most of the excess is in nearly all steps: a device or core that is slow all the time may also vary, as one that
    other work uses does, but jitter is in single steps."""
    return bool(np.quantile(excess, _FEW) > excess.mean() / 2)


class _TracedJob:
    """Seconds of all ranks as matrices of shape (ranks, steps)."""

    def __init__(self, seconds: Sequence[RankSeconds]) -> None:
        self.seconds = seconds
        self.ranks = [one.rank for one in seconds]
        self.count = len(seconds)
        self.step_s = self._matrix(lambda one: one.step_s).max(axis=0)
        self.mean_s = float(np.median(self.step_s))
        self.waiting_s = self._matrix(lambda one: one.waiting_s)
        self.took_s, self.expected_s, self.work_s = self._compute()
        with np.errstate(divide="ignore", invalid="ignore"):
            self.slowdown = np.where((self.expected_s > 0) & (self.took_s > 0), self.took_s / self.expected_s, 1.0)
        # variation of single steps around the level of their stretch
        self.variation = np.array([_variation(row) for row in self.slowdown])
        self.named: set[int] = set()

    def _matrix(self, of: Callable[[RankSeconds], Matrix]) -> Matrix:
        return np.array([of(one) for one in self.seconds])

    def _compute(self) -> tuple[Matrix, Matrix, Matrix]:
        """Seconds in kernels that other ranks have too, the same at their usual duration, and the usual duration of all
        kernels; each in proportion to the time in which any kernel runs."""
        means: dict[Kernel, list[float]] = {}
        for one in self.seconds:
            for kernel, (calls, took_s) in one.kernels.items():
                means.setdefault(kernel, []).append(float(took_s.sum() / calls.sum()))
        usual_s = {kernel: low_median(np.array(own)) for kernel, own in means.items() if len(own) > 1}
        shape = self.count, len(self.step_s)
        took_s, expected_s, alone_s, total_s = (np.zeros(shape) for _ in range(4))
        for row, one in enumerate(self.seconds):
            for kernel, (calls, own_s) in one.kernels.items():
                total_s[row] += own_s
                if kernel in usual_s:
                    took_s[row] += own_s
                    expected_s[row] += calls * usual_s[kernel]
                else:
                    alone_s[row] += calls * (own_s.sum() / calls.sum())
        # kernels may overlap one another, and operators of hosts contain others
        busy_s = self._matrix(lambda one: one.busy_s).sum(axis=1, keepdims=True)
        total_s = total_s.sum(axis=1, keepdims=True)
        overlap = np.divide(busy_s, total_s, out=np.ones_like(busy_s), where=total_s > 0)
        return took_s * overlap, expected_s * overlap, (expected_s + alone_s) * overlap

    def far(self, values: Matrix, least: float) -> NDArray[np.bool_]:
        """Which ranks exceed their peers in most steps by at least `least`, and by far more than they vary. values: shape
        (ranks, steps)."""
        level = np.median(values, axis=1)
        noise = max(float(np.median([scatter(row) for row in values])) / np.sqrt(values.shape[1]), deviation(level))
        return np.asarray(level - low_median(level) > max(least, FAR * noise))

    def lost_s(self, row: int, excess_s: float, among: slice = _ALL) -> float:
        """Seconds of each of some steps that a rank's excess costs: no more than the others wait."""
        if self.count < 2 or not self.waiting_s.any():
            return excess_s
        others = np.delete(self.waiting_s[:, among].mean(axis=1), row)
        return min(excess_s, float(others.max()))

    def compute_lost_s(self, row: int, excess_s: float, among: slice = _ALL) -> float:
        """Seconds of each of some steps that a rank's excess in kernels costs, where it does not wait after them anyway."""
        return self.lost_s(row, excess_s * (1 - self.seconds[row].slack), among)

    def slow_devices(self) -> Iterator[Finding]:
        """Ranks whose kernels take longer than the same kernels of their peers."""
        if self.count < 2:
            return
        least = least_excess(self.count)
        # a device may be slow in a part of the steps
        parts = [regimes(row, _FEWEST_STEPS) for row in self.slowdown]
        slowest = [max(own, key=lambda part: part.level) for own in parts]
        stretches = [slice(part.first, part.last + 1) for part in slowest]
        levels = np.array([part.level for part in slowest])
        # in the same steps, as all ranks may become slower
        peers = np.array([low_median(np.median(self.slowdown[:, among], axis=1)) for among in stretches])
        # peers differ, and so does a rank from step to step
        errors = np.array([part.level * part.scatter / (part.last - part.first + 1) ** 0.5 for part in slowest])
        noise = max(deviation(levels), float(np.median(errors)), LEAST_DEVIATION)
        contended_s = np.array([one.contended_s for one in self.seconds])
        slow: dict[int, tuple[float, float, str]] = {}
        # ranks whose kernels take most of their excess only next to communication, beyond what those of their peers do
        contended = set[int]()
        for row in np.flatnonzero(levels - peers > np.maximum(least, FAR * np.maximum(noise, errors))).tolist():
            worst, among, usual = slowest[row], stretches[row], float(peers[row])
            if min(part.level for part in parts[row]) - usual > (worst.level - usual) / 2:
                # slow all the time, and more so in some stretches
                worst = worst._replace(first=0, last=self.slowdown.shape[1] - 1, level=float(np.median(self.slowdown[row])))
                among = _ALL
            if self._varies(row) and not _is_common(self.slowdown[row] / usual - 1):
                continue
            excess_s = float((self.took_s[row] - self.expected_s[row] * usual)[among].mean())
            lost_s = self.compute_lost_s(row, excess_s, among)
            if lost_s > _NOTICED * self.mean_s:
                steps = self.slowdown.shape[1]
                since = f"from step {worst.first + 1} of {steps} on" if worst.first else ""
                since = since if worst.last == steps - 1 else f"in steps {worst.first + 1} to {worst.last + 1} of {steps}"
                slow[row] = lost_s, worst.level / usual - 1, since
                if contended_s[row] - low_median(contended_s) > excess_s / 2:
                    contended.add(row)
        self.named |= set(slow)
        for rows in self._by_host(slow):
            lost_s = max(slow[row][0] for row in rows)
            factor, since = float(np.median([slow[row][1] for row in rows])), slow[rows[0]][2]
            cause: Cause = "throttling" if since else "slow device"
            words = f"computes {format_change(factor).lstrip('+')} slower than its peers"
            if contended.issuperset(rows):
                cause, words = "contention", f"{words}, but only while communication is in progress"
            yield self._finding(cause, rows, words, lost_s, factor / noise, since)

    def _varies(self, row: int) -> bool:
        """Whether the compute of a rank varies from step to step, and far more than that of its peers."""
        if len(self.step_s) < 2 * _FEWEST_STEPS:
            return False
        own, others = self.variation[row], float(np.median(self.variation))
        return bool(own > _JITTER and own > _VARIES * others)

    def gaps(self) -> Iterator[Finding]:
        """Ranks whose devices are idle for longer than those of their peers, before the first kernel of a step or after it."""
        kinds: Mapping[Cause, tuple[Matrix, str]] = {
            "input": (
                self._matrix(lambda one: one.input_s),
                "begins each step {} later than its peers: its loader or host is slow",
            ),
            "slow host": (self._matrix(lambda one: one.gap_s), "leaves its device idle for {} a step longer than its peers do"),
        }
        for cause, (values, words) in kinds.items():
            middle = low_median(np.median(values, axis=1))
            lost = {
                row: self.lost_s(row, float(np.median(values[row])) - middle)
                for row in np.flatnonzero(self.far(values, _NOTICED * self.mean_s)).tolist()
                if self.count > 1
            }
            lost = {row: lost_s for row, lost_s in lost.items() if lost_s > _NOTICED * self.mean_s}
            self.named |= set(lost)
            for rows in self._by_host(lost):
                lost_s = max(lost[row] for row in rows)
                noise = max(deviation(np.median(values, axis=1)), LEAST_DEVIATION * self.mean_s)
                yield self._finding(cause, rows, words.format(format_time_s(lost_s)), lost_s, lost_s / noise)
            if cause == "input" and middle > _NOTICED_COST * self.mean_s:
                late = format_time_s(middle)
                text = f"all ranks wait {late} for the first kernel of each step: the loader or the hosts are slow"
                yield self._of_all("input", text, middle)

    def stalls(self) -> Iterator[Finding]:
        """Ranks whose devices are idle for long in single steps."""
        idle_s = self._matrix(lambda one: one.input_s + one.gap_s)
        excess_s = np.maximum(0.0, idle_s - np.median(idle_s, axis=0))
        for row in range(self.count if self.count > 1 else 0):
            steps = np.flatnonzero(excess_s[row] > _STALL * self.mean_s)
            lost_s = self.lost_s(row, float(excess_s[row, steps].sum()) / len(self.step_s))
            if row not in self.named and len(steps) > 1 and lost_s > _NOTICED * self.mean_s:
                self.named.add(row)
                each = format_time_s(float(excess_s[row, steps].mean()))
                words = f"leaves its device idle for {each} longer than its peers in {len(steps)} of {len(self.step_s)} steps"
                yield self._finding("stalls", [row], words, lost_s, FAR)

    def imbalance(self) -> Iterator[Finding]:
        """Ranks that have more to do than others: other kernels, more calls, or larger shapes."""
        if self.count < 2:
            return
        level = self.work_s.mean(axis=1)
        middle = low_median(level)
        least_s = max(_NOTICED * self.mean_s, SLOW * middle)
        rows = [row for row in np.flatnonzero(self.far(self.work_s, least_s)).tolist() if row not in self.named]
        if rows:
            excess_s = float(level[rows].max()) - middle
            lost_s = max(self.compute_lost_s(row, excess_s) for row in rows)
            more = format_percent(excess_s / middle)
            noise = max(deviation(level), LEAST_DEVIATION * middle)
            if lost_s > _NOTICED * self.mean_s:
                self.named |= set(rows)
                words = f"{'has' if len(rows) == 1 else 'have'} {more} more to compute than the median rank"
                yield self._finding("imbalance", rows, words, lost_s, excess_s / noise)
            return
        varying_s = float((self.work_s.max(axis=0) - np.median(self.work_s, axis=0)).mean())
        if varying_s > max(_NOTICED_COST * self.mean_s, SLOW * middle):
            words = f"the work of ranks differs from step to step: the rank with the most has {format_time_s(varying_s)} more"
            yield self._of_all("imbalance", words, varying_s)

    def jitter(self) -> Iterator[Finding]:
        """Ranks whose compute time varies from step to step, or many that each delay some steps."""
        if len(self.step_s) < 2 * _FEWEST_STEPS or self.count < 2:
            return
        rows = [row for row in range(self.count) if row not in self.named and self._varies(row)]
        excess_s = self.took_s - self.expected_s * np.median(self.slowdown, axis=1).min()
        if rows:
            for row in rows:
                lost_s = self.compute_lost_s(row, float(np.maximum(0.0, excess_s[row]).mean()))
                lost_s = min(lost_s, self._last_waits_s(row))
                words = f"compute varies from step to step by {format_percent(self.variation[row])}"
                if lost_s > _NOTICED * self.mean_s:
                    yield self._finding("jitter", [row], words, lost_s, FAR)
            return
        quiet = [row for row in range(self.count) if row not in self.named]
        if not quiet:
            return
        worst_s = (self.took_s - self.expected_s)[quiet]
        # what a rank takes longer in all steps is no jitter
        worst_s = worst_s - np.median(worst_s, axis=1, keepdims=True)
        lost_s = float((worst_s.max(axis=0) - np.median(worst_s, axis=0)).mean())
        if lost_s > _JITTER * self.mean_s:
            words = f"ranks take turns to be late: the slowest of each step is {format_time_s(lost_s)} behind the median"
            yield self._of_all("jitter", words, lost_s)

    def _last_waits_s(self, row: int) -> float:
        """Mean seconds for which the last of a rank's peers waits in each step, of those that wait for it: peers vary, too."""
        others = np.delete(self.waiting_s, row, axis=0)
        waits_s = others.mean(axis=1)
        return float(others[waits_s >= waits_s.max() / 2].min(axis=0).mean()) if waits_s.any() else float("inf")

    def links(self) -> Iterator[Finding]:
        """Groups of ranks whose collectives take longer than those of other groups."""
        for slow in slow_groups(self.seconds):
            if slow.lost_s > _NOTICED * self.mean_s:
                where, hosts = of_ranks([one for one in self.ranks if one.rank in slow.ranks])
                rate = format_percent(1 / slow.ratio, 0)
                words = f"{slow.what.format(where)} at {rate} of the rate of equal groups: check its links"
                yield Finding(
                    cause="slow link", words=words, share=slow.lost_s / self.mean_s, loss_s=slow.lost_s, where=where,
                    ranks=tuple(sorted(slow.ranks)), hosts=hosts, confidence=confidence(slow.deviations),
                )  # fmt: skip

    def costs(self) -> Iterator[Finding]:
        """What nobody is slow in: exposed communication by collective, and idle devices."""
        shown: dict[str, float] = {}
        for one in self.seconds:
            for moved in one.transferred:
                size = f" over {moved.exchange.size} ranks" if moved.exchange.size > 1 else ""
                name = f"{(moved.exchange.op or 'communication').replace('_', '-')}{size}"
                shown[name] = shown.get(name, 0.0) + moved.exposed_s / self.count
        hidden_s = float(self._matrix(lambda one: one.busy_s).mean())
        for name, exposed_s in sorted(shown.items(), key=lambda item: -item[1])[:2]:
            if exposed_s > _NOTICED_COST * self.mean_s:
                words = f"{name} takes {format_time_s(exposed_s)} of each step in which nothing is computed"
                could = f", of which compute could hide {format_time_s(min(exposed_s, hidden_s))}"
                yield self._of_all("exposed communication", words + could, exposed_s, name)
        contended_s = float(np.median([one.contended_s for one in self.seconds]))
        if contended_s > _NOTICED_COST * self.mean_s:
            words = f"kernels take {format_time_s(contended_s)} of each step longer while communication is in progress"
            yield self._of_all("contention", words, contended_s)
        gap_s = low_median(np.median(self._matrix(lambda one: one.gap_s), axis=1))
        if gap_s > _NOTICED_COST * self.mean_s:
            words = f"devices are idle for {format_time_s(gap_s)} of each step between kernels: the host launches them late"
            yield self._of_all("idle device", words, gap_s)

    def _of_all(self, cause: Cause, words: str, lost_s: float, where: str = "all ranks") -> Finding:
        """A finding that no rank causes alone."""
        share = lost_s / self.mean_s
        return Finding(cause=cause, words=words, share=share, loss_s=lost_s, where=where, confidence="medium")

    def _by_host(self, rows: Mapping[int, object]) -> list[list[int]]:
        """Rows of slow ranks: those of a host together if all its traced ranks are slow, and other hosts' are not."""
        hosts: dict[str, list[int]] = {}
        for row, one in enumerate(self.ranks):
            hosts.setdefault(one.host, []).append(row)
        whole = [own for host, own in hosts.items() if host and len(own) > 1 and set(own) <= set(rows) and len(hosts) > 1]
        return [*whole, *([row] for row in rows if not any(row in own for own in whole))]

    def _finding(
        self, cause: Cause, rows: Sequence[int], words: str, lost_s: float, deviations: float, since: str = ""
    ) -> Finding:
        chosen = [self.ranks[row] for row in rows]
        where, hosts = of_ranks(chosen)
        share = lost_s / self.mean_s
        costs = f"; it costs {format_time_s(lost_s)}, {format_percent(share)} of each step"
        return Finding(
            cause=cause,
            words=f"{where} {words}{' ' + since if since else ''}{costs}",
            share=share,
            loss_s=lost_s,
            where=where,
            ranks=tuple(one.rank for one in chosen),
            hosts=hosts,
            device=str(chosen[0].device) if len(chosen) == 1 and chosen[0].device >= 0 else "",
            since=since,
            error=1 / deviations,
            confidence=confidence(deviations) if self.count >= MANY // 2 else "medium",
            source=chosen[0].source,
        )

    def table(self) -> list[RankTimes]:
        """Mean seconds of each rank."""
        names = ("step_s", "transfer_s", "waiting_s", "input_s", "gap_s")
        return [
            RankTimes(
                rank=one.rank.rank,
                host=one.rank.host,
                device=str(one.rank.device) if one.rank.device >= 0 else "",
                compute_s=float(one.busy_s.mean()),
                slowdown=float(np.median(self.slowdown[row])),
                **{name: float(getattr(one, name).mean()) for name in names},
            )
            for row, one in enumerate(self.seconds)
        ]
