"""The number of steps that a prediction simulates.

If all steps are identical, a few. If times are random, as many as the scenario has. If speeds change with time, whole periods
of the recurring changes where possible, since a part of a period is not representative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.network.variability import variability
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.parameter_server import Bsp, Ssp
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.engine import Timeline, Variation
from scaleproof.simulator.engine.variation import is_out_of_phase, random_starts_s, steps_until_bound
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.prediction.staleness import WARM_UP
from scaleproof.simulator.program import Program
from scaleproof.simulator.run.run import DISTURBED
from scaleproof.simulator.scenario.schema import Scenario

Simulate = Callable[[Program, int, Variation], Timeline]

# Steps where all are identical: step 0 fills the overlap between steps; the next one is steady, and equal to all later ones.
STEPS: Final = 2
# Maximum number of simulated tasks, by whether the program is static. Static: 2 us and 0.7 kB per task in replay, 14 us in
# events where many share a resource, so that 4 million tasks need up to a minute and 3 GB. Others: 10 to 30 us per task.
# Measured on a 2-core virtual machine.
_MOST_TASKS: Final = {True: 4_000_000, False: 2_000_000}
# The more tasks a step has, the less it varies: this number gives its mean, unless the scenario sets `steps`.
_ENOUGH_TASKS: Final = 2_000_000
# Maximum number of tasks in steps that are added for periods or for the tail, unless the scenario sets `steps`: a few seconds.
_MOST_ADDED: Final = 300_000
# Periods to simulate, by whether the program is static: the first quarter of the steps of asynchronous workers is discarded.
_CYCLES: Final = {True: 3, False: 4}
# Phases of asynchronous ranks over which a long run is averaged. Without variation the ranks settle into one of many cycles.
# Times of different cycles have a standard deviation of 5 to 15 %, and a slight change of the cluster selects another, the more
# often the longer the run. Runs of few steps from equal phases respond continuously, and so does their mean (within 1 %; of
# four ranks 2.5 %). Many ranks average by themselves, but need more steps until their queues have filled.
_PHASES: Final = 20
_FEWEST_PHASES: Final = 3
_RANKS_OF_PHASES: Final = 80
_RANK_STEPS_OF_PHASE: Final = 24
# Steps of all phases as a multiple of those of a single run.
_STEPS_OF_PHASES: Final = 3
# Draws of which the middle one counts, and the most tasks of each.
_DRAWS: Final = 7
_MOST_REPEATED: Final = 20_000
# Steps with a rank in the tail: their mean has an error of about a fifth, unless the tail is extremely heavy.
_IN_TAIL: Final = 40


def simulate_steps(scenario: Scenario, program: Program, variation: Variation, simulate: Simulate, phases: int = 1) -> Timeline:
    """Simulates as many steps as the step time of a scenario follows from, in one of several phases of asynchronous ranks.

    Raises FieldError for more than can be simulated.
    """
    steps, cycle_s, cycles = _steps(scenario, program, phases), _cycle_s(scenario), _CYCLES[program.is_static]
    most = steps if "steps" in scenario.model_fields_set else max(steps, _MOST_ADDED // len(program))
    try:
        timeline = simulate(program, steps, variation)
        # the first steps may be slower than those that follow
        while steps < most and (part := _lasts_s(timeline) / (cycles * cycle_s + _lasts_s(timeline) / steps)) < 1:
            steps = min(most, 1 + math.ceil(steps / part))
            timeline = simulate(program, steps, variation)
    except OverflowError as error:
        message = f"{error}; give longer periods, or a share that is used all the time"
        raise FieldError(("unevenness", "tenants"), message) from None
    return _of_whole_cycles(timeline, cycle_s) if program.is_static and cycle_s else timeline


def starts_s(scenario: Scenario, program: Program) -> Sequence[NDArray[np.float64]]:
    """Starts of the ranks in seconds, shape (ranks,), for each draw of a run: of late ranks, and of asynchronous ranks of a
    long run at random within a step.

    A run of a given number of steps begins with all ranks together, and a run without one is long. A single worker has no
    phase. If speeds change with time, one draw covers whole periods, in which the phases change as well.
    """
    late_s = program.ranks.late_s
    is_alone = scenario.strategy.workers == 1 and not scenario.unevenness.is_random
    if "steps" in scenario.model_fields_set or is_alone or not is_out_of_phase(program):
        return [late_s]
    steady = 1 + _STEPS_OF_PHASES * scenario.steps // (1 + _steady_steps(scenario, program))
    most = max(_FEWEST_PHASES, min(_PHASES, _RANKS_OF_PHASES // scenario.strategy.workers, steady))
    draws = 1 if scenario.unevenness.changes else min(most, 1 + _ENOUGH_TASKS // (len(program) * scenario.steps))
    return [late_s + random_starts_s(program, draw) for draw in range(draws)]


def with_transient_jitter(scenario: Scenario) -> Scenario:
    """The scenario, with messages that vary by the network's variability if its asynchronous ranks begin together.

    Identical messages would keep such ranks together. Small differences separate them within tens of steps.
    """
    unevenness = scenario.unevenness
    if not is_transient(scenario) or unevenness.message_jitter > 0:
        return scenario
    inside = scenario.strategy.nodes_needed(scenario.cluster) == 1
    jitter = variability(scenario.cluster, inside)
    return scenario.model_copy(update={"unevenness": unevenness.model_copy(update={"message_jitter": jitter})})


def is_transient(scenario: Scenario) -> bool:
    """Whether a scenario is a run of asynchronous ranks from their beginning, which they have in common."""
    strategy = scenario.strategy
    if not isinstance(strategy, ParameterServer) or isinstance(strategy.consistency, Bsp) or strategy.consistency == Ssp(0):
        return False
    return strategy.units is not None or "steps" in scenario.model_fields_set


class Realisation(NamedTuple):
    """Timelines over which the times of a step are averaged, and the standard deviation of the logarithm of the length over
    draws of jitter, of which there is one timeline; zero for a single draw."""

    timelines: Sequence[Timeline]
    deviation: float = 0.0


def realisation(scenario: Scenario, program: Program, simulate: Simulate) -> Realisation:
    """The timelines of a scenario's program with its jitter: one, or where one draw says little, of several draws.

    Of asynchronous ranks in a long run, one of each draw of their phases; of those that begin together, the one of median
    length of several draws of jitter. Raises FieldError for more steps than can be simulated.
    """
    unevenness = scenario.unevenness
    variation = Variation(
        compute_jitter=unevenness.compute_jitter,
        message_jitter=unevenness.message_jitter,
        tail=unevenness.tail,
        seed=unevenness.seed,
    )
    starts = starts_s(scenario, program)
    varied = [replace(variation, start_s=start_s, seed=variation.seed + draw) for draw, start_s in enumerate(starts)]
    first, *others = timelines = [simulate_steps(scenario, program, one, simulate, len(starts)) for one in varied]
    if others or not (variation.is_random and is_transient(scenario)) or first.start_s.size > _MOST_REPEATED:
        return Realisation(timelines)
    seeds = (replace(variation, start_s=program.ranks.late_s, seed=variation.seed + draw) for draw in range(1, _DRAWS))
    drawn = sorted([first, *(simulate_steps(scenario, program, one, simulate) for one in seeds)], key=_lasts_s)
    return Realisation([drawn[_DRAWS // 2]], float(np.std(np.log([_lasts_s(one) for one in drawn]), ddof=1)))


def disturbed(cluster: Cluster) -> str:
    """A warning for a cluster whose calibration was disturbed; empty for others."""
    text = cluster.provenance.get(DISTURBED, "")
    return f"{cluster.name or 'the cluster'}: {text}" if text else ""


def warnings(scenario: Scenario, timeline: Timeline) -> Iterator[str]:
    """Warnings about perturbations of the scenario that occur only after the simulated steps."""
    lasts_s = _lasts_s(timeline)
    step_s = lasts_s / len(timeline.start_s)
    for field, spells in scenario.unevenness.spells():
        name = ".".join(map(str, ("unevenness", *field)))
        needed_s = spells.after_s if spells.period_s is None else spells.period_s
        if lasts_s < needed_s:
            occurs = "begins after" if spells.period_s is None else "recurs every"
            steps = math.ceil(2 * needed_s / step_s)
            yield (
                f"{name} {occurs} {format_time_s(needed_s)}, and the steps simulated end after {format_time_s(lasts_s)}; "
                f"set steps={steps} to see it"
            )


def _steps(scenario: Scenario, program: Program, phases: int) -> int:
    """The number of steps to simulate in each of several phases, without those added for periods. Raises FieldError if it is
    too large."""
    unevenness = scenario.unevenness
    if program.is_static and not unevenness.is_random and not unevenness.changes:
        return STEPS
    steps, most = scenario.steps, max(2, _MOST_TASKS[program.is_static] // len(program))
    if "steps" not in scenario.model_fields_set:
        steps = min(steps, _ENOUGH_TASKS // len(program))
        if unevenness.tail is not None:
            steps = max(steps, min(_tail_steps(scenario), _MOST_ADDED // len(program)))
        if phases > 1:
            fewest = math.ceil(_RANK_STEPS_OF_PHASE / scenario.strategy.workers)
            steps = max(fewest, math.ceil(_STEPS_OF_PHASES * steps / phases), _steady_steps(scenario, program))
    elif steps > most:
        raise FieldError(("steps",), f"{steps:,} of {len(program):,} tasks each are too many to simulate; give at most {most}")
    return 1 + max(2, steps)


def _steady_steps(scenario: Scenario, program: Program) -> int:
    """The number of steps of a phase until ranks of different speeds wait at their bound after the steps that are discarded."""
    return math.ceil(min(steps_until_bound(program) / WARM_UP, _STEPS_OF_PHASES * scenario.steps))


def _tail_steps(scenario: Scenario) -> int:
    """The number of steps of which `_IN_TAIL` are expected to have a rank in the tail."""
    tail, ranks = scenario.unevenness.tail, scenario.strategy.training_ranks
    assert tail is not None
    return math.ceil(_IN_TAIL / -math.expm1(ranks * math.log1p(-min(tail.share, 0.5))))


def _cycle_s(scenario: Scenario) -> float:
    """The longest period of recurring perturbations in seconds, zero without any."""
    return max((spells.period_s or 0.0 for _, spells in scenario.unevenness.spells()), default=0.0)


def _lasts_s(timeline: Timeline) -> float:
    """Seconds from the beginning to the end of the last task."""
    return float(np.nanmax(timeline.end_s))


def _of_whole_cycles(timeline: Timeline, cycle_s: float) -> Timeline:
    """The first step and as many as take about a whole number of periods; all steps, if they take less than one period."""
    since_s = timeline.step_ends_s() - timeline.step_ends_s()[0]
    cycles = math.floor(since_s[-1] / cycle_s + 0.5 * since_s[-1] / len(since_s) / cycle_s)
    steps = 1 + int(np.argmin(np.abs(since_s - cycles * cycle_s)))
    return timeline.first(steps) if cycles and steps > 2 else timeline
