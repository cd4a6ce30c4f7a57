"""Horizon: how many steps a forecast simulates, so that they tell what a step takes.

Where all steps are alike, a few. Where times are drawn, as many as the scenario has. Where speeds change by the clock, whole
cycles of what recurs, as far as they can be had: a part of one is no more like the rest than a sunny day is like a year.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.engine import Timeline, Variation
from scaleproof.simulator.program import Program
from scaleproof.simulator.run.scaling import STEPS
from scaleproof.simulator.scenario.schema import Scenario

Simulate = Callable[[Program, int, Variation], Timeline]

# Tasks of all steps that are simulated. Static: by replay 2 us and 0.7 kB each, 14 us by events where many share; 4 million are
# up to a minute and 3 GB. Others: 10 to 30 us each. On a 2-core virtual machine.
_MOST_TASKS: Final = {True: 4_000_000, False: 2_000_000}
# The more tasks a step has, the less it varies: so many tell its mean, unless more are asked for.
_ENOUGH_TASKS: Final = 2_000_000
# Of steps that are added for the sake of cycles or of the tail, unless more are asked for: some seconds' worth.
_MOST_ADDED: Final = 300_000
# Of workers that part the first quarter of the steps does not count.
_CYCLES: Final = {True: 3, False: 4}
# A mean of so many that are in the tail is good to a fifth or so, where the tail is not of the heaviest.
_IN_TAIL: Final = 40


def simulated(scenario: Scenario, program: Program, variation: Variation, simulate: Simulate) -> Timeline:
    """As many steps as tell what one takes. Raises FieldError for more than can be simulated."""
    steps, cycle_s, cycles = _steps(scenario, program), _cycle_s(scenario), _CYCLES[program.is_static]
    most = steps if "steps" in scenario.model_fields_set else max(steps, _MOST_ADDED // len(program))
    try:
        timeline = simulate(program, steps, variation)
        # the first steps may be slower than those that follow
        while steps < most and (part := _lasts_s(timeline) / (cycles * cycle_s + _lasts_s(timeline) / steps)) < 1:
            steps = min(most, 1 + math.ceil(steps / part))
            timeline = simulate(program, steps, variation)
    except OverflowError as error:
        message = f"{error}; give longer periods, or a share that is taken all the time"
        raise FieldError(("unevenness", "tenants"), message) from None
    return _of_whole_cycles(timeline, cycle_s) if program.is_static and cycle_s else timeline


def warnings(scenario: Scenario, timeline: Timeline) -> Iterator[str]:
    """What the scenario says of times that were not simulated."""
    lasts_s = _lasts_s(timeline)
    step_s = lasts_s / len(timeline.start_s)
    for field, spells in scenario.unevenness.spells():
        name = ".".join(map(str, ("unevenness", *field)))
        needed_s = spells.after_s if spells.period_s is None else spells.period_s
        if lasts_s < needed_s:
            so = "begins after" if spells.period_s is None else "recurs every"
            steps = math.ceil(2 * needed_s / step_s)
            yield (
                f"{name} {so} {format_time_s(needed_s)}, and the steps simulated end after {format_time_s(lasts_s)}; "
                f"set steps={steps} to see it"
            )


def _steps(scenario: Scenario, program: Program) -> int:
    """How many steps to simulate, if no cycles ask for more. Raises FieldError for more than can be."""
    unevenness = scenario.unevenness
    if program.is_static and not unevenness.is_random and not unevenness.changes:
        return STEPS
    steps, most = scenario.steps, max(2, _MOST_TASKS[program.is_static] // len(program))
    if "steps" not in scenario.model_fields_set:
        steps = min(steps, _ENOUGH_TASKS // len(program))
        if unevenness.tail is not None:
            steps = max(steps, min(_tail_steps(scenario), _MOST_ADDED // len(program)))
    elif steps > most:
        raise FieldError(("steps",), f"{steps:,} of {len(program):,} tasks each are too many to simulate; give at most {most}")
    return 1 + max(2, steps)


def _tail_steps(scenario: Scenario) -> int:
    """Of which enough have a rank in the tail."""
    tail, ranks = scenario.unevenness.tail, scenario.strategy.training_ranks
    assert tail is not None
    return math.ceil(_IN_TAIL / -math.expm1(ranks * math.log1p(-min(tail.share, 0.5))))


def _cycle_s(scenario: Scenario) -> float:
    """The longest period of what recurs, zero where nothing does."""
    return max((one.period_s or 0.0 for _, one in scenario.unevenness.spells()), default=0.0)


def _lasts_s(timeline: Timeline) -> float:
    return float(np.nanmax(timeline.end_s))


def _of_whole_cycles(timeline: Timeline, cycle_s: float) -> Timeline:
    """The steps after the first that take about a whole number of cycles; all, where that is less than one."""
    since_s = timeline.step_ends_s() - timeline.step_ends_s()[0]
    cycles = math.floor(since_s[-1] / cycle_s + 0.5 * since_s[-1] / len(since_s) / cycle_s)
    steps = 1 + int(np.argmin(np.abs(since_s - cycles * cycle_s)))
    return timeline.first(steps) if cycles and steps > 2 else timeline
