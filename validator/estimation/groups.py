"""Slow members among ranks, hosts or links that should be equivalent.

A slow host slows every pair that it is part of, a slow link one pair. Hosts are found first; a pair is reported only if it
takes longer than the slower of its two hosts explains. Times are compared with the typical member, since most members are not
slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scaleproof.simulator.common.units import format_percent
from scaleproof.validator.estimation.posterior import robust_deviation

# A slow member takes longer by at least this share, and by this number of standard deviations of the noise.
_LEAST: Final = 0.10
_DEVIATIONS: Final = 4.0
# Widening for few values, which may understate the noise.
_FEW: Final = 2.0
# Share of a slow host's pairs that need not be slow.
_OTHERWISE: Final = 0.25


@dataclass(frozen=True)
class SlowMember:
    """A member, or a pair of members, that takes `ratio` times as long as the others. sentence: describes it."""

    members: tuple[int, ...]
    where: str
    ratio: float
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def slow_members(seconds: Mapping[tuple[int, ...], float], noun: str = "rank", verb: str = "") -> list[SlowMember]:
    """Slow members and pairs, slowest first; hosts before pairs.

    seconds: by (member,) for members alone, or by (member, other) for pairs, where the slower direction counts. noun: name of a
    member ("host"). verb: of the sentence ("computes at").
    """
    logs: dict[tuple[int, ...], float] = {}
    for members, time_s in seconds.items():
        key = tuple(sorted(members))
        logs[key] = max(logs.get(key, -np.inf), float(np.log(time_s)))
    if len(logs) < 2:
        return []
    if all(len(members) == 1 for members in logs):
        return _alone(logs, noun, verb or "runs at")
    return _pairs(logs, noun, verb or "runs at")


def _alone(logs: Mapping[tuple[int, ...], float], noun: str, verb: str) -> list[SlowMember]:
    typical = _low_median(list(logs.values()))
    excess = {members: value - typical for members, value in logs.items()}
    return [
        SlowMember(members, f"{noun} {members[0]}", ratio, f"{noun} {members[0]} {verb} {_share(ratio)} of the others")
        for members, ratio in _slow(excess)
    ]


def _pairs(logs: Mapping[tuple[int, ...], float], noun: str, verb: str) -> list[SlowMember]:
    every = sorted({member for pair in logs for member in pair})
    of_member = {member: [value for pair, value in logs.items() if member in pair] for member in every}
    typical = _low_median([_low_median(values) for values in of_member.values()])
    excess = {pair: value - typical for pair, value in logs.items()}
    least = _threshold(list(excess.values()))
    hosts = _slow_hosts(excess, every, least)
    slow = [
        SlowMember((host,), f"{noun} {host}", ratio, f"{noun} {host} is {ratio:.1f} times as slow to all others")
        for host, ratio in hosts.items()
    ]
    unexplained = {
        pair: value - max(float(np.log(hosts.get(member, 1.0))) for member in pair) for pair, value in excess.items()
    }
    for (one, other), ratio in _slow(unexplained):
        where = f"{noun} {one} ↔ {noun} {other}"
        slow.append(SlowMember((one, other), where, ratio, f"{where} {verb} {_share(ratio)} of the others"))
    return slow


def _slow_hosts(excess: Mapping[tuple[int, ...], float], every: Sequence[int], least: float) -> dict[int, float]:
    """Ratio by which each host is slower whose pairs are nearly all slow, slowest first.

    Hosts are found one after the other, because a pair with a slow host says nothing about its other end.
    """
    hosts: dict[int, float] = {}
    while True:
        slow: dict[int, float] = {}
        for member in every:
            others = [v for pair, v in excess.items() if member in pair and not hosts.keys() & set(pair)]
            if len(others) >= 2 and sorted(others)[int(_OTHERWISE * (len(others) - 1))] > least:
                slow[member] = float(np.median(others))
        if not slow:
            return hosts
        worst = max(slow, key=lambda member: slow[member])
        hosts[worst] = float(np.exp(slow[worst]))


def _slow(excess: Mapping[tuple[int, ...], float]) -> list[tuple[tuple[int, ...], float]]:
    """Members whose excess is larger than noise explains, and their ratios, slowest first."""
    least = _threshold(list(excess.values()))
    slow = [(members, float(np.exp(value))) for members, value in excess.items() if value > least]
    return sorted(slow, key=lambda member: (-member[1], member[0]))


def _threshold(excess: Sequence[float]) -> float:
    """Largest excess that noise explains, estimated from the values at or below the typical one: slow members do not count."""
    below = np.array([value for value in excess if value <= 0])
    deviation = robust_deviation(below) if len(below) else 0.0
    return max(float(np.log1p(_LEAST)), _DEVIATIONS * deviation * (1 + _FEW / max(1, len(below))))


def _low_median(values: Sequence[float]) -> float:
    """The lower median: of two values that differ, the faster one is the typical one."""
    return sorted(values)[(len(values) - 1) // 2]


def _share(ratio: float) -> str:
    return format_percent(1 / ratio, 0)
