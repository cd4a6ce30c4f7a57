"""Times of single steps: their predicted distribution, and its comparison with measured ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

import numpy as np
from pydantic import Field, PositiveFloat

# Probabilities of the percentiles of a distribution.
PERCENTS: Final = tuple(percent / 100 for percent in range(1, 100))
# The percentiles that are shown, by name.
SHOWN: Final[Mapping[str, float]] = {"p5": 0.05, "p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
# The fewest measured steps that are compared.
FEWEST_STEPS: Final = 2
# The number of steps among which the longest is given.
MANY_STEPS: Final = 1000


@dataclass(frozen=True)
class StepDistribution:
    """The distribution of the times of single steps.

    mean_s: their mean. percentiles_s: the 1st to the 99th percentile. longest_s: the median of the longest of 1,000 steps.
    shares: share of the variance of the step time by source, the largest first; they add up to 1, or are empty.
    """

    mean_s: PositiveFloat
    percentiles_s: Annotated[tuple[PositiveFloat, ...], Field(min_length=len(PERCENTS), max_length=len(PERCENTS))]
    longest_s: PositiveFloat
    shares: Mapping[str, float] = field(default_factory=dict)

    def quantile_s(self, probability: float) -> float:
        """The quantile in seconds, from the 1st to the 99th percentile."""
        return float(np.interp(probability, PERCENTS, self.percentiles_s))

    @property
    def quantiles_s(self) -> dict[str, float]:
        """Seconds of a step at the 5th, 50th, 90th, 95th and 99th percentile, by name."""
        return {name: self.quantile_s(probability) for name, probability in SHOWN.items()}

    @property
    def spread(self) -> float:
        """The relative difference of the 95th percentile and the median."""
        return self.quantile_s(0.95) / self.quantile_s(0.50) - 1

    def distance(self, measured_s: Sequence[float]) -> float:
        """The Kolmogorov-Smirnov distance to measured step times: the largest difference of the two shares of steps that are
        shorter than any duration. Between the percentiles the distribution is linear, beyond them it is 0 or 1."""
        times_s = np.sort(np.asarray(measured_s, dtype=np.float64))
        predicted = np.interp(times_s, self.percentiles_s, PERCENTS, left=0.0, right=1.0)
        count = len(times_s)
        above, below = np.arange(1, count + 1) / count - predicted, predicted - np.arange(count) / count
        return float(max(above.max(), below.max()))

    def compared(self, measured_s: Sequence[float]) -> StepComparison | None:
        """The comparison with measured step times; None for fewer than two."""
        if len(measured_s) < FEWEST_STEPS:
            return None
        quantiles_s = measured_quantiles_s(measured_s)
        median_s = self.quantile_s(0.5)
        scaled_s = [seconds * median_s / quantiles_s["p50"] for seconds in measured_s]
        return StepComparison(
            len(measured_s), self.quantiles_s, quantiles_s, self.distance(measured_s), self.distance(scaled_s)
        )


@dataclass(frozen=True)
class StepComparison:
    """Predicted and measured times of single steps.

    steps: number of measured steps. predicted_s, measured_s: seconds at percentiles, by name. distance: Kolmogorov-Smirnov
    distance of both distributions; distance_of_shapes: the same after measured steps are scaled to the predicted median.
    """

    steps: int
    predicted_s: Mapping[str, float]
    measured_s: Mapping[str, float]
    distance: float
    distance_of_shapes: float


def measured_quantiles_s(step_times_s: Sequence[float]) -> dict[str, float]:
    """Seconds of a step at the percentiles of `SHOWN`, by name, from measured step times."""
    values = np.quantile(np.asarray(step_times_s, dtype=np.float64), list(SHOWN.values())).tolist()
    return dict(zip(SHOWN, values, strict=True))
