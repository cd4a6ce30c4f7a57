"""Findings from logs of ranks: whose steps or timers are longer than those of its peers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleproof.simulator.analysis.diagnosis import Cause, Finding
from scaleproof.simulator.common.units import format_change, format_percent, format_time_s
from scaleproof.validator.diagnosis.places import FAR, confidence, implicated, least_excess, listed
from scaleproof.validator.estimation.robust import LEAST_DEVIATION, deviation, low_median
from scaleproof.validator.reconciliation.jobs.iterations import by_iteration, series_of
from scaleproof.validator.reconciliation.jobs.logs import JobLog

FEWEST: Final = 3
# Timers of work that a rank does alone. Those of transfers are long for the ranks that wait.
_OWN_WORK: Final = re.compile(r"compute$|generator$|^optimizer-(?!.*(?:gather|reduce))")
# Timers that contain others.
_OUTER: Final = re.compile(r"^forward-backward$|^optimizer$")
_RANK: Final = re.compile(r"rank (\d+)\b")
_DIGITS: Final = re.compile(r"\d+")
_OF_RANKS: Final = re.compile(r"rank|node|host|gpu|worker|proc|stdout|stderr", re.I)


class RankLogs(NamedTuple):
    """Logs of one job. log: of all ranks together. steps_s: median step of each, by place, of several logs."""

    log: JobLog
    steps_s: Mapping[str, float]


def by_job(logs: Sequence[JobLog]) -> list[RankLogs]:
    """The logs of each job: of all its ranks together, where their names differ in the number of a rank or host."""
    jobs: dict[tuple[str, str], list[JobLog]] = {}
    for log in logs:
        jobs.setdefault((log.software, _DIGITS.sub("#", _name(log))), []).append(log)
    result = []
    for own in jobs.values():
        if len(own) > 1 and _is_one_job(own):
            merged = JobLog(own[0].path, own[0].software, [], own[0].facts, max(log.memory_bytes for log in own))
            merged.records = by_iteration([record for log in own for record in log.records])
            merged.timers_s = next((log.timers_s for log in own if log.timers_s), {})
            places = zip(_places([_name(log) for log in own]), own, strict=True)
            result.append(RankLogs(merged, {place: float(np.median(series_of(log).values)) for place, log in places}))
        else:
            result += [RankLogs(log, {}) for log in own]
    return result


def _name(log: JobLog) -> str:
    """A file with its folder, which is the rank in logs of torchrun."""
    return f"{log.path.parent.name}/{log.path.name}"


def _is_one_job(logs: Sequence[JobLog]) -> bool:
    """Whether logs of equal names are of the same iterations, at the same time or named after ranks."""
    numbers = [{record.get("iteration") for record in log.records} for log in logs]
    if None in numbers[0] or len(set.intersection(*numbers)) < FEWEST:
        return False
    clocks = [[record["clock_s"] for record in log.records if "clock_s" in record] for log in logs]
    if not all(clocks):
        return _OF_RANKS.search(_name(logs[0])) is not None
    # those of hosts may be off
    differ = [word for words in _differing([_name(log) for log in logs]) for word in words]
    return max(map(min, clocks)) < min(map(max, clocks)) or all(_OF_RANKS.search(word) for word in differ)


def _differing(names: Sequence[str]) -> list[list[str]]:
    """The words with digits in which names differ."""
    words = [re.findall(r"[A-Za-z]*\d+", name) for name in names]
    differ = [place for place, column in enumerate(zip(*words, strict=True)) if len(set(column)) > 1]
    return [[own[place] for place in differ] for own in words]


def _places(names: Sequence[str]) -> list[str]:
    """Ranks or hosts of names: 'gpu001', or 'rank 3'."""
    return [re.sub(r"^(?:rank)?0*(\d+)$", r"rank \1", " ".join(words), flags=re.I) for words in _differing(names)]


def diagnose_logs(logs: Sequence[RankLogs]) -> Iterator[Finding]:
    """Ranks that are slower than their peers."""
    for one in logs:
        step_s = float(np.median(series_of(one.log).values))
        if not series_of(one.log).is_relative:
            source = str(one.log.path)
            yield from slow_places(one.steps_s, "steps take", step_s, source)
            yield from slow_places(*_timers(one.log), step_s, source)


def _timers(log: JobLog) -> tuple[Mapping[str, float], str]:
    """Seconds of each rank's own work in a step, and their name. Ranks of other pipeline stages have other work."""
    names = [name for name in log.timers_s if _OWN_WORK.search(name) and not _OUTER.match(name)]
    stages = log.facts["stages"].value if "stages" in log.facts else 1
    sums_s: dict[int, float] = {}
    for name in names if stages == 1 else ():
        for rank, own in log.timers_s[name].items():
            sums_s[rank] = sums_s.get(rank, 0.0) + float(np.median(own))
    return {f"rank {rank}": seconds for rank, seconds in sums_s.items()}, f"{listed(names)} take"


def slow_places(
    seconds: Mapping[str, float],
    verb: str,
    total_s: float,
    source: str,
    total: str = "each step",
    hosts: Mapping[str, str] | None = None,
    cause: Cause = "slow rank",
    least: float = 0.0,
) -> Iterator[Finding]:
    """Ranks or hosts whose seconds are longer than those of their peers. total_s: of which they are a part; total: in words.
    hosts: of ranks; one whose ranks are all slow is named instead of them. least: relative excess, if it is more than usual."""
    if len(seconds) < FEWEST:
        return
    known = hosts or {place: place for place in seconds if not _RANK.match(place)}
    values = np.array(list(seconds.values()))
    usual = low_median(values)
    noise = max(deviation(values) / usual, LEAST_DEVIATION)
    least = max(least, least_excess(len(values)), FAR * noise)
    slow = {place: own for place, own in seconds.items() if own / usual - 1 > least}
    if slow:
        own_s = float(np.median(list(slow.values())))
        excess_s, change = own_s - usual, own_s / usual - 1
        share = excess_s / max(total_s, own_s)
        places = ([frozenset({place, known.get(place) or place}) for place in own] for own in (slow, seconds.keys() - slow))
        names = [_named(one, seconds, known) for one, _ in implicated(*places)]
        where = listed(names)
        words = f"{where}: {verb} {format_time_s(own_s)}, on the other ranks {format_time_s(usual)} ({format_change(change)})"
        ranks = tuple(int(match[1]) for place in slow if (match := _RANK.match(place)))
        yield Finding(
            cause=cause, words=f"{words}; it costs {format_time_s(excess_s)}, {format_percent(share)} of {total}",
            share=share, loss_s=excess_s if total == "each step" else None, where=where, ranks=ranks,
            hosts=tuple(dict.fromkeys(host for place in slow if (host := known.get(place)))),
            confidence=confidence(change / noise), source=source,
        )  # fmt: skip


def _named(places: frozenset[str], ranks: Mapping[str, float], hosts: Mapping[str, str]) -> str:
    """A rank with its host, or a host."""
    rank = next((place for place in places if place in ranks), "")
    host = hosts.get(rank, "")
    return f"{rank} ({host})" if host and host != rank else rank or min(places)
