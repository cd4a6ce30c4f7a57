"""Seconds of fused mixtures of experts on one rank, as serving software runs them.

Tokens are routed and their copies permuted, two grouped products surround an activation, and outputs are summed by token. The
grouped products are those of `products`; the other kernels are bound by memory bandwidth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from scaleproof.simulator.cluster.device.kernels.products import products_s
from scaleproof.simulator.cluster.device.kernels.rates import Rates
from scaleproof.simulator.common.units import Seconds

if TYPE_CHECKING:
    from scaleproof.simulator.cluster.device.kernels.parameters import Speed

# Variables of the correction, logarithms to base 2: rows of an expert, experts of the rank, width of the model, width of an
# expert's part, and the load of the rank over an even share. Their middles and half ranges: beyond, a variable counts as its
# end, so that the correction is bounded.
MIXTURE_VARIABLES: Final = ("rows", "experts", "hidden", "inter", "imbalance")
MIXTURE_MIDDLES: Final = (7.5, 4.0, 12.0, 10.5, 1.5)
MIXTURE_HALF_RANGES: Final = (5.5, 5.0, 1.5, 3.5, 1.5)
# Terms: 1, each variable, and each product of two variables.
MIXTURE_TERMS: Final = 1 + len(MIXTURE_VARIABLES) + len(MIXTURE_VARIABLES) * (len(MIXTURE_VARIABLES) + 1) // 2


class MixtureRates(Rates):
    """A fused mixture of experts: routing, permutation, two grouped products with the activation between them, and the sum.

    The grouped products take as long as plain products of their sizes.
    """

    fixed_s: Seconds = Field(alias="fixed", description="fixed time of routing and of all launches")
    memory_share: float = Field(gt=0, le=4, description="share of the memory bandwidth that the other kernels reach")
    correction: tuple[float, ...] = Field(
        (), max_length=MIXTURE_TERMS, description="coefficients of a polynomial of second order for the logarithm of the time"
    )
    log_error: tuple[float, float] = (-0.5, 0.8)


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
