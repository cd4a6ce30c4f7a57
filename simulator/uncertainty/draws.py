"""Draws of independent standard normal variables, and 90 % intervals of functions of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

Amounts = NDArray[np.float64]

_QUANTILES: Final = (0.05, 0.95)
# Distance between unit vectors of the same direction.
_SAME_DIRECTION: Final = 1e-9


def drawn(function: Callable[[Amounts], Amounts], variables: int, draws: int) -> tuple[Amounts, Amounts]:
    """Equally likely values of a function of independent standard normal variables, shape (draws,), and its change by one
    standard deviation of each variable alone.

    function: takes variables of shape (variables, draws). It changes most along its changes; the draws are stratified in that
    direction, so that a few give the quantiles.
    """
    up, down = np.split(function(np.hstack([np.eye(variables), -np.eye(variables)])), 2)
    change = (up - down) / 2
    return function(normal_draws(draws, change)), change


def interval(values: Amounts) -> tuple[float, float]:
    """The 90 % interval of equally likely values, shape (draws,): the midpoints of equal parts, as Hazen's quantiles assume."""
    low, high = np.quantile(values, _QUANTILES, method="hazen").tolist()
    return low, high


def normal_draws(count: int, along: Amounts) -> Amounts:
    """Draws of independent standard normal variables, stratified in the direction `along`; shape (variables, draws).

    along: shape (variables,), with at most `count` variables. In this direction each draw is the midpoint of one of `count`
    equally likely intervals. The orthogonal directions take the midpoints in the orders of a Kronecker sequence with the powers
    of the root of x^(d+1) = x + 1 (M. Roberts, The unreasonable effectiveness of quasirandom sequences, 2018), decorrelated.
    """
    variables = len(along)
    if variables == 0:
        return np.empty((0, count))
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (variables + 1))
    places = np.outer(root ** -np.arange(1.0, variables + 1), np.arange(1.0, count + 1)) % 1
    basis, lengths = np.linalg.qr(_midpoints(count)[places.argsort(axis=1).argsort(axis=1)].T)
    draws: Amounts = lengths[0, 0] * basis.T
    # a reflection of the first axis onto that direction; normal variables remain normal
    length, first = float(np.linalg.norm(along)), np.eye(variables)[0]
    normal = first - along / length if length > 0 else np.zeros(variables)
    distance = float(np.linalg.norm(normal))
    if distance < _SAME_DIRECTION:
        return draws
    normal /= distance
    return draws - np.outer(2 * normal, normal @ draws)


@functools.lru_cache(maxsize=8)
def _midpoints(count: int) -> Amounts:
    """Midpoints, by probability, of `count` equally likely intervals of a standard normal variable, shape (count,)."""
    return np.array([NormalDist().inv_cdf((part + 0.5) / count) for part in range(count)])
