"""Seconds of fused mixtures of experts on one rank, as serving software runs them.

Tokens are routed and their copies permuted, two grouped products surround an activation, and outputs are summed by token. The
grouped products are those of `products`; the other kernels are bound by memory bandwidth.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.device.kernels.parameters import Speed
from scaleproof.simulator.cluster.device.kernels.products import products_s
from scaleproof.simulator.cluster.device.kernels.rates import MIXTURE_HALF_RANGES, MIXTURE_MIDDLES, MixtureRates

Values = NDArray[np.float64]

# Bytes of an activation between kernels; products may read it in a byte.
_STORED_BYTES: Final = 2


class ExpertWork(NamedTuple):
    """Mixtures on one rank; columns of shape (mixtures,) but for rows and counts.

    tokens: that enter the rank. inputs: of the activation, 2 if it is gated. imbalance: rows of the rank over an even share.
    rows, counts: rows of each expert of a group of equally loaded experts, and the experts of the group, shape (groups,).
    begins: index of each mixture's first group.
    """

    tokens: Values
    hidden: Values
    inter: Values
    inputs: Values
    imbalance: Values
    rows: Values
    counts: Values
    begins: NDArray[np.int64]


class Parts(NamedTuple):
    """Parts of the time of mixtures, shape (mixtures,). products_s: both grouped products. moved_s: the other kernels at the
    full memory bandwidth. terms: of the correction, shape (mixtures, terms)."""

    products_s: Values
    moved_s: Values
    terms: Values


def mixture_s(work: ExpertWork, rates: MixtureRates, speed: Speed, operand_bytes: int) -> Values:
    """Seconds of mixtures, shape (mixtures,). operand_bytes: of an element that products read."""
    parts = parts_s(work, speed, operand_bytes)
    correction = parts.terms[:, : len(rates.correction)] @ np.array(rates.correction)
    result: Values = (rates.fixed_s + parts.products_s + parts.moved_s / rates.memory_share) * np.exp(correction)
    return result


def parts_s(work: ExpertWork, speed: Speed, operand_bytes: int) -> Parts:
    """Parts of the time of mixtures."""
    rows, experts = (np.add.reduceat(values, work.begins) for values in (work.rows * work.counts, work.counts))
    group = np.repeat(np.arange(len(work.begins)), np.diff([*work.begins, len(work.rows)]))
    up, both_s = work.inputs * work.inter, np.zeros_like(rows)
    for columns, inner in ((up, work.hidden), (work.hidden, work.inter)):
        read_bytes = operand_bytes * (rows * inner + experts * inner * columns)
        sizes = work.rows, columns[group], inner[group], work.counts
        both_s += products_s(speed, *sizes, read_bytes, _STORED_BYTES * rows * columns, work.begins)
    # permuting copies, the activation, and the sum over copies
    moved_bytes = rows * (work.hidden * (2 * _STORED_BYTES + operand_bytes) + up * _STORED_BYTES + work.inter * operand_bytes)
    moved_bytes += 2 * _STORED_BYTES * work.tokens * work.hidden
    return Parts(both_s, moved_bytes / speed.memory_Bps, _terms(work, rows, experts))


def _terms(work: ExpertWork, rows: Values, experts: Values) -> Values:
    """Terms of the correction of each mixture, shape (mixtures, terms)."""
    logs = np.log2(np.stack([rows / experts, experts, work.hidden, work.inter, work.imbalance]))
    places = np.clip((logs - np.array(MIXTURE_MIDDLES)[:, None]) / np.array(MIXTURE_HALF_RANGES)[:, None], -1, 1)
    first, second = np.triu_indices(len(places))
    return np.concatenate([np.ones_like(places[:1]), places, places[first] * places[second]]).T
