"""Spread: how far a predicted step time may be off, as far as the cluster's numbers are uncertain, and which of them matter.

Seconds of tasks are linear in slownesses as long as nothing else becomes the bottleneck. So a program is compiled once more for
each quantity, a little slower; draws of all slownesses then give seconds of all tasks, and replay times all draws at once.
Where resources are shared so that events time the step, it is taken to respond as if they were not. What is random within a run
(jitter), or changes by the clock, is no part of it.
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
from scaleproof.simulator.program import MAIN_LANE, Kind, Program
from scaleproof.simulator.run.predicted import predicted_run
from scaleproof.simulator.run.run import slopes
from scaleproof.simulator.run.scaling import STEPS
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import Strategy
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.uncertainty.linearity import LinearBox, straight

Times = NDArray[np.float64]

# It slows the step as a whole, and no task.
_WHOLE: Final = "model"
# The one that nearly always matters. Others are halved, those that deviate most apart from the rest, until each half is one of
# them or brings less than this share of the deviation, of the variance a hundredth.
_MAIN: Final = "device"
_LEAST: Final = 0.1
# By how much a quantity is slowed to see what follows from it. Seconds of tasks are linear, so that little suffices; the order
# of events is not, and more tells better.
_LITTLE: Final = 0.01
_MORE: Final = 0.05
# Where events time the steps, one of so many is simulated for each quantity, and so many at least.
_ONE_IN: Final = 4
_FEWEST_STEPS: Final = 6
# Draws, and fewer where tasks have to be replayed for each: 0.2 us and 50 bytes a task on a 2-core virtual machine.
_DRAWS: Final = 1000
_FEWEST_DRAWS: Final = 12
_MOST_REPLAYED: Final = 500_000
# Standard deviations to either side in which times are taken to be linear, if they are, and the quantities up to which it is
# less to find out than to time the draws.
_REACH: Final = 3.3
_MOST_STRAIGHT: Final = 6
_QUANTILES: Final = (0.05, 0.95)
_NEGLIGIBLE: Final = 1e-4
# By so little, as a share, seconds differ by rounding.
_NOTHING: Final = 1e-9
# Of two vectors of length 1: how far apart their ends are.
_SAME_DIRECTION: Final = 1e-9


class PredictionInterval(NamedTuple):
    """low, high: between them is the step time with a probability of 90 %, as multiples of what is predicted. shares: of the
    variance of its logarithm, by the quantity that brings it, the largest first; they add up to 1, or there are none."""

    low: float
    high: float
    shares: Mapping[str, float]


@dataclass(frozen=True)
class Response:
    """How a program's step time follows from slownesses, to first order.

    seconds: of each task, shape (tasks,). more_s: by quantity, how much longer each task takes per slowness. whole: by
    quantity, how much longer the step takes per slowness, as a share of it, where the tasks do not tell. reach: by quantity,
    between which slownesses nearly all draws are.
    """

    program: Program
    seconds: Times
    more_s: Mapping[str, Times]
    whole: Mapping[str, float]
    reach: Mapping[str, tuple[float, float]]

    @property
    def names(self) -> tuple[str, ...]:
        """The quantities that matter."""
        return (*self.more_s, *self.whole)

    def step_times(self, slownesses: Mapping[str, Times]) -> Times:
        """The step time for each draw of slownesses of all quantities that matter, as a multiple of the predicted one."""
        times: Times = np.ones(1)
        if self.more_s:
            each_s = slopes(self._ends_s(np.array([np.append(0.0, slownesses[name] - 1) for name in self.more_s])).T)
            times = each_s[1:] / each_s[0]
        for name, share in self.whole.items():
            times = times * (1 + (slownesses[name] - 1) * share)
        return times

    def _ends_s(self, beyond: Times) -> Times:
        """When each step ends, shape (steps, draws); for what slownesses are beyond 1, shape (quantities, draws)."""
        if self.straight is None:
            return self._replayed_s(beyond)
        ends_s, outside = self.straight.at(beyond), self.straight.outside(beyond)
        if outside.any():
            ends_s[:, outside] = self._replayed_s(beyond[:, outside])
        return ends_s

    @functools.cached_property
    def straight(self) -> LinearBox | None:
        """When steps end, by what slownesses are beyond 1, where that is linear: where steps end after the longest of paths, as
        they do where nothing waits its turn at a server or on a connection, and that path is one and the same."""
        program = self.program
        waits = (program.kind == Kind.SERVE) | (program.partner >= 0) | (program.told_after >= 0)
        if waits.any() or not 0 < len(self.more_s) <= _MOST_STRAIGHT:
            return None
        low, high = (np.array([self.reach[name][side] - 1 for name in self.more_s]) for side in (0, 1))
        return straight(self._replayed_s, low, high)

    def _replayed_s(self, beyond: Times) -> Times:
        return _ends_s(self.program, self.seconds[:, None] + np.stack(list(self.more_s.values()), axis=1) @ beyond)


def spread(scenario: Scenario, program: Program | None = None, least: float = _LEAST) -> PredictionInterval:
    """How far the scenario's step time may be off. program: what it compiles to, where that is there and nothing is random.
    least: as `response` has it."""
    return of_response(responding(scenario, program, least), scenario.cluster)


def of_response(answer: Response, cluster: Cluster) -> PredictionInterval:
    """How far a step time that follows so from quantities may be off on this cluster."""
    few = max(_FEWEST_DRAWS, _MOST_REPLAYED // len(answer.program))
    draws = _DRAWS if answer.straight or not answer.more_s else min(_DRAWS, few)
    return drawn(answer.step_times, answer.names, cluster, draws)


def responding(scenario: Scenario, program: Program | None = None, least: float = _LEAST) -> Response:
    """How the scenario's step time follows from what is uncertain of its cluster; arguments as `spread` has them."""
    job = scenario.job(unevenness=scenario.unevenness.constant)
    program = program or scenario.strategy.compile(job)
    return response(scenario.strategy, job, program, doubtful(scenario), scenario.steps, least)


