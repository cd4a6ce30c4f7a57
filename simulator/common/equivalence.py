"""Equivalent transfers and the equivalent links that they use, found by colour refinement (equitable partitions).

Two transfers are equivalent if they use links of the same classes by the same amounts; two links are equivalent if transfers of
the same classes use them by the same amounts. If equivalent links have the same capacity, and equivalent transfers the same
size, weight, limit and start, fair sharing gives equivalent transfers equal rates at all times. One transfer and one link of
each class then represent all (Grohe et al., Dimension Reduction via Colour Refinement, ESA 2014).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Hashes = NDArray[np.uint64]

# Binary digits of an amount that are compared; the rest is float rounding.
_DIGITS: Final = 36
# Constants of splitmix64 (Steele et al., Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
_STEP, _FIRST, _SECOND = (np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class UsedLinks(NamedTuple):
    """Uses of links by transfers: arrays of shape (uses,).

    label: hash of what distinguishes the uses of one transfer, such as their amount, see `labels`; shape (1,) if nothing does.
    """

    transfer: Numbers
    link: Numbers
    label: Hashes


def labels(amounts: NDArray[np.float64], *kinds: Numbers) -> Hashes:
    """Labels of uses by their amount and further numbers, all of shape (uses,); amounts that differ by rounding are equal."""
    mantissa, exponent = np.frexp(amounts)
    return hashes(np.rint(np.ldexp(mantissa, _DIGITS)), exponent, *kinds)


def hashes(*columns: NDArray[Any]) -> Hashes:
    """A 64-bit hash of each row of some columns of numbers, shape (rows,)."""
    result = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        bits = column.view(np.uint64) if column.dtype == np.float64 else column.astype(np.uint64)
        result = _mixed(result ^ _mixed(bits))
    return result


def classes(uses: UsedLinks, transfers: Hashes, links: Hashes) -> tuple[Numbers, Numbers]:
    """The class of each transfer and of each link: the coarsest classes within the given ones, shape (transfers,), (links,).

    transfers, links: hashes that are equal for transfers and links that may be equivalent. Classes are numbered from zero. Sets
    of uses are compared by their hashes: two different ones among a million are equal with a probability below 1e-7.
    """
    counts = (-1, -1)
    label = _mixed(uses.label)
    while counts != (counts := (_distinct(transfers), _distinct(links))):
        links = _divided(links, uses.link, transfers, uses.transfer, label)
        transfers = _divided(transfers, uses.transfer, links, uses.link, label)
    return _numbered(transfers), _numbered(links)


def _divided(members: Hashes, of_use: Numbers, others: Hashes, other_of_use: Numbers, label: Hashes) -> Hashes:
    """Classes of members, divided by the sets of their uses: the labels, and the classes of those on the other side."""
    total = np.zeros(len(members), dtype=np.uint64)
    # hashes of all others are fewer than those of all uses
    use = _mixed(label ^ others)[other_of_use] if len(label) == 1 else _mixed(label ^ others[other_of_use])
    np.add.at(total, of_use, use)
    return _mixed(total ^ members)


def _sorted(values: Hashes) -> Hashes:
    """The distinct values in ascending order; np.unique is slower."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(values) else ordered


def _distinct(values: Hashes) -> int:
    return len(_sorted(values))


def _numbered(values: Hashes) -> Numbers:
    """Number of each value, from zero on."""
    return np.searchsorted(_sorted(values), values)


def _mixed(values: Hashes) -> Hashes:
    """A hash of each number (splitmix64)."""
    mixed = values + _STEP
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= factor
    mixed ^= mixed >> np.uint64(31)
    return mixed
