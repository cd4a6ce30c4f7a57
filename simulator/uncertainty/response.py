"""Response of a program's step time to slowdown factors of uncertain quantities.

Task durations are linear in the slowdown factors of quantities as long as the bottleneck stays the same. The program is
therefore priced once more for each quantity with a small slowdown. Replay then times the durations for any factors; where
the same path remains the longest, the step time is linear in them, too. If resources are shared, so that events time the step,
its response is computed as if they were not. Jitter within a run and speeds that change with time are not included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.quantities import slowed
from scaleproof.simulator.engine import Variation, events, replay
from scaleproof.simulator.engine.durations import durations_s
from scaleproof.simulator.prediction.staleness import asynchronous_step_s
from scaleproof.simulator.prediction.steps import STEPS, starts_s
from scaleproof.simulator.program import MAIN_STREAM, Program
from scaleproof.simulator.run.breakdown import slopes
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step, priced
from scaleproof.simulator.strategy.scenario_job import job_of, program_of
from scaleproof.simulator.uncertainty.error_model import MODEL, SOFTWARE, ErrorModel, case_of_scenario, shipped
from scaleproof.simulator.uncertainty.priors import Priors, quantity_deviations

Times = NDArray[np.float64]

# Relative slowdown with which the effect of a quantity is computed. Task durations are linear, so that a small one suffices;
# the order of events is not, and a larger one is more accurate.
_LITTLE: Final = 0.01
_MORE: Final = 0.05
# Where events time the steps, a quarter of the steps is simulated for each quantity, and at least this number.
_ONE_IN: Final = 4
_FEWEST_STEPS: Final = 6
# Phases of asynchronous ranks over which the response is averaged.
_MOST_DRAWS: Final = 3
NEGLIGIBLE: Final = 1e-4
# Relative difference of durations that is rounding.
_NOTHING: Final = 1e-9


@dataclass(frozen=True, eq=False)
class Response:
    """The response of a program's step time to slowdown factors of quantities.

    seconds: duration of each task, shape (tasks,). more_s: derivative of each task's duration with respect to a quantity's
    slowdown factor, shape (tasks,). shares: derivative of the relative step time with respect to each slowdown factor: first of
    the quantities of `more_s`, then of those whose effect is not one on single tasks. priors: of the quantities, in this order.
    """

    program: Program
    seconds: Times
    more_s: Mapping[str, Times]
    shares: Mapping[str, float]
    priors: Priors

    @property
    def exposed(self) -> float:
        """Share of the step time that does not depend on the device's speed."""
        return 1 - min(1.0, max(0.0, self.shares.get("device", 0.0)))

    def step_times(self, factors: Times) -> Times:
        """Step times as multiples of the predicted one, shape (draws,), by replay.

        factors: slowdown factors of the quantities of `priors`, shape (quantities, draws).
        """
        in_tasks = factors[: len(self.more_s)] - 1
        steps_s = replayed_s(self.program, self.durations_s(np.hstack([np.zeros((len(in_tasks), 1)), in_tasks])))
        return np.asarray(steps_s[1:] / steps_s[0] * self._whole(factors))

    def linear_step_times(self, factors: Times) -> Times:
        """The same as `step_times` if the same path remains the longest, and no queue changes."""
        shares = np.array(list(self.shares.values()))[: len(self.more_s)]
        return np.asarray((1 + shares @ (factors[: len(shares)] - 1)) * self._whole(factors))

    def _whole(self, factors: Times) -> Times:
        """Factors of the step as a whole, shape (draws,)."""
        shares = np.array(list(self.shares.values()))[len(self.more_s) :]
        return np.asarray((1 + shares[:, None] * (factors[len(self.more_s) :] - 1)).prod(axis=0))

    def durations_s(self, slowdowns: Times) -> Times:
        """Seconds of each task, shape (tasks, draws). slowdowns: slowdown factors minus 1 of the quantities of `more_s`, shape
        (quantities, draws)."""
        columns = [more_s[:, None] for more_s in self.more_s.values()]
        return np.asarray(self.seconds[:, None] + np.hstack([np.empty((len(self.seconds), 0)), *columns]) @ slowdowns)


