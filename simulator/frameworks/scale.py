"""Loss with scale: how much longer the slowest of several ranks takes than the mean, for which all wait."""

from __future__ import annotations

import functools
from statistics import NormalDist

from scaleproof.simulator.frameworks.framework import Scale

# Blom's constant (Statistical Estimates and Transformed Beta-Variables, 1958).
_BLOM = 0.375


@functools.cache
def expected_maximum(count: int) -> float:
    """Expected largest of `count` independent standard normal variables, by Blom's approximation; 0 for one."""
    if count <= 1:
        return 0.0
    return NormalDist().inv_cdf((count - _BLOM) / (count - 2 * _BLOM + 1))


def slowest(scale: Scale, ranks: int, group: int) -> float:
    """Time of the slowest of the ranks that wait for each other, over the mean.

    ranks: all that synchronise in each step: the slowest device sets the pace, and its speed lasts. group: ranks that
    synchronise within each pass (tensor and context parallelism), where the slowest of each pass sets the pace.
    """
    return 1 + scale.device_deviation * expected_maximum(ranks) + scale.pass_jitter * expected_maximum(group)
