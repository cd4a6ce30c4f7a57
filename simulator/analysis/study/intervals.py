"""90 % intervals of the step times of batched points, from the uncertainty of the cluster's quantities.

The first-order reliability method (Hasofer and Lind, 1974): in the space of standardised log slowdown factors, the step time
changes most along its gradient. Points are replayed twice, at the distance of a 90 % interval along the gradient in either
direction. `scaleproof.simulator.uncertainty.prediction_interval` uses draws instead, point by point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.quantities import DEVIATIONS, QUANTITIES
from scaleproof.simulator.engine.durations import durations_s
from scaleproof.simulator.program import Program
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.prediction_interval import added_seconds, quantity_deviations, replayed_s

Times = NDArray[np.float64]

# the simulator's model error, which scales the whole step and no single task
_MODEL_ERROR: Final = "model"
# Relative slowdown of a quantity in the finite differences.
SLOWDOWN: Final = 0.01


class RelativeIntervals(NamedTuple):
    """90 % interval of each point's step time, as multiples of it; each of shape (points,)."""

    low: Times
    high: Times


def relative_intervals(
    scenario: Scenario, program: Program, slower: Callable[[str], Program | None]
) -> RelativeIntervals | None:
    """90 % intervals of a program's points; None where they have to be computed point by point.

    slower: returns the points' program with one quantity slowed down by SLOWDOWN; None where it is not the same for all points.
    """
    names = list(quantity_deviations(scenario))
    seconds = durations_s(program)
    more_s: list[Times] = []
    for name in names:
        if name != _MODEL_ERROR:
            changed = slower(name)
            longer_s = None if changed is None else added_seconds(program, changed)
            if longer_s is None:
                return None
            more_s.append(longer_s / SLOWDOWN)
    seconds, *more_s = (column.reshape(len(program), -1) for column in (seconds, *more_s))
    # the model error comes last
    names = sorted(names, key=lambda name: name == _MODEL_ERROR)
    step_s = replayed_s(program, seconds)
    shares = [(replayed_s(program, seconds + SLOWDOWN * longer_s) / step_s - 1) / SLOWDOWN for longer_s in more_s]
    shares += [np.ones_like(step_s)] * (len(names) - len(more_s))
    bounds = np.log([QUANTITIES[name].slowdown_interval(scenario.cluster) for name in names]).reshape(-1, 2, 1)
    middle, deviation = bounds.mean(axis=1), (bounds[:, 1] - bounds[:, 0]) / (2 * DEVIATIONS)
    direction = deviation * np.array(shares).reshape(len(names), -1)
    direction /= np.maximum(np.linalg.norm(direction, axis=0), np.finfo(float).tiny)

    def at(deviations: float) -> Times:
        slowdowns = np.exp(middle + deviation * deviations * direction)
        longer_s = sum(added_s * (slowdown - 1) for added_s, slowdown in zip(more_s, slowdowns, strict=False))
        whole = slowdowns[len(more_s) :].prod(axis=0)
        return np.asarray(replayed_s(program, seconds + longer_s) / step_s * whole)

    return RelativeIntervals(at(-DEVIATIONS), at(DEVIATIONS))
