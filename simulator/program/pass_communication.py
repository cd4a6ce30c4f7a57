"""Collectives within passes: what the model-parallel group of a rank communicates for each layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


@dataclass(frozen=True)
class PassCommunication:
    """Collectives among ranks that share layers, of one microbatch.

    numbers: of the kinds of communication (`simulator.common.communication.number_of`), shape (kinds,). exposed_s,
    message_bytes, calls: of each kind in the forward and the backward pass over each layer, shape (kinds, 2, layers).
    """

    numbers: NDArray[np.int16]
    exposed_s: Values
    message_bytes: Values
    calls: Values

    def over(self, first: NDArray[np.int32], last: NDArray[np.int32], is_backward: NDArray[np.bool_]) -> PassTotals:
        """Totals of passes over the layers from `first` to `last`, all of shape (passes,)."""
        direction = is_backward.astype(np.int64)
        totals = []
        for values in (self.exposed_s, self.message_bytes, self.calls):
            before = np.cumsum(np.concatenate([np.zeros_like(values[..., :1]), values], axis=-1), axis=-1)
            totals.append(before[:, direction, last + 1] - before[:, direction, first])
        exposed_s, message_bytes, calls = totals
        end_s = np.cumsum(exposed_s, axis=0)
        end = np.divide(end_s, end_s[-1], out=np.zeros_like(end_s), where=end_s[-1] > 0)
        return PassTotals(
            np.concatenate([np.zeros_like(end[:1]), end[:-1]]), end, message_bytes, np.rint(calls).astype(np.int32)
        )


@dataclass(frozen=True)
class PassTotals:
    """Collectives within passes by kind, shape (kinds, passes). begin, end: of a kind within the exposed time of all kinds, one
    after another, as shares of it."""

    begin: Values
    end: Values
    message_bytes: Values
    calls: NDArray[np.int32]
