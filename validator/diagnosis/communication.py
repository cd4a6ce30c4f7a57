"""Findings from logs of communication: ranks that come late or wait, hosts whose calls take longer, and changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleproof.simulator.analysis.diagnosis import Finding
from scaleproof.simulator.common.units import format_change, format_change_s, format_percent, format_time_s
from scaleproof.validator.calibration.imports.comms_log import CommsLog, LoggedCall
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.diagnosis.logged import slow_places
from scaleproof.validator.estimation.robust import low_median, regimes

# Fewest calls of a collective that are a series, and the change from which on it counts.
_SERIES: Final = 20
_CHANGED: Final = 0.15
# Share of communication, and of all time, from which on waiting and slow calls count.
_NOTICED: Final = 0.05
_NOTICED_TIME: Final = 0.015
# Excess from which on calls take longer than those of other ranks, and the share of them that wait for nobody.
_SLOW: Final = 0.2
_PROMPT: Final = 0.1
# Difference of spans, as a share, from which on a clock was set.
_JUMP: Final = 0.02


class _RankCalls(NamedTuple):
    """Calls of a rank. host: "" if unknown."""

    rank: int
    host: str
    calls: Sequence[LoggedCall]
    source: str

    def seconds(self, name: str) -> list[float]:
        """Of each call of a collective."""
        return [call.seconds for call in self.calls if call.name == name]

    def span_s(self) -> float:
        """Seconds from the end of the first call to that of the last."""
        return self.calls[-1].end_s - self.calls[0].end_s

    def own_s(self) -> float:
        """Seconds between calls, which nobody else causes."""
        return self.span_s() - sum(call.seconds for call in self.calls[1:])


def diagnose_communication(logs: Sequence[CommsLog], notes: ImportNotes) -> Iterator[Finding]:
    """What logs of communication show, of one rank or several."""
    for log in logs:
        yield from _waiting(log)
    same: dict[tuple[str, ...], list[_RankCalls]] = {}
    for one in _ranks(logs, notes):
        # stages of a pipeline have different work
        same.setdefault(tuple(call.name for call in one.calls), []).append(one)
    for kinds, ranks in same.items():
        yield from _slow(ranks, sorted(set(kinds)), notes)
        for name in sorted(set(kinds)):
            yield from _changed(ranks, name)


def _ranks(logs: Sequence[CommsLog], notes: ImportNotes) -> list[_RankCalls]:
    """The calls of each rank that all of them have."""
    found: dict[int, _RankCalls] = {}
    for log in logs:
        for rank, calls in log.calls.items():
            if rank in found:
                first = found[rank].source
                notes.add(f"{log.path}: a second log of rank {rank}, after {first}; left out, as if of another job")
            else:
                found[rank] = _RankCalls(rank, log.hosts[rank], calls, str(log.path))
    usual = float(np.median([len(one.calls) for one in found.values()])) if found else 0.0
    for one in [one for one in found.values() if 2 * len(one.calls) < usual]:
        notes.add(f"{one.source}: {len(one.calls)} calls of rank {one.rank}, of other ranks {usual:.0f}; left out")
        del found[one.rank]
    count = min((len(one.calls) for one in found.values()), default=0)
    return [found[rank]._replace(calls=found[rank].calls[:count]) for rank in sorted(found)]


def _waiting(log: CommsLog) -> Iterator[Finding]:
    waiting_s = sum(one.waiting_s for one in log.waits)
    total_s = waiting_s + sum(one.seconds for one in log.waits)
    if waiting_s > _NOTICED * total_s > 0:
        most = max(log.waits, key=lambda one: one.waiting_s)
        share = waiting_s / total_s
        words = f"rank {min(log.calls, default=0)} waits for ranks that come later in {format_percent(share)} of its "
        words += f"communication ({format_time_s(waiting_s)} of {format_time_s(total_s)}, "
        words += f"{format_time_s(most.waiting_s)} in {most.name})"
        yield Finding(
            cause="slow rank", words=words, share=share, where="other ranks", confidence="medium", source=str(log.path)
        )


def _slow(ranks: Sequence[_RankCalls], kinds: Sequence[str], notes: ImportNotes) -> Iterator[Finding]:
    """Ranks that are busy for longer between collectives, so that others wait; or the slowest kind of calls."""
    ranks = [one for one in ranks if all(call.end_s for call in one.calls)]
    span_s = float(np.median([one.span_s() for one in ranks])) if ranks else 0.0
    # collectives keep ranks in step
    steady = {f"rank {one.rank}": one for one in ranks if abs(one.span_s() - span_s) < _JUMP * span_s and one.own_s() > 0}
    for one in ranks:
        if one not in steady.values():
            notes.add(f"{one.source}: the clock of rank {one.rank} jumps ({format_change_s(one.span_s() - span_s)}); left out")
    if not steady:
        return
    hosts = {place: one.host for place, one in steady.items()}
    about = span_s, ranks[0].source, "the logged time", hosts
    own_s = {place: one.own_s() for place, one in steady.items()}
    yield from slow_places(own_s, "work between collectives takes", *about)
    late_s = max(own_s.values()) - low_median(np.array(list(own_s.values())))
    found = list[Finding]()
    for name in kinds:
        # calls that wait for nobody
        calls_s = {place: one.seconds(name) for place, one in steady.items()}
        prompt_s = {place: len(own) * float(np.quantile(own, _PROMPT)) for place, own in calls_s.items()}
        if min(prompt_s.values()) > 0:
            found += slow_places(prompt_s, f"all {name} take", *about, cause="slow link", least=_SLOW)
    worst = max(found, key=lambda one: one.share, default=None)
    # waiting for a late rank is no slow link
    if worst is not None and worst.share * span_s > max(late_s, _NOTICED_TIME * span_s):
        yield worst


def _changed(ranks: Sequence[_RankCalls], name: str) -> Iterator[Finding]:
    """A collective that became slower for the rank that waits the least."""
    calls = [call for call in ranks[0].calls if call.name == name]
    seconds = np.min([one.seconds(name) for one in ranks], axis=0)
    if len(seconds) >= _SERIES and seconds.min() > 0:
        parts = regimes(seconds)
        before_s, after_s, first = parts[0].level, parts[-1].level, parts[-1].first
        if after_s > (1 + _CHANGED) * before_s:
            since = f"since call {first + 1}{f' ({calls[first].time})' if calls[first].time else ''}"
            words = f"{since} {name} takes {format_time_s(after_s)}, before {format_time_s(before_s)}"
            yield Finding(
                cause="slow link", words=f"{words} ({format_change(after_s / before_s - 1)})", share=1 - before_s / after_s,
                where="all ranks", since=since, first=first + 1, confidence="medium", source=ranks[0].source,
            )  # fmt: skip
