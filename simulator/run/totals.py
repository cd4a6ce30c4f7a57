"""Totals of a whole training run: time, GPU-hours, money, energy and CO2, with 90 % intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Self

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.record import Record
from scaleproof.simulator.run.run import Run

_HOUR_S: Final = 3600.0


class Estimate(Record):
    """A predicted number, and its 90 % interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """The estimate multiplied by a factor."""
        return Estimate(value=factor * self.value, low=factor * self.low, high=factor * self.high)


class TrainingTotals(Record):
    """Totals of training on a number of tokens. All of them grow with the step time, and so do their intervals.

    Not included: failures, restarts, evaluations and saving (`goodput` has these). cost_USD: None without a price of nodes;
    energy_J, carbon_kg: None without their power. carbon_kg_per_J: CO2 of the site's electricity.
    """

    tokens: float
    steps: int
    time_s: Estimate
    gpu_hours: Estimate
    cost_USD: Estimate | None
    energy_J: Estimate | None
    carbon_kg: Estimate | None
    carbon_kg_per_J: float

    @classmethod
    def of(
        cls,
        tokens: float,
        tokens_per_step: int | None,
        gpus: int,
        step_s: Estimate,
        bills: tuple[Mapping[str, float] | None, Mapping[str, float] | None],
        carbon_kg_per_J: float,
    ) -> Self:
        """Totals from numbers of one step. bills: its cost in US dollars and its energy in joules, "per_step".

        Raises InputError for models that read no tokens.
        """
        if not tokens_per_step:
            raise InputError("--tokens: the model reads no tokens; leave it out")
        steps = math.ceil(tokens / tokens_per_step)
        relative = step_s.times(1 / step_s.value)
        cost, energy = (None if bill is None else relative.times(steps * bill["per_step"]) for bill in bills)
        return cls(
            tokens=tokens,
            steps=steps,
            time_s=step_s.times(steps),
            gpu_hours=step_s.times(steps * gpus / _HOUR_S),
            cost_USD=cost,
            energy_J=energy,
            carbon_kg=None if energy is None else energy.times(carbon_kg_per_J),
            carbon_kg_per_J=carbon_kg_per_J,
        )

    @classmethod
    def of_run(cls, run: Run, tokens: float, carbon_kg_per_J: float) -> Self:
        """Totals of training as in a predicted run. Raises InputError for models that read no tokens."""
        low_s, high_s = run.prediction_interval_s or (run.step_time_s, run.step_time_s)
        step_s = Estimate(value=run.step_time_s, low=low_s, high=high_s)
        return cls.of(tokens, run.tokens, run.compute_ranks, step_s, (run.cost_USD, run.energy_J), carbon_kg_per_J)
