"""Doubt: how far step times of points that were compiled together may be off, as the cluster's numbers are uncertain.

A step time deviates most where all slownesses deviate in the direction in which it grows most, each by its part. As far in that
direction as a 90 % interval reaches, to either side, points are replayed once more (the first-order reliability method; Hasofer
and Lind, 1974). `scaleproof.simulator.uncertainty.prediction_interval` draws instead, point by point.
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
from scaleproof.simulator.uncertainty.prediction_interval import doubtful, grown_s, replayed_s

Times = NDArray[np.float64]

# It slows the step as a whole, and no task.
_WHOLE: Final = "model"
# By how much quantities are slowed to see what follows from them.
LITTLE: Final = 0.01


class Around(NamedTuple):
    """Between which multiples of its step time each point's is with a probability of 90 %, each of shape (points,)."""

    low: Times
    high: Times


def around(scenario: Scenario, program: Program, slower: Callable[[str], Program | None]) -> Around | None:
    """How far the points of a program may be off; None where that has to be told point by point.

    slower: what the points compile to where a quantity is slower, if they still do together.
    """
    names = list(doubtful(scenario))
    seconds = durations_s(program)
    more_s: list[Times] = []
    for name in names:
        if name != _WHOLE:
            changed = slower(name)
            longer_s = None if changed is None else grown_s(program, changed)
            if longer_s is None:
                return None
            more_s.append(longer_s / LITTLE)
    seconds, *more_s = (each.reshape(len(program), -1) for each in (seconds, *more_s))
    # the step as a whole comes last
    names = sorted(names, key=lambda name: name == _WHOLE)
    step_s = replayed_s(program, seconds)
    shares = [(replayed_s(program, seconds + LITTLE * each_s) / step_s - 1) / LITTLE for each_s in more_s]
    shares += [np.ones_like(step_s)] * (len(names) - len(more_s))
    bounds = np.log([QUANTITIES[name].slownesses(scenario.cluster) for name in names]).reshape(-1, 2, 1)
    middle, deviation = bounds.mean(axis=1), (bounds[:, 1] - bounds[:, 0]) / (2 * DEVIATIONS)
    toward = deviation * np.array(shares).reshape(len(names), -1)
    toward /= np.maximum(np.linalg.norm(toward, axis=0), np.finfo(float).tiny)

    def at(deviations: float) -> Times:
        slownesses = np.exp(middle + deviation * deviations * toward)
        longer_s = sum(each_s * (slowness - 1) for each_s, slowness in zip(more_s, slownesses, strict=False))
        whole = slownesses[len(more_s) :].prod(axis=0)
        return np.asarray(replayed_s(program, seconds + longer_s) / step_s * whole)

    return Around(at(-DEVIATIONS), at(DEVIATIONS))
