"""Prediction intervals: the uncertainty of a step time that follows from uncertain cluster parameters, and its main sources.

Task durations are linear in the slowdown factors of quantities as long as the bottleneck stays the same. The program is
therefore compiled once more for each quantity with a small slowdown. Draws of all factors then give the durations of all tasks,
and replay times all draws at once. If resources are shared, so that events time the step, its response is computed as if they
were not. Jitter within a run and speeds that change with time are not included.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import DEVIATIONS, QUANTITIES, slowed, uncertain
from scaleproof.simulator.engine import Variation, events, replay
from scaleproof.simulator.engine.durations import durations_s
from scaleproof.simulator.program import MAIN_STREAM, Kind, Program
from scaleproof.simulator.run.breakdown import slopes
from scaleproof.simulator.run.predicted import predicted_run
from scaleproof.simulator.run.scaling import STEPS
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import Strategy
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.uncertainty.linearity import LinearBox, linear_box

Times = NDArray[np.float64]

# The quantity that slows the step as a whole instead of tasks: the simulator's model error.
_WHOLE: Final = "model"
# The quantity that nearly always matters. All others are bisected, by standard deviation, until a half is a single quantity or
# contributes less than this share of the standard deviation, that is a hundredth of the variance.
_MAIN: Final = "device"
_LEAST: Final = 0.1
# Relative slowdown with which the effect of a quantity is computed. Task durations are linear, so that a small one suffices;
# the order of events is not, and a larger one is more accurate.
_LITTLE: Final = 0.01
_MORE: Final = 0.05
# Where events time the steps, a quarter of the steps is simulated for each quantity, and at least this number.
_ONE_IN: Final = 4
_FEWEST_STEPS: Final = 6
# Number of draws; fewer if tasks are replayed for each draw, with at most this number of tasks in total: 0.2 us and 50 bytes
# per task on a 2-core virtual machine.
_DRAWS: Final = 1000
_FEWEST_DRAWS: Final = 12
_MOST_REPLAYED: Final = 500_000
# Half-width in standard deviations of the box in which step times are checked for linearity, and the number of quantities up to
# which that check is cheaper than replaying the draws.
_REACH: Final = 3.3
_MOST_LINEAR: Final = 6
# Largest relative error of step times that are computed as linear functions: small next to the width of an interval.
_LINEAR_TOLERANCE: Final = 2e-3
_QUANTILES: Final = (0.05, 0.95)
_NEGLIGIBLE: Final = 1e-4
# Relative difference of durations that is rounding.
_NOTHING: Final = 1e-9
# Distance between unit vectors of the same direction.
_SAME_DIRECTION: Final = 1e-9


class PredictionInterval(NamedTuple):
    """The 90 % interval of a step time.

    low, high: as multiples of the prediction. shares: of the variance of the logarithm of the step time, by the quantity that
    causes it, the largest first; they add up to 1, or are empty.
    """

    low: float
    high: float
    shares: Mapping[str, float]


@dataclass(frozen=True)
class Response:
    """The response of a program's step time to slowdown factors of quantities, to first order.

    seconds: duration of each task, shape (tasks,). more_s: derivative of each task's duration with respect to a quantity's
    slowdown factor, shape (tasks,). whole: derivative of the relative step time, for quantities whose effect is not one on
    single tasks. reach: lowest and highest slowdown factor of nearly all draws. The latter three are by quantity.
    """

    program: Program
    seconds: Times
    more_s: Mapping[str, Times]
    whole: Mapping[str, float]
    reach: Mapping[str, tuple[float, float]]

    @property
    def names(self) -> tuple[str, ...]:
        """The quantities that affect the step time."""
        return (*self.more_s, *self.whole)

    def step_times(self, factors: Mapping[str, Times]) -> Times:
        """Step times as multiples of the predicted one, shape (draws,).

        factors: slowdown factors of all quantities of `names`, each of shape (draws,).
        """
        times: Times = np.ones(1)
        if self.more_s:
            steps_s = slopes(self._ends_s(np.array([np.append(0.0, factors[name] - 1) for name in self.more_s])).T)
            times = steps_s[1:] / steps_s[0]
        for name, share in self.whole.items():
            times = times * (1 + (factors[name] - 1) * share)
        return times

    def _ends_s(self, slowdowns: Times) -> Times:
        """End of each step in seconds, shape (steps, draws). slowdowns: slowdown factors minus 1, shape (quantities, draws)."""
        if self.linear is None:
            return self._replayed_s(slowdowns)
        ends_s, outside = self.linear.at(slowdowns), self.linear.outside(slowdowns)
        if outside.any():
            ends_s[:, outside] = self._replayed_s(slowdowns[:, outside])
        return ends_s

    @functools.cached_property
    def linear(self) -> LinearBox | None:
        """The ends of steps as linear functions of slowdown factors minus 1; None if they are not nearly linear within
        `reach`.

        They are linear if the same path is the longest everywhere, and no task queues at a server or on a connection; nearly so
        if paths of nearly the same length are.
        """
        program = self.program
        queues = (program.kind == Kind.SERVE) | (program.partner >= 0) | (program.ready_after >= 0)
        if queues.any() or not 0 < len(self.more_s) <= _MOST_LINEAR:
            return None
        low, high = (np.array([self.reach[name][side] - 1 for name in self.more_s]) for side in (0, 1))
        return linear_box(self._replayed_s, low, high, _LINEAR_TOLERANCE)

    def _replayed_s(self, slowdowns: Times) -> Times:
        return _ends_s(self.program, self.seconds[:, None] + np.stack(list(self.more_s.values()), axis=1) @ slowdowns)


def spread(scenario: Scenario, program: Program | None = None, least: float = _LEAST) -> PredictionInterval:
    """The prediction interval of a scenario's step time.

    program: the scenario's program, if it is already compiled and nothing in it is random. least: see `response`.
    """
    return of_response(response_of_scenario(scenario, program, least), scenario.cluster)


def of_response(result: Response, cluster: Cluster) -> PredictionInterval:
    """The prediction interval of a step time with a known response, from the uncertain quantities of a cluster."""
    few = max(_FEWEST_DRAWS, _MOST_REPLAYED // len(result.program))
    draws = _DRAWS if result.linear or not result.more_s else min(_DRAWS, few)
    return drawn(result.step_times, result.names, cluster, draws)


def response_of_scenario(scenario: Scenario, program: Program | None = None, least: float = _LEAST) -> Response:
    """The response of a scenario's step time to the uncertain quantities of its cluster. Arguments: see `spread`."""
    job = scenario.job(unevenness=scenario.unevenness.constant)
    program = program or scenario.strategy.compile(job)
    return response(scenario.strategy, job, program, quantity_deviations(scenario), scenario.steps, least)


