"""Findings from dumps of flight recorders: the rank that others wait for in a collective that it has not entered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from scaleproof.simulator.analysis.diagnosis import Finding
from scaleproof.simulator.common.units import counted
from scaleproof.validator.calibration.imports.flight_recorder import FlightDump, RecordedCall
from scaleproof.validator.calibration.imports.reading import clock_text
from scaleproof.validator.diagnosis.places import listed


class _Stuck(NamedTuple):
    """A group with an unfinished collective. last: the last call of each rank. waiting: ranks in the collective; missing: those
    that have not entered it."""

    group: str
    name: str
    last: Mapping[int, RecordedCall]
    waiting: frozenset[int]
    missing: frozenset[int]


def diagnose_dumps(dumps: Sequence[FlightDump]) -> Iterator[Finding]:
    """Ranks that have not entered a collective in which others wait, without those that wait themselves, in another group."""
    groups = dict.fromkeys(group for dump in dumps for group in dump.groups)
    stuck = [found for group in groups if (found := _stuck(group, dumps)) is not None]
    waiting = frozenset[int]().union(*(one.waiting for one in stuck))
    for one in stuck:
        culprits = sorted(one.missing - waiting)
        if culprits:
            yield _missing(one, culprits)
        elif not one.missing:
            yield _all_inside(one)


def _stuck(group: str, dumps: Sequence[FlightDump]) -> _Stuck | None:
    own = {dump.rank: dump for dump in dumps if dump.groups.get(group)}
    last = {rank: dump.groups[group][-1] for rank, dump in own.items()}
    furthest = max(call.number for call in last.values())
    waiting = frozenset(rank for rank, call in last.items() if call.number == furthest and not call.is_complete)
    if not waiting:
        return None
    members = next((dump.members[group] for dump in own.values() if dump.members.get(group)), tuple(own))
    missing = frozenset(rank for rank in members if rank not in last or last[rank].number < furthest)
    name = next((dump.names[group] for dump in own.values() if group in dump.names), f"group {group}")
    return _Stuck(group, name, last, waiting, missing)


def _missing(one: _Stuck, culprits: Sequence[int]) -> Finding:
    call = one.last[min(one.waiting)]
    who = _named(culprits)
    verb = "has" if len(culprits) == 1 else "have"
    since = f" since {_time(call.created_s)}" if call.created_s else ""
    words = f"{who} {verb} not entered {call.op} {call.number} of {one.name}, in which {counted(len(one.waiting), 'rank')} wait"
    known = [one.last[rank] for rank in culprits if rank in one.last]
    before = f": the last before it was {known[0].op} {known[0].number}{_at(known[0])}" if known else ": no dump shows it there"
    return Finding(
        cause="stuck rank", words=f"{words}{since}{_at(call)}{before}", share=1.0, where=who, ranks=tuple(culprits),
        since=since.strip(), first=call.number,
    )  # fmt: skip


def _all_inside(one: _Stuck) -> Finding:
    """All ranks have entered the collective: they disagree on it, or the network does not carry it."""
    kinds = Counter((call.op, call.sizes) for call in one.last.values())
    usual = kinds.most_common(1)[0][0]
    odd = sorted(rank for rank, call in one.last.items() if (call.op, call.sizes) != usual)
    call = one.last[min(one.waiting)]
    if odd:
        theirs = one.last[odd[0]]
        who = _named(odd)
        words = f"{who} called {theirs.op} {theirs.sizes} where the other ranks of {one.name} called {usual[0]} {usual[1]}"
        return Finding(cause="stuck rank", words=f"{words}{_at(theirs)}", share=1.0, where=who, ranks=tuple(odd))
    words = f"all {len(one.last)} ranks are in {call.op} {call.number} of {one.name}, which does not end: check the network"
    return Finding(cause="slow link", words=f"{words}{_at(call)}", share=1.0, where=one.name, confidence="medium")


def _at(call: RecordedCall) -> str:
    return f" ({call.place})" if call.place else ""


def _time(at_s: float) -> str:
    text = clock_text(at_s)
    return f"{text} UTC" if text else "an unreadable time"


def _named(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed([str(rank) for rank in ranks])}"
