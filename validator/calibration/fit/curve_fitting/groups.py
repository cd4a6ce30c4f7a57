"""Odd members: who is slow among ranks, hosts or links that should be alike.

A slow host makes every pair slow that it is part of, a slow link one pair. Hosts are named first; a pair is named only where
it takes longer than the slower of its two hosts explains. All is told against the ordinary member, which is in the majority.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scaleproof.validator.calibration.fit.curve_fitting.robust import DEVIATION_OF_MEDIAN

# A member is odd where it takes longer by this much, and by so many deviations of what is not slow.
_LEAST: Final = 0.10
_DEVIATIONS: Final = 4.0
# Few values may understate the noise.
_FEW: Final = 2.0
# A host is slow where all but this part of its pairs are.
_OTHERWISE: Final = 0.25


@dataclass(frozen=True)
class Odd:
    """A member, or a pair of members, that takes `ratio` times as long as the others. sentence: the same for people."""

    members: tuple[int, ...]
    where: str
    ratio: float
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def compare(seconds: Mapping[tuple[int, ...], float], noun: str = "rank", verb: str = "") -> list[Odd]:
    """The slow ones, slowest first; hosts before pairs.

    seconds: by (member,) for what each does alone, by (member, other) for what pairs do; of both directions the slower counts.
    noun: what members are ("host"). verb: what they do ("computes at").
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


def _alone(logs: Mapping[tuple[int, ...], float], noun: str, verb: str) -> list[Odd]:
    ordinary = _low_median(list(logs.values()))
    beyond = {members: value - ordinary for members, value in logs.items()}
    return [
        Odd(members, f"{noun} {members[0]}", ratio, f"{noun} {members[0]} {verb} {_share(ratio)} of the others")
        for members, ratio in _slow(beyond)
    ]


def _pairs(logs: Mapping[tuple[int, ...], float], noun: str, verb: str) -> list[Odd]:
    every = sorted({member for pair in logs for member in pair})
    of_member = {member: [value for pair, value in logs.items() if member in pair] for member in every}
    ordinary = _low_median([_low_median(values) for values in of_member.values()])
    beyond = {pair: value - ordinary for pair, value in logs.items()}
    least = _threshold(list(beyond.values()))
    hosts = _slow_hosts(beyond, every, least)
    found = [
        Odd((host,), f"{noun} {host}", ratio, f"{noun} {host} is {ratio:.1f} times as slow to all others")
        for host, ratio in hosts.items()
    ]
    unexplained = {
        pair: value - max(float(np.log(hosts.get(member, 1.0))) for member in pair) for pair, value in beyond.items()
    }
    for (one, other), ratio in _slow(unexplained):
        where = f"{noun} {one} ↔ {noun} {other}"
        found.append(Odd((one, other), where, ratio, f"{where} {verb} {_share(ratio)} of the others"))
    return found


def _slow_hosts(beyond: Mapping[tuple[int, ...], float], every: Sequence[int], least: float) -> dict[int, float]:
    """Hosts of which nearly all pairs are slow, slowest first, and how many times as long these take.

    One after the other: pairs with a host that is slow already say nothing about their other end.
    """
    hosts: dict[int, float] = {}
    while True:
        slow: dict[int, float] = {}
        for member in every:
            others = [v for pair, v in beyond.items() if member in pair and not hosts.keys() & set(pair)]
            if len(others) >= 2 and sorted(others)[int(_OTHERWISE * (len(others) - 1))] > least:
                slow[member] = float(np.median(others))
        if not slow:
            return hosts
        worst = max(slow, key=lambda member: slow[member])
        hosts[worst] = float(np.exp(slow[worst]))


def _slow(beyond: Mapping[tuple[int, ...], float]) -> list[tuple[tuple[int, ...], float]]:
    """Those beyond what noise explains, and how many times as long they take; slowest first."""
    least = _threshold(list(beyond.values()))
    found = [(members, float(np.exp(value))) for members, value in beyond.items() if value > least]
    return sorted(found, key=lambda one: (-one[1], one[0]))


def _threshold(beyond: Sequence[float]) -> float:
    """How far beyond the ordinary noise does not reach, judged by those that are at most ordinary: slow ones do not count."""
    below = [-value for value in beyond if value <= 0]
    deviation = DEVIATION_OF_MEDIAN * float(np.median(below)) if below else 0.0
    return max(float(np.log1p(_LEAST)), _DEVIATIONS * deviation * (1 + _FEW / max(1, len(below))))


def _low_median(values: Sequence[float]) -> float:
    """Of an even number the lower one: of two that differ, the faster is as it should be."""
    return sorted(values)[(len(values) - 1) // 2]


def _share(ratio: float) -> str:
    return f"{1 / ratio:.0%}".replace("%", " %")
