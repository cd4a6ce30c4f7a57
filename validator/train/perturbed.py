"""Perturbations of one rank: by how much longer its compute lasts, and when it starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np
import torch

from scaleproof.simulator.common.speed_profile import SpeedProfiles
from scaleproof.simulator.engine.variation import jitter_factors, tail_factors
from scaleproof.simulator.scenario.schema import Scenario

_PROCESSOR: Final = torch.device("cpu")


class RankPerturbations:
    """Perturbations of a rank's compute, imposed on emulated compute as predicted: a permanent slowdown factor, random factors
    of each pass and step, and a speed that changes with time. Real compute can only be slowed by the factor.

    Times count from `begin`; until then the speed is constant. Random numbers depend on the seed and the rank.
    passes: number of the phases that the rank has entered, each of which has random factors of its own. device: that computes.
    """

    def __init__(
        self, scenario: Scenario, rank: int, passes: Callable[[], int] = lambda: 0, device: torch.device = _PROCESSOR
    ) -> None:
        unevenness = scenario.unevenness
        self.slowdown, self._delay_s = unevenness.slowdown(rank), unevenness.late_s(rank)
        # whether ranks need a common beginning of time
        self.are_timed = bool(unevenness.late or unevenness.noise or unevenness.throttled)
        self._jitter = unevenness.compute_jitter
        self._tail = unevenness.tail if rank < scenario.strategy.training_ranks else None
        self._random = np.random.default_rng([unevenness.seed, rank])
        pace = unevenness.pace(rank)
        self._profile = SpeedProfiles([[pace]]) if pace else None
        self._began_s: float | None = None
        self._passes, self._device = passes, device
        self._pass = -1
        self._of_step = self._of_pass = 1.0

    def begin(self) -> None:
        """Begins the time of the run, in which the rank waits first if it is late."""
        self._began_s = time.perf_counter()
        if self._delay_s:
            time.sleep(self._delay_s)

    def begin_step(self) -> None:
        """Draws the factor of a step."""
        if self._tail is not None and self._tail.each == "step":
            self._of_step = float(tail_factors(self._random.random(), self._tail))

    def lasts_s(self, begin_s: float, work_s: float) -> float:
        """Duration, seconds, of emulated work that begins at `begin_s` (of time.perf_counter)."""
        if self._pass != self._passes():
            self._pass = self._passes()
            self._of_pass = self._drawn()
        work_s *= self.slowdown * self._of_step * self._of_pass
        if self._profile is None or self._began_s is None:
            return work_s
        return self._profile.lasts_s(begin_s - self._began_s, work_s)

    def lengthen(self, begin_s: float) -> None:
        """Waits after real compute that began at `begin_s` (of time.perf_counter), until it has lasted longer by the slowdown
        factor."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        time.sleep((self.slowdown - 1) * (time.perf_counter() - begin_s))

    def _drawn(self) -> float:
        """The factor of a pass."""
        factor = 1.0
        if self._jitter:
            factor *= float(jitter_factors(self._random.standard_normal(), self._jitter))
        if self._tail is not None and self._tail.each == "pass":
            factor *= float(tail_factors(self._random.random(), self._tail))
        return factor
