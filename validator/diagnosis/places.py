"""Places of findings in words, and which host or rank a set of slow groups has in common."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final, Literal, TypeVar

from scaleproof.validator.reconciliation.jobs.trace_spans import TracedRank

# A rank is slow from this excess over its peers on, with many and with few of them, and from this number of deviations on.
SLOW: Final = 0.04
_SLOW_OF_FEW: Final = 0.08
MANY: Final = 8
FAR: Final = 5.0
_SURE: Final = 10.0
_LIKELY: Final = 6.0
_MOST: Final = 4
_Place = TypeVar("_Place", bound=Hashable)


def least_excess(ranks: int) -> float:
    """The excess over its peers, relative to theirs, from which on one of a number of ranks is slow."""
    return SLOW if ranks >= MANY else _SLOW_OF_FEW


def confidence(deviations: float) -> Literal["high", "medium", "low"]:
    """The confidence in a finding by its distance from what is usual, in standard deviations."""
    return "high" if deviations >= _SURE else "medium" if deviations >= _LIKELY else "low"


def of_ranks(ranks: Sequence[TracedRank]) -> tuple[str, tuple[str, ...]]:
    """Ranks in words, such as 'rank 11 (gpu001, GPU 3)' or 'ranks 8 to 15 (gpu001)', and their hosts."""
    hosts = tuple(dict.fromkeys(one.host for one in ranks if one.host))
    numbers = sorted(one.rank for one in ranks)
    if len(ranks) == 1:
        device = [f"GPU {ranks[0].device}"] if ranks[0].device >= 0 else []
        inside = ", ".join([*hosts, *device])
        return f"rank {numbers[0]}{f' ({inside})' if inside else ''}", hosts
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        text = f"ranks {numbers[0]} to {numbers[-1]}"
    else:
        text = f"ranks {listed([str(number) for number in numbers])}"
    return f"{text}{f' ({listed(hosts)})' if hosts else ''}", hosts


def listed(names: Sequence[str]) -> str:
    """Names as text: 'a and b', or 'a, b, c and 5 more'."""
    shown = list(names) if len(names) <= _MOST else [*names[: _MOST - 1], f"{len(names) - _MOST + 1} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def implicated(
    slow: Sequence[frozenset[_Place]], fast: Sequence[frozenset[_Place]]
) -> list[tuple[frozenset[_Place], list[int]]]:
    """Places that explain slow groups: each with the positions of the groups that it explains.

    The place that is in the most slow groups, and in no fast one, explains these; then the others are searched. Places that
    are in the same groups are named together. A group of places that are all fast elsewhere is explained as a whole.
    """
    innocent = frozenset[_Place]().union(*fast)
    left = dict(enumerate(slow))
    found = []
    while left:
        counts: dict[_Place, list[int]] = {}
        for number, group in left.items():
            for place in group - innocent:
                counts.setdefault(place, []).append(number)
        if not counts:
            found += [(group, [number]) for number, group in left.items()]
            break
        most = max(map(len, counts.values()))
        numbers = next(own for own in counts.values() if len(own) == most)
        found.append((frozenset(place for place, own in counts.items() if own == numbers), numbers))
        left = {number: group for number, group in left.items() if number not in numbers}
    return found