def doubtful(scenario: Scenario) -> dict[str, float]:
    """The quantities that the step time may follow from and that are not exact: standard deviations of their logarithms."""
    cluster, strategy = scenario.cluster, scenario.strategy
    # paced runs compute for as long as is predicted
    exact = {"device", "optimizer"} if scenario.compute == "paced" else set()
    unused = [] if strategy.talks_in_nodes(cluster) else ["node.link."]
    unused += [] if strategy.nodes_needed(cluster) > 1 else ["network."]
    return {
        name: deviation
        for name, deviation in uncertain(cluster).items()
        if name not in exact and not name.startswith(tuple(unused)) and QUANTITIES[name].slownesses(cluster) != (1.0, 1.0)
    }


def response(
    strategy: Strategy, job: Job, program: Program, deviations: Mapping[str, float], steps: int, least: float = _LEAST
) -> Response:
    """How the step time of `program`, which the job compiles to, follows from quantities, of which the logarithms deviate so
    much; those that it does not follow from are left out, and those beside the device that bring less than `least` of the
    deviation together. steps: that were simulated, where events time them."""
    slower = _Slower(strategy, job, program, max(_FEWEST_STEPS, steps // _ONE_IN))
    effects: dict[str, Times | float] = {}
    found = deviations.get(_WHOLE, 0.0)
    rest = sorted((name for name in deviations if name not in (_MAIN, _WHOLE)), key=lambda name: -deviations[name])
    # Compiling and replaying take time, so that quantities that may not matter are slowed together. One replay times the
    # groups; the stack is evaluated from its end.
    main, half = [name for name in deviations if name == _MAIN], len(rest) // 2
    groups = slower.told(*((names, slower.effect(*names)) for names in (main, rest[:half], rest[half:]) if names))[::-1]
    while groups:
        names, effect, share = groups.pop()
        if len(names) == 1:
            effects[names[0]] = effect
            found = math.hypot(found, share * deviations[names[0]])
        elif share > 0 and share * deviations[names[0]] >= least * found:
            some, others = names[: len(names) // 2], names[len(names) // 2 :]
            of_some = slower.effect(*some)
            groups += slower.told((others, slower.without(effect, of_some, others)), (some, of_some))
    whole = {name: effect for name, effect in effects.items() if isinstance(effect, float) and effect > _NEGLIGIBLE}
    more_s = {name: effect for name, effect in effects.items() if not isinstance(effect, float) and effect.any()}
    whole |= {_WHOLE: 1.0} if _WHOLE in deviations else {}
    reach = {name: _reach(QUANTITIES[name].slownesses(job.cluster)) for name in more_s}
    return Response(program, slower.seconds, more_s, whole, reach)


def _reach(slownesses: tuple[float, float]) -> tuple[float, float]:
    """Wider than a 90 % interval, so that hardly any draw is outside; the prediction is inside."""
    low, high = np.log(slownesses)
    middle, reach = (low + high) / 2, _REACH * (high - low) / (2 * DEVIATIONS)
    return math.exp(min(0.0, middle - reach)), math.exp(max(0.0, middle + reach))


class _Slower:
    """What becomes of a program where quantities are slower. steps: to simulate, where events time them."""

    def __init__(self, strategy: Strategy, job: Job, program: Program, steps: int) -> None:
        self.strategy, self.job, self.program, self.steps = strategy, job, program, steps
        self.seconds = durations_s(program)
        self.beyond = _LITTLE if program.is_static else _MORE

    @functools.cached_property
    def step_s(self) -> float:
        return _step_s(self.program, self.steps)

    def effect(self, *names: str) -> Times | float:
        """How much longer each task takes per slowness of all these together, shape (tasks,); how much longer the step takes,
        as a share of it, where the tasks do not tell."""
        cluster = slowed(self.job.cluster, dict.fromkeys(names, 1 + self.beyond))
        program = self.strategy.compile(replace(self.job, cluster=cluster))
        longer_s = grown_s(self.program, program, self.seconds)
        if longer_s is not None and (self.program.is_static or not longer_s.any()):
            return np.where(np.abs(longer_s) > _NOTHING * self.seconds, longer_s, 0.0) / self.beyond
        return min(1.0, (_step_s(program, self.steps) / self.step_s - 1) / self.beyond)

    def without(self, effect: Times | float, of_some: Times | float, others: Sequence[str]) -> Times | float:
        """The effect of the others, where that of all and that of some are known: seconds of tasks add up."""
        if isinstance(effect, float) or isinstance(of_some, float):
            return self.effect(*others)
        more_s = effect - of_some
        return np.where(np.abs(more_s) > _NOTHING * self.seconds, more_s, 0.0)

    def told(self, *groups: tuple[Sequence[str], Times | float]) -> list[tuple[Sequence[str], Times | float, float]]:
        """Groups of quantities with their effects, and how much longer the step takes per slowness, as a share of it, which no
        slowness makes shorter. One replay tells of all."""
        changing = [effect for _, effect in groups if not isinstance(effect, float) and effect.any()]
        shares = iter(())
        if changing:
            beyond = _LITTLE * np.stack([np.zeros_like(self.seconds), *changing], axis=1)
            first_s, *slower_s = replayed_s(self.program, self.seconds[:, None] + beyond).tolist()
            shares = iter([(one_s / first_s - 1) / _LITTLE for one_s in slower_s])
        result = []
        for names, effect in groups:
            share = effect if isinstance(effect, float) else next(shares) if effect.any() else 0.0
            result.append((names, effect, max(0.0, share)))
        return result


def drawn(
    step_times: Callable[[Mapping[str, Times]], Times], names: Sequence[str], cluster: Cluster, draws: int = _DRAWS
) -> PredictionInterval:
    """What comes of slownesses that are drawn lognormally from the cluster's intervals, independently of one another.

    step_times: as `Response.step_times`. Each slowness alone, one deviation up and down, tells its share, and in which
    direction all together change the step time most. Draws spread evenly along that direction, so that few tell the quantiles.
    """
    count = len(names)
    if count == 0:
        return PredictionInterval(1.0, 1.0, {})
    bounds = np.log([QUANTITIES[name].slownesses(cluster) for name in names])
    middle, deviation = bounds.mean(axis=1), (bounds[:, 1] - bounds[:, 0]) / (2 * DEVIATIONS)

    def log_times(normal: Times) -> Times:
        slownesses = np.exp(middle[:, None] + deviation[:, None] * normal)
        times: Times = np.log(step_times(dict(zip(names, slownesses, strict=True))))
        return times

    up, down = np.split(log_times(np.hstack([np.eye(count), -np.eye(count)])), 2)
    change = (up - down) / 2
    times = log_times(normal_draws(draws, change))
    # the draws are the midpoints of equally likely parts, which is what Hazen's quantiles take them for
    low, high = np.exp(np.quantile(times, _QUANTILES, method="hazen")).tolist()
    variance = change**2 / max(float((change**2).sum()), np.finfo(float).tiny)
    found = sorted(zip(names, variance.tolist(), strict=True), key=lambda one: -one[1])
    return PredictionInterval(low, high, {name: share for name, share in found if share > 0})


def of_closed_form(seconds: Callable[[Cluster], float], cluster: Cluster) -> PredictionInterval:
    """The same for a time that is no program's: `seconds` says what it is on a cluster. To first order."""
    first_s, shares = seconds(cluster), {_WHOLE: 1.0}
    for name, quantity in QUANTITIES.items():
        if name != _WHOLE and quantity.value(cluster) is not None:
            share = (seconds(slowed(cluster, {name: 1 + _LITTLE})) / first_s - 1) / _LITTLE
            if share > _NEGLIGIBLE:
                shares[name] = share

    def times(slownesses: Mapping[str, Times]) -> Times:
        beyond: Times = sum((slownesses[name] - 1) * share for name, share in shares.items() if name != _WHOLE) + np.ones(1)
        return slownesses[_WHOLE] * beyond

    return drawn(times, tuple(shares), cluster)


def normal_draws(count: int, along: Times) -> Times:
    """Draws of as many independent standard normal variables as `along` has entries, at most `count`; shape (variables, draws).

    In the direction `along` each draw is the midpoint of one of as many equally likely parts. Those at right angles to it
    take the midpoints in orders that spread evenly over all of them together, of a Kronecker sequence by the powers of the root
    of x^(d+1) = x + 1 (M. Roberts, The unreasonable effectiveness of quasirandom sequences, 2018), freed of what correlation
    so few have.
    """
    variables = len(along)
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (variables + 1))
    places = np.outer(root ** -np.arange(1.0, variables + 1), np.arange(1.0, count + 1)) % 1
    basis, lengths = np.linalg.qr(_midpoints(count)[places.argsort(axis=1).argsort(axis=1)].T)
    draws: Times = lengths[0, 0] * basis.T
    # a reflection that takes the first axis to that direction leaves normal variables what they are
    length, first = float(np.linalg.norm(along)), np.eye(variables)[0]
    normal = first - along / length if length > 0 else np.zeros(variables)
    apart = float(np.linalg.norm(normal))
    if apart < _SAME_DIRECTION:
        return draws
    normal /= apart
    return draws - np.outer(2 * normal, normal @ draws)


@functools.lru_cache(maxsize=8)
def _midpoints(count: int) -> Times:
    """Of so many equally likely parts of a normal variable."""
    return np.array([NormalDist().inv_cdf((part + 0.5) / count) for part in range(count)])


def grown_s(program: Program, slower: Program, seconds: Times | None = None) -> Times | None:
    """How much longer each task takes in the other program, shape (tasks,); None where that is not the difference between them
    alone. Servers' updates are no tasks. seconds: of the program's tasks, where they are known."""
    columns = ("kind", "rank", "peer", "update_s")
    if len(program) != len(slower) or not all(
        np.array_equal(getattr(program, name), getattr(slower, name)) for name in columns
    ):
        return None
    return durations_s(slower) - (durations_s(program) if seconds is None else seconds)


def _step_s(program: Program, steps: int) -> float:
    """Seconds of a step, without jitter; of `steps`, where events time them."""
    if program.is_static:
        return float(replayed_s(program, durations_s(program)[:, None])[0])
    timeline = events.simulate(program, steps, Variation(start_s=program.ranks.late_s))
    return predicted_run(timeline, scenario="", strategy="", samples=1).step_time_s


def replayed_s(program: Program, seconds: Times) -> Times:
    """Seconds of a steady step for seconds of tasks of shape (tasks, draws), shape (draws,)."""
    return slopes(_ends_s(program, seconds).T)


def _ends_s(program: Program, seconds: Times) -> Times:
    """When each step ends, shape (steps, draws)."""
    training = (program.lane == MAIN_LANE) & ~program.ranks.is_server[program.rank]
    variation = Variation(start_s=program.ranks.late_s, samples=seconds.shape[1])
    return np.stack([end_s[training].max(axis=0) for _, end_s in replay.replay(program, STEPS, seconds, variation)])
