"""The errors on held-out points of a fit as an interval of a cluster file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from scaleproof.simulator.cluster.quantities import Interval, format_share
from scaleproof.simulator.common.errors import InputError

_FEWEST: Final = 3
_UPPER: Final = 0.95


def shares(measured: Sequence[float], predicted: Sequence[float]) -> tuple[float, float]:
    """90 % prediction interval of measured over predicted for one more case.

    From Student's distribution of the logarithms, which allows for the number of cases. Raises InputError for fewer than three.
    """
    from scipy.special import stdtrit

    if len(measured) < _FEWEST:
        raise InputError(f"{len(measured)} held-out cases are too few for an interval; give at least {_FEWEST}")
    errors = np.log(np.asarray(measured, dtype=float) / np.asarray(predicted, dtype=float))
    count = len(errors)
    reach = float(stdtrit(count - 1, _UPPER)) * float(errors.std(ddof=1)) * math.sqrt(1 + 1 / count)
    return math.exp(float(errors.mean()) - reach), math.exp(float(errors.mean()) + reach)


def interval(measured: Sequence[float], predicted: Sequence[float]) -> Interval:
    """The prediction interval in the form of a cluster file, such as from "96 %" to "104 %" of the times that the file
    gives."""
    low, high = shares(measured, predicted)
    return Interval(low=format_share(low), high=format_share(high), measurements=len(measured))
