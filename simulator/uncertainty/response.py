"""Response of a program's step time to slowdown factors of uncertain quantities, to first order.

Task durations are linear in the slowdown factors of quantities as long as the bottleneck stays the same. The program is
therefore compiled once more for each quantity with a small slowdown. Replay then times the durations for any factors; where
the same path remains the longest, a few replays give a linear function. If resources are shared, so that events time the step,
its response is computed as if they were not. Jitter within a run and speeds that change with time are not included.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.quantities import DEVIATIONS, slowed
from scaleproof.simulator.engine import Variation, events, replay
from scaleproof.simulator.engine.durations import durations_s
from scaleproof.simulator.prediction.staleness import asynchronous_step_s
from scaleproof.simulator.prediction.steps import STEPS, starts_s
from scaleproof.simulator.program import MAIN_STREAM, Kind, Program
from scaleproof.simulator.run.breakdown import slopes
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step, priced
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.simulator.uncertainty.error_model import MODEL, ErrorModel, case_of_scenario, shipped
from scaleproof.simulator.uncertainty.priors import Priors, quantity_deviations

Times = NDArray[np.float64]
Function = Callable[[Times], Times]

# The quantity that nearly always matters. All others are bisected, by standard deviation, until a half is a single quantity or
# contributes less than this share of the standard deviation, that is a hundredth of the variance.
_MAIN: Final = "device"
LEAST: Final = 0.1
# Relative slowdown with which the effect of a quantity is computed. Task durations are linear, so that a small one suffices;
# the order of events is not, and a larger one is more accurate.
_LITTLE: Final = 0.01
_MORE: Final = 0.05
# Where events time the steps, a quarter of the steps is simulated for each quantity, and at least this number.
_ONE_IN: Final = 4
_FEWEST_STEPS: Final = 6
# Phases of asynchronous ranks over which the response is averaged.
_MOST_DRAWS: Final = 3
# Half-width in standard deviations of the box in which step times are checked for linearity, which nearly all draws are in, and
# the number of quantities up to which that check is cheaper than replaying the draws.
_REACH: Final = 3.3
_MOST_LINEAR: Final = 6
# Largest relative error of step times that are computed as linear functions: small next to the width of an interval.
_LINEAR_TOLERANCE: Final = 2e-3
NEGLIGIBLE: Final = 1e-4
# Relative difference of durations that is rounding.
_NOTHING: Final = 1e-9


@dataclass(frozen=True)
class Response:
    """The response of a program's step time to slowdown factors of quantities, to first order.

    seconds: duration of each task, shape (tasks,). more_s: derivative of each task's duration with respect to a quantity's
    slowdown factor, shape (tasks,). whole: derivative of the relative step time, for quantities whose effect is not one on
    single tasks. priors: of the quantities of both, in this order. exposed: share of the step time that does not depend on the
    device's speed.
    """

    program: Program
    seconds: Times
    more_s: Mapping[str, Times]
    whole: Mapping[str, float]
    priors: Priors
    exposed: float = 0.0

    def step_times(self, factors: Times) -> Times:
        """Step times as multiples of the predicted one, shape (draws,).

        factors: slowdown factors of the quantities of `priors`, shape (quantities, draws).
        """
        in_tasks, in_whole = np.split(factors - 1, [len(self.more_s)])
        times: Times = np.ones(factors.shape[1])
        if self.more_s:
            slowdowns = np.hstack([np.zeros((len(in_tasks), 1)), in_tasks])
            steps_s = slopes((self.linear or self._ends_s)(slowdowns).T)
            times = steps_s[1:] / steps_s[0]
        for slowdown, share in zip(in_whole, self.whole.values(), strict=True):
            times = times * (1 + slowdown * share)
        return times

    def durations_s(self, slowdowns: Times) -> Times:
        """Seconds of each task, shape (tasks, draws). slowdowns: slowdown factors minus 1 of the quantities of `more_s`, shape
        (quantities, draws)."""
        columns = [more_s[:, None] for more_s in self.more_s.values()]
        return np.asarray(self.seconds[:, None] + np.hstack([np.empty((len(self.seconds), 0)), *columns]) @ slowdowns)

    def _ends_s(self, slowdowns: Times) -> Times:
        """End of each step in seconds, shape (steps, draws)."""
        return _ends_s(self.program, self.durations_s(slowdowns))

    @functools.cached_property
    def linear(self) -> Function | None:
        """The ends of steps as a linear function of slowdown factors minus 1; None if they are not nearly linear within 3.3
        standard deviations of each quantity.

        They are linear if the same path is the longest everywhere, and no task queues at a server or on a connection; nearly so
        if paths of nearly the same length are.
        """
        program, count = self.program, len(self.more_s)
        queues = (program.kind == Kind.SERVE) | (program.partner >= 0) | (program.ready_after >= 0)
        if queues.any() or not 0 < count <= _MOST_LINEAR:
            return None
        middle, reach = self.priors.middle, _REACH * (self.priors.high - self.priors.low) / (2 * DEVIATIONS)
        ends = np.minimum(0.0, middle - reach), np.maximum(0.0, middle + reach)
        low, high = (np.array([math.exp(end) - 1 for end in side[:count].tolist()]) for side in ends)
        return linear_in_box(self._ends_s, low, high, _LINEAR_TOLERANCE)


def linear_in_box(function: Function, low: Times, high: Times, tolerance: float) -> Function | None:
    """A convex function as a linear function in the box from low to high; None if the error may be more than `tolerance`.

    function: returns values of shape (values, places) at places of shape (axes, places); called once, with the middle and the
    corners of the box. tolerance: largest error, relative to the value in the middle.

    The length of the longest of several paths is a convex function of the durations of their parts. A convex function has a
    tangent in the middle that is nowhere above it. Where the mean of the 2^n corners of n axes is above the middle by d, the
    function is nowhere more than 2^n d above the tangent. The mean of the corners differs from the tangent by d, and their
    slopes by n d at most.
    """
    sides = np.array(list(itertools.product((-0.5, 0.5), repeat=len(low)))).T
    center, extent = (low + high) / 2, (high - low)[:, None]
    results = function(center[:, None] + extent * np.hstack([np.zeros((len(low), 1)), sides]))
    middle, corners = results[:, 0], results[:, 1:]
    values = corners.mean(axis=1)
    error = (corners.shape[1] + len(low)) * np.abs(values - middle)
    if (error > tolerance * np.abs(middle)).any():
        return None
    slope = 4 * (corners @ (sides / extent).T) / corners.shape[1]
    return lambda places: np.asarray(values[:, None] + slope @ (places - center[:, None]))


def response_of_scenario(
    scenario: Scenario, program: Program | None = None, least: float = LEAST, errors: ErrorModel | None = None
) -> Response:
    """The response of a scenario's step time to the uncertain quantities of its cluster.

    program: the scenario's program, if it is already compiled and nothing in it is random. least: groups of quantities that
    contribute less than this share of the standard deviation are left out, except the device; so are quantities without effect.
    errors: the shipped error model if None.
    """
    slower, deviations = _SlowerPrograms(scenario, program), quantity_deviations(scenario)
    effects: dict[str, Times | float] = {}
    deviation, computing = deviations.get(MODEL, 0.0), 0.0
    rest = sorted((name for name in deviations if name not in (_MAIN, MODEL)), key=lambda name: -deviations[name])
    # Compiling and replaying take time, so that quantities that may not matter are slowed in groups. One replay times all
    # groups; the stack is evaluated from its end.
    main, half = [name for name in deviations if name == _MAIN], len(rest) // 2
    initial = ((names, slower.effect(*names)) for names in (main, rest[:half], rest[half:]) if names)
    groups = slower.with_shares(*initial)[::-1]
    while groups:
        names, effect, share = groups.pop()
        if len(names) == 1:
            effects[names[0]] = effect
            computing = min(1.0, share) if names[0] == _MAIN else computing
            deviation = math.hypot(deviation, share * deviations[names[0]])
        elif share > 0 and share * deviations[names[0]] >= least * deviation:
            first, second = names[: len(names) // 2], names[len(names) // 2 :]
            first_effect = slower.effect(*first)
            if isinstance(effect, float) or isinstance(first_effect, float):
                second_effect = slower.effect(*second)
            else:
                # task durations add up
                second_effect = slower.rounded(effect - first_effect)
            groups += slower.with_shares((second, second_effect), (first, first_effect))
    whole = {name: effect for name, effect in effects.items() if isinstance(effect, float) and effect > NEGLIGIBLE}
    more_s = {name: effect for name, effect in effects.items() if not isinstance(effect, float) and effect.any()}
    whole |= {MODEL: 1.0} if MODEL in deviations else {}
    model = case_of_scenario(scenario).log_ends(scenario.cluster, errors or shipped(), 1 - computing)
    priors = Priors.of((*more_s, *whole), scenario.cluster, model)
    return Response(slower.program, slower.seconds, more_s, whole, priors, 1 - computing)


def relative_increase(scenario: Scenario, response: Response, quantities: Sequence[str], slowdown: float) -> float:
    """Relative increase of a scenario's step time if quantities of its cluster are slower by a factor: from its response, or
    from replay where the response leaves all of them out because they hardly matter for the interval."""
    names = [name for name in quantities if name in response.priors.names]
    if names:
        factors = np.where([name in names for name in response.priors.names], slowdown, 1.0)[:, None]
        return float(response.step_times(factors)[0]) - 1
    if not response.program.is_static:
        return 0.0
    job = job_of(scenario, unevenness=scenario.unevenness.constant)
    cluster = slowed(job.cluster, dict.fromkeys(quantities, slowdown))
    slower = priced(scenario.strategy, replace(job, cluster=cluster), response.program)
    longer_s = added_seconds(response.program, slower, response.seconds)
    if longer_s is None or not longer_s.any():
        return 0.0
    first_s, slower_s = replayed_s(response.program, response.seconds[:, None] + np.outer(longer_s, (0.0, 1.0))).tolist()
    return float(slower_s / first_s - 1)


class _SlowerPrograms:
    """Compiles and times the program of a scenario with slower quantities. Arguments: see `response_of_scenario`."""

    def __init__(self, scenario: Scenario, program: Program | None) -> None:
        self.scenario, self.strategy = scenario, scenario.strategy
        self.job = job_of(scenario, unevenness=scenario.unevenness.constant)
        self.program = program or compile_step(self.strategy, self.job)
        self.steps = max(_FEWEST_STEPS, scenario.steps // _ONE_IN)
        self.seconds = durations_s(self.program)
        self.slowdown = _LITTLE if self.program.is_static else _MORE

    @functools.cached_property
    def step_s(self) -> float:
        return _step_s(self.scenario, self.program, self.steps)

    def effect(self, *names: str) -> Times | float:
        """Derivative of the task durations with respect to the slowdown factor that these quantities share, shape (tasks,);
        that of the relative step time, if the effect is not one on single tasks."""
        cluster = slowed(self.job.cluster, dict.fromkeys(names, 1 + self.slowdown))
        program = priced(self.strategy, replace(self.job, cluster=cluster), self.program)
        longer_s = added_seconds(self.program, program, self.seconds)
        if longer_s is not None and (self.program.is_static or not longer_s.any()):
            return self.rounded(longer_s) / self.slowdown
        return min(1.0, (_step_s(self.scenario, program, self.steps) / self.step_s - 1) / self.slowdown)

    def rounded(self, more_s: Times) -> Times:
        """Differences of task durations without those that are rounding."""
        return np.where(np.abs(more_s) > _NOTHING * self.seconds, more_s, 0.0)

    def with_shares(self, *groups: tuple[Sequence[str], Times | float]) -> list[tuple[Sequence[str], Times | float, float]]:
        """Groups of quantities with their effects and the derivatives of the relative step time, at least zero.

        One replay times all groups.
        """
        changing = [effect for _, effect in groups if not isinstance(effect, float) and effect.any()]
        shares = iter(())
        if changing:
            added_s = _LITTLE * np.stack([np.zeros_like(self.seconds), *changing], axis=1)
            first_s, *slower_s = replayed_s(self.program, self.seconds[:, None] + added_s).tolist()
            shares = iter([(step_s / first_s - 1) / _LITTLE for step_s in slower_s])
        result = []
        for names, effect in groups:
            share = effect if isinstance(effect, float) else next(shares) if effect.any() else 0.0
            result.append((names, effect, max(0.0, share)))
        return result


def added_seconds(program: Program, slower: Program, seconds: Times | None = None) -> Times | None:
    """Seconds by which each task takes longer in the slower program, shape (tasks,); None if they differ in anything else.

    Updates of servers are not tasks. seconds: durations of the first program's tasks; computed if None.
    """
    columns = ("kind", "rank", "peer", "update_s")
    if len(program) != len(slower) or not all(
        np.array_equal(getattr(program, name), getattr(slower, name)) for name in columns
    ):
        return None
    return durations_s(slower) - (durations_s(program) if seconds is None else seconds)


def _step_s(scenario: Scenario, program: Program, steps: int) -> float:
    """Seconds of one step, without jitter. steps: number to simulate, where events time them."""
    if program.is_static:
        return float(replayed_s(program, durations_s(program)[:, None])[0])
    starts = starts_s(scenario, program)[:_MOST_DRAWS]
    return asynchronous_step_s([events.simulate(program, steps, Variation(start_s=start_s)) for start_s in starts])


def replayed_s(program: Program, seconds: Times) -> Times:
    """Seconds of one steady step, shape (draws,). seconds: durations of tasks, shape (tasks, draws)."""
    return slopes(_ends_s(program, seconds).T)


def _ends_s(program: Program, seconds: Times) -> Times:
    """End of each step in seconds, shape (steps, draws)."""
    training = (program.stream == MAIN_STREAM) & ~program.ranks.is_server[program.rank]
    variation = Variation(start_s=program.ranks.late_s, samples=seconds.shape[1])
    return np.stack([end_s[training].max(axis=0) for _, end_s in replay.replay(program, STEPS, seconds, variation)])
