"""Communication that some ranks of a group call and others do not, where real ranks would wait for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

_MESSAGE: Final = "message"


class IssuedCall(NamedTuple):
    """A call. row: of the events so far; name: of the collective, or 'message'; group: its name; ranks: of the group, for a
    message its source and target; line: of the script."""

    row: int
    name: str
    group: str
    ranks: tuple[int, ...]
    line: str

    @classmethod
    def message(cls, row: int, source: int, target: int, line: str) -> IssuedCall:
        """A message, which both of its ranks call."""
        return cls(row, _MESSAGE, f"{source} to {target}", (source, target), line)


class IssuedCalls(NamedTuple):
    """Calls of a rank with their numbers, without rows: until the end of its first training step, and in the recorded step.
    step: the number of that one."""

    first: Mapping[IssuedCall, int]
    recorded: Mapping[IssuedCall, int]
    step: int

    @classmethod
    def of(cls, calls: Iterable[IssuedCall], first: int, begin: int, end: int, step: int) -> IssuedCalls:
        """Those before the row `first`, and between the rows `begin` and `end`."""
        until, within = Counter[IssuedCall](), Counter[IssuedCall]()
        for call in calls:
            plain = call._replace(row=0)
            if call.row < first and call.name != _MESSAGE:
                # messages of the next step may be under way
                until[plain] += 1
            if begin <= call.row < end:
                within[plain] += 1
        return cls(until, within, step)


def unmatched(one: int, other: int, issued: Mapping[int, IssuedCalls]) -> str:
    """A sentence on the first call that one of two ranks makes more often than the other, though both are of its group; ''
    where they make equal numbers."""
    mine, theirs = issued[one], issued[other]
    parts = [(mine.first, theirs.first, "until the end of the first training step")]
    if mine.step == theirs.step:
        parts.append((mine.recorded, theirs.recorded, "in a training step"))
    for own, others, when in parts:
        for name, group in dict.fromkeys((call.name, call.group) for call in (*own, *others)):
            lines = [_lines(calls, name, group, (one, other)) for calls in (own, others)]
            counts = [sum(each.values()) for each in lines]
            if counts[0] != counts[1]:
                more = int(counts[1] > counts[0])
                line = next(iter(lines[more] - lines[1 - more]))
                ranks = (one, other) if more == 0 else (other, one)
                times = f"{counts[more]} instead of {counts[1 - more]} times"
                what = f"exchanges a message ({group})" if name == _MESSAGE else f"calls {name}"
                return (
                    f"{line}: rank {ranks[0]} {what} {times} {when}, compared with rank {ranks[1]} of the same group: GPUs "
                    "would wait there for ever; let all ranks of a group make the same calls"
                )
    return ""


def _lines(calls: Mapping[IssuedCall, int], name: str, group: str, ranks: tuple[int, int]) -> Counter[str]:
    """Lines of the calls of a name in a group to which both ranks belong."""
    found = Counter[str]()
    for call, count in calls.items():
        if (call.name, call.group) == (name, group) and all(rank in call.ranks for rank in ranks):
            found[call.line or "a library"] += count
    return found