def response_of_scenario(scenario: Scenario, errors: ErrorModel | None = None) -> Response:
    """The response of a scenario's step time to the uncertain quantities of its cluster, without those that have no effect.

    errors: the shipped error model if None.
    """
    response = scenario.cached(_response)
    case = case_of_scenario(scenario)
    model = case.log_ends(scenario.cluster, errors or shipped(), response.exposed)
    shares = dict(response.shares)
    if case.software is not None:
        shares[SOFTWARE] = 1 - response.exposed
    return replace(response, shares=shares, priors=Priors.of(shares, scenario.cluster, model, case.software))


def _response(scenario: Scenario) -> Response:
    """The response of a scenario's step time, before its model error is known."""
    job = job_of(scenario, unevenness=scenario.unevenness.constant)
    program = program_of(scenario) if job is job_of(scenario) else compile_step(scenario.strategy, job)
    seconds, slowdown = durations_s(program), _LITTLE if program.is_static else _MORE
    quantities = quantity_deviations(scenario)
    more_s: dict[str, Times] = {}
    changed: dict[str, Program] = {}
    for name in (name for name in quantities if name != MODEL):
        slower = priced(scenario.strategy, replace(job, cluster=slowed(job.cluster, {name: 1 + slowdown})), program)
        longer_s = added_seconds(program, slower, seconds)
        if longer_s is None or not (program.is_static or not longer_s.any()):
            changed[name] = slower
        elif longer_s.any():
            more_s[name] = longer_s / slowdown
    shares = _shares(program, seconds, more_s)
    if changed:
        step_s = _step_s(scenario, program)
        increases = {name: (_step_s(scenario, slower) / step_s - 1) / slowdown for name, slower in changed.items()}
        shares |= {name: min(1.0, share) for name, share in increases.items() if share > NEGLIGIBLE}
    shares |= {MODEL: 1.0} if MODEL in quantities else {}
    return Response(program, seconds, more_s, shares, Priors.of(shares, scenario.cluster))


def _shares(program: Program, seconds: Times, more_s: Mapping[str, Times]) -> dict[str, float]:
    """Derivative of the relative step time with respect to the slowdown factor of each quantity, by one replay."""
    if not more_s:
        return {}
    added_s = _LITTLE * np.stack([np.zeros_like(seconds), *more_s.values()], axis=1)
    first_s, *slower_s = replayed_s(program, seconds[:, None] + added_s).tolist()
    return {name: (step_s / first_s - 1) / _LITTLE for name, step_s in zip(more_s, slower_s, strict=True)}


def added_seconds(program: Program, slower: Program, seconds: Times) -> Times | None:
    """Seconds by which each task takes longer in the slower program, shape (tasks,); None if they differ in anything else.

    Updates of servers are not tasks. seconds: durations of the first program's tasks.
    """
    columns = ("kind", "rank", "peer", "update_s")
    if len(program) != len(slower) or not all(
        np.array_equal(getattr(program, name), getattr(slower, name)) for name in columns
    ):
        return None
    longer_s = durations_s(slower) - seconds
    return np.where(np.abs(longer_s) > _NOTHING * seconds, longer_s, 0.0)


def _step_s(scenario: Scenario, program: Program) -> float:
    """Seconds of one step, without jitter. Asynchronous ranks take a part of the scenario's steps."""
    if program.is_static:
        return float(replayed_s(program, durations_s(program)[:, None])[0])
    steps, starts = max(_FEWEST_STEPS, scenario.steps // _ONE_IN), starts_s(scenario, program)[:_MOST_DRAWS]
    return asynchronous_step_s([events.simulate(program, steps, Variation(start_s=start_s)) for start_s in starts])


def replayed_s(program: Program, seconds: Times) -> Times:
    """Seconds of one steady step, shape (draws,). seconds: durations of tasks, shape (tasks, draws)."""
    training = (program.stream == MAIN_STREAM) & ~program.ranks.is_server[program.rank]
    variation = Variation(start_s=program.ranks.late_s, samples=seconds.shape[1])
    ends_s = [end_s[training].max(axis=0) for _, end_s in replay.replay(program, STEPS, seconds, variation)]
    return slopes(np.stack(ends_s, axis=1))