def quantity_deviations(scenario: Scenario) -> dict[str, float]:
    """Standard deviations of the logarithms of the uncertain quantities that may affect the step time, by name."""
    cluster, strategy = scenario.cluster, scenario.strategy
    # emulated compute takes exactly the predicted time
    exact = {"device", "optimizer"} if scenario.compute == "paced" else set()
    unused = [] if strategy.communicates_in_nodes(cluster) else ["node.link."]
    unused += [] if strategy.nodes_needed(cluster) > 1 else ["network."]
    return {
        name: deviation
        for name, deviation in uncertain(cluster).items()
        if name not in exact
        and not name.startswith(tuple(unused))
        and QUANTITIES[name].slowdown_interval(cluster) != (1.0, 1.0)
    }


def response(
    strategy: Strategy, job: Job, program: Program, deviations: Mapping[str, float], steps: int, least: float = _LEAST
) -> Response:
    """The response of the step time of `program`, which `job` compiles to, to uncertain quantities.

    deviations: standard deviation of the logarithm of each quantity. steps: simulated for the prediction, where events time
    them. least: groups of quantities that contribute less than this share of the standard deviation are left out, except the
    device; so are quantities without effect.
    """
    slower = _SlowerPrograms(strategy, job, program, max(_FEWEST_STEPS, steps // _ONE_IN))
    effects: dict[str, Times | float] = {}
    deviation = deviations.get(_WHOLE, 0.0)
    rest = sorted((name for name in deviations if name not in (_MAIN, _WHOLE)), key=lambda name: -deviations[name])
    # Compiling and replaying take time, so that quantities that may not matter are slowed in groups. One replay times all
    # groups; the stack is evaluated from its end.
    main, half = [name for name in deviations if name == _MAIN], len(rest) // 2
    initial = ((names, slower.effect(*names)) for names in (main, rest[:half], rest[half:]) if names)
    groups = slower.with_shares(*initial)[::-1]
    while groups:
        names, effect, share = groups.pop()
        if len(names) == 1:
            effects[names[0]] = effect
            deviation = math.hypot(deviation, share * deviations[names[0]])
        elif share > 0 and share * deviations[names[0]] >= least * deviation:
            first, second = names[: len(names) // 2], names[len(names) // 2 :]
            first_effect = slower.effect(*first)
            second_effect = slower.without(effect, first_effect, second)
            groups += slower.with_shares((second, second_effect), (first, first_effect))
    whole = {name: effect for name, effect in effects.items() if isinstance(effect, float) and effect > _NEGLIGIBLE}
    more_s = {name: effect for name, effect in effects.items() if not isinstance(effect, float) and effect.any()}
    whole |= {_WHOLE: 1.0} if _WHOLE in deviations else {}
    reach = {name: _reach(QUANTITIES[name].slowdown_interval(job.cluster)) for name in more_s}
    return Response(program, slower.seconds, more_s, whole, reach)


def _reach(interval: tuple[float, float]) -> tuple[float, float]:
    """The slowdown factors between which nearly all draws are, 1 included, from their 90 % interval."""
    low, high = np.log(interval)
    middle, reach = (low + high) / 2, _REACH * (high - low) / (2 * DEVIATIONS)
    return math.exp(min(0.0, middle - reach)), math.exp(max(0.0, middle + reach))


class _SlowerPrograms:
    """Compiles and times a program with slower quantities. steps: number to simulate, where events time them."""

    def __init__(self, strategy: Strategy, job: Job, program: Program, steps: int) -> None:
        self.strategy, self.job, self.program, self.steps = strategy, job, program, steps
        self.seconds = durations_s(program)
        self.slowdown = _LITTLE if program.is_static else _MORE

    @functools.cached_property
    def step_s(self) -> float:
        return _step_s(self.program, self.steps)

    def effect(self, *names: str) -> Times | float:
        """Derivative of the task durations with respect to the slowdown factor that these quantities share, shape (tasks,);
        that of the relative step time, if the effect is not one on single tasks."""
        cluster = slowed(self.job.cluster, dict.fromkeys(names, 1 + self.slowdown))
        program = self.strategy.compile(replace(self.job, cluster=cluster))
        longer_s = added_seconds(self.program, program, self.seconds)
        if longer_s is not None and (self.program.is_static or not longer_s.any()):
            return np.where(np.abs(longer_s) > _NOTHING * self.seconds, longer_s, 0.0) / self.slowdown
        return min(1.0, (_step_s(program, self.steps) / self.step_s - 1) / self.slowdown)

    def without(self, effect: Times | float, part: Times | float, others: Sequence[str]) -> Times | float:
        """The effect of the other quantities of a group, from the effect of the group and that of a part of it: task durations
        add up."""
        if isinstance(effect, float) or isinstance(part, float):
            return self.effect(*others)
        more_s = effect - part
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


def drawn(
    step_times: Callable[[Mapping[str, Times]], Times], names: Sequence[str], cluster: Cluster, draws: int = _DRAWS
) -> PredictionInterval:
    """The prediction interval from independent lognormal draws of slowdown factors within the cluster's intervals.

    step_times: see `Response.step_times`. names: the quantities that are drawn. Each quantity alone, one standard deviation up
    and down, gives its share and the direction in which the step time changes most. The draws are stratified along that
    direction, so that a few give the quantiles.
    """
    count = len(names)
    if count == 0:
        return PredictionInterval(1.0, 1.0, {})
    bounds = np.log([QUANTITIES[name].slowdown_interval(cluster) for name in names])
    middle, deviation = bounds.mean(axis=1), (bounds[:, 1] - bounds[:, 0]) / (2 * DEVIATIONS)

    def log_times(normal: Times) -> Times:
        factors = np.exp(middle[:, None] + deviation[:, None] * normal)
        times: Times = np.log(step_times(dict(zip(names, factors, strict=True))))
        return times

    up, down = np.split(log_times(np.hstack([np.eye(count), -np.eye(count)])), 2)
    change = (up - down) / 2
    times = log_times(normal_draws(draws, change))
    # the draws are the midpoints of equally likely intervals, as Hazen's quantiles assume
    low, high = np.exp(np.quantile(times, _QUANTILES, method="hazen")).tolist()
    variance = change**2 / max(float((change**2).sum()), np.finfo(float).tiny)
    shares = sorted(zip(names, variance.tolist(), strict=True), key=lambda item: -item[1])
    return PredictionInterval(low, high, {name: share for name, share in shares if share > 0})


def of_closed_form(seconds: Callable[[Cluster], float], cluster: Cluster) -> PredictionInterval:
    """The prediction interval of a time that a closed form gives, to first order. seconds: the time on a cluster."""
    first_s, shares = seconds(cluster), {_WHOLE: 1.0}
    for name, quantity in QUANTITIES.items():
        if name != _WHOLE and quantity.value(cluster) is not None:
            share = (seconds(slowed(cluster, {name: 1 + _LITTLE})) / first_s - 1) / _LITTLE
            if share > _NEGLIGIBLE:
                shares[name] = share

    def times(factors: Mapping[str, Times]) -> Times:
        relative: Times = sum((factors[name] - 1) * share for name, share in shares.items() if name != _WHOLE) + np.ones(1)
        return factors[_WHOLE] * relative

    return drawn(times, tuple(shares), cluster)


def normal_draws(count: int, along: Times) -> Times:
    """Draws of independent standard normal variables, stratified in the direction `along`; shape (variables, draws).

    along: shape (variables,), with at most `count` variables. In this direction each draw is the midpoint of one of `count`
    equally likely intervals. The orthogonal directions take the midpoints in the orders of a Kronecker sequence with the powers
    of the root of x^(d+1) = x + 1 (M. Roberts, The unreasonable effectiveness of quasirandom sequences, 2018), decorrelated.
    """
    variables = len(along)
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (variables + 1))
    places = np.outer(root ** -np.arange(1.0, variables + 1), np.arange(1.0, count + 1)) % 1
    basis, lengths = np.linalg.qr(_midpoints(count)[places.argsort(axis=1).argsort(axis=1)].T)
    draws: Times = lengths[0, 0] * basis.T
    # a reflection of the first axis onto that direction; normal variables remain normal
    length, first = float(np.linalg.norm(along)), np.eye(variables)[0]
    normal = first - along / length if length > 0 else np.zeros(variables)
    distance = float(np.linalg.norm(normal))
    if distance < _SAME_DIRECTION:
        return draws
    normal /= distance
    return draws - np.outer(2 * normal, normal @ draws)


@functools.lru_cache(maxsize=8)
def _midpoints(count: int) -> Times:
    """Midpoints, by probability, of `count` equally likely intervals of a standard normal variable, shape (count,)."""
    return np.array([NormalDist().inv_cdf((part + 0.5) / count) for part in range(count)])


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


def _step_s(program: Program, steps: int) -> float:
    """Seconds of one step, without jitter. steps: number to simulate, where events time them."""
    if program.is_static:
        return float(replayed_s(program, durations_s(program)[:, None])[0])
    timeline = events.simulate(program, steps, Variation(start_s=program.ranks.late_s))
    return predicted_run(timeline, scenario="", strategy="", samples=1).step_time_s


def replayed_s(program: Program, seconds: Times) -> Times:
    """Seconds of one steady step, shape (draws,). seconds: durations of tasks, shape (tasks, draws)."""
    return slopes(_ends_s(program, seconds).T)


def _ends_s(program: Program, seconds: Times) -> Times:
    """End of each step in seconds, shape (steps, draws)."""
    training = (program.stream == MAIN_STREAM) & ~program.ranks.is_server[program.rank]
    variation = Variation(start_s=program.ranks.late_s, samples=seconds.shape[1])
    return np.stack([end_s[training].max(axis=0) for _, end_s in replay.replay(program, STEPS, seconds, variation)])
