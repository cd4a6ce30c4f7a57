"""Groups of ranks whose collectives take longer than the same collectives of other groups, in traces; and such messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleproof.validator.calibration.imports.kineto import TracedCollective
from scaleproof.validator.diagnosis.places import implicated
from scaleproof.validator.diagnosis.ranks import RankSeconds, Transferred
from scaleproof.validator.estimation.robust import deviation, low_median

_SLOW: Final = 1.2
# Deviations from which on a group is slow, and from which on it is if another one of the same rank surely is.
_FAR: Final = 5.0
_NEAR: Final = 2.5
_FEWEST: Final = 3
_LEAST_DEVIATION: Final = 0.02
# A rank, and in which direction its link is used: "to" or "from" it, "" for both.
_Place = tuple[int, str]


class SlowGroup(NamedTuple):
    """Ranks that slow groups have in common. what: subject and verb, with {} for the ranks. ratio: of their times to those of
    others. lost_s: seconds of exposed communication in each step. deviations: from the others' times."""

    what: str
    ranks: frozenset[int]
    ratio: float
    lost_s: float
    deviations: float


class _Group(NamedTuple):
    """A collective's group, or both ends of a message. error_s: standard error of its time. exposed_s: by rank."""

    members: frozenset[_Place]
    transfer_s: float
    error_s: float
    exposed_s: dict[int, float]


def slow_groups(seconds: Sequence[RankSeconds]) -> Iterator[SlowGroup]:
    """The slow groups of each collective and size of which there are at least three."""
    kinds: dict[tuple[object, ...], dict[object, list[tuple[int, Transferred]]]] = {}
    for one in seconds:
        for moved in one.transferred:
            exchange = moved.exchange
            # where the other end of messages is unknown, each rank is a group
            group = exchange.ends or (one.rank.rank if exchange.op == "sendrecv" else (exchange.group, exchange.members))
            kind = (exchange.op, exchange.size_bytes, exchange.size, "" if exchange.ends else moved.way)
            kinds.setdefault(kind, {}).setdefault(group, []).append((one.rank.rank, moved))
    # a step can be shorter by no more than any rank is idle
    idle_s = min((float((one.transfer_s + one.waiting_s).mean()) for one in seconds), default=0.0)
    for groups in kinds.values():
        if len(groups) >= _FEWEST:
            exchange = next(iter(groups.values()))[0][1].exchange
            yield from _slow([_group(own) for own in groups.values()], exchange, idle_s)


def _group(own: Sequence[tuple[int, Transferred]]) -> _Group:
    exchange = own[0][1].exchange
    ranks = {rank for rank, _ in own} | set(exchange.members if len(own) > 1 else ())
    ends = zip(exchange.ends, ("from", "to"), strict=False)
    members = frozenset(ends) if exchange.ends else frozenset((rank, "") for rank in ranks)
    transfer_s, error_s = np.median([(moved.transfer_s, moved.error_s) for _, moved in own], axis=0).tolist()
    return _Group(members, transfer_s, error_s, {rank: moved.exposed_s for rank, moved in own})


def _slow(groups: Sequence[_Group], exchange: TracedCollective, idle_s: float) -> Iterator[SlowGroup]:
    times_s = np.array([group.transfer_s for group in groups])
    if not (times_s > 0).all():
        return
    usual_s = low_median(times_s)
    noise = max(deviation(times_s / usual_s), _LEAST_DEVIATION)
    errors = np.hypot(noise, [group.error_s / usual_s for group in groups])
    sure, near = (times_s / usual_s > np.maximum(_SLOW, 1 + far * errors) for far in (_FAR, _NEAR))
    slow, fast = ([group for group, one in zip(groups, near, strict=True) if one == side] for side in (True, False))
    surely = sure[near]
    places: dict[frozenset[int], tuple[set[str], list[_Group]]] = {}
    for members, numbers in implicated([group.members for group in slow], [group.members for group in fast]):
        ways, own = places.setdefault(frozenset(rank for rank, _ in members), (set(), []))
        ways |= {way for _, way in members}
        own += [slow[number] for number in numbers]
    for ranks, (ways, own) in places.items():
        if not any(is_sure for group, is_sure in zip(slow, surely, strict=True) if group in own):
            continue
        ratio = float(np.median([group.transfer_s for group in own])) / usual_s
        yield SlowGroup(_what(exchange, ways), ranks, ratio, _lost_s(own, usual_s, idle_s), (ratio - 1) / noise)


def _lost_s(slow: Sequence[_Group], usual_s: float, idle_s: float) -> float:
    """Seconds of each step that slow groups of a place cost. What a rank exchanges in one after the other adds up; so do
    messages of a rank, of which one end may compute meanwhile."""
    lost_s: dict[int, float] = {}
    longest_s = 0.0
    for group in slow:
        excess = 1 - usual_s / group.transfer_s
        longest_s += excess * max(group.exposed_s.values())
        for rank, exposed_s in group.exposed_s.items():
            lost_s[rank] = lost_s.get(rank, 0.0) + exposed_s * excess
    is_message = all(way for group in slow for _, way in group.members)
    return min(longest_s, idle_s) if is_message else max(lost_s.values())


def _what(exchange: TracedCollective, ways: set[str]) -> str:
    """'all-reduce of {} runs', 'messages from and to {} run'."""
    if exchange.ends:
        return f"messages {' and '.join(sorted(ways))} {{}} run"
    return f"{(exchange.op or 'communication').replace('_', '-')} of {{}} runs"
