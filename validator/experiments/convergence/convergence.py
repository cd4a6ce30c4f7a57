"""Convergence, measured: a small problem is trained for real by several batches, and by servers that wait for nobody.

Each setting is trained by several learning rates, and told by the one that needs the fewest updates, since that is what the
model tells of: batches and delays of gradients have rates of their own (arXiv 1812.06162, section 2.2; arXiv 2206.08307).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Batch, Scenario
from scaleproof.simulator.strategy import ParameterServer
from scaleproof.validator.calibration.fit.curve_fitting.convergence import Reached
from scaleproof.validator.train.steps import warmup_steps

Mode = Literal["synchronous", "stale_synchronous", "asynchronous"]

# Of a run's updates the last ones, of which too few follow to tell that the loss stays below the target.
_TOO_LATE: Final = 0.1


class Setting(NamedTuple):
    """How the parameters come about. batch: samples of an update. bound: of stale synchronous servers alone."""

    mode: Mode
    workers: int
    batch: int
    bound: int | None = None

    @property
    def staleness(self) -> int:
        """Updates by others in a step of a worker."""
        return 0 if self.mode == "synchronous" else self.workers - 1

    def __str__(self) -> str:
        if self.mode == "synchronous":
            return f"synchronous, batch {self.batch}"
        bound = "" if self.bound is None else f", bound {self.bound}"
        return f"{self.mode.replace('_', ' ')}, {self.workers} workers{bound}"


@dataclass(frozen=True)
class Trial:
    """A run. updates: after which the loss is at the target; None where it was not, or came there too late to tell. behind: by
    how many updates gradients were, on average."""

    mode: Mode
    workers: int
    batch: int
    bound: int | None
    rate: float
    seed: int
    updates: int | None
    behind: float

    @property
    def setting(self) -> Setting:
        return Setting(self.mode, self.workers, self.batch, self.bound)

    def plain(self) -> dict[str, Any]:
        """As data for JSON."""
        return asdict(self)


class Chosen(NamedTuple):
    """A setting's runs by its best rate that reached the target. missed: how many did not. behind: how many updates gradients
    were, on average. is_at_the_end: whether the rate is the least or the largest that was tried."""

    rate: float
    runs: tuple[Reached, ...]
    missed: int
    behind: float
    is_at_the_end: bool


def settings(scenario: Scenario, batches: Sequence[int], workers: Sequence[int], bounds: Sequence[int]) -> list[Setting]:
    """In step with each batch, and each number of workers on its own: free, and by each bound. Raises InputError where the
    scenario is not about servers, or workers cannot share a batch."""
    strategy = scenario.strategy
    if not isinstance(strategy, ParameterServer):
        raise InputError(
            f"{scenario.name}: servers alone can wait for nobody; give a scenario whose strategy is parameter_server"
        )
    if odd := [batch for batch in batches if batch % strategy.workers]:
        raise InputError(f"--batches: {strategy.workers} workers do not divide {odd[0]} samples; give multiples of that")
    each = scenario.samples_per_worker
    alone = [Setting("asynchronous", number, each) for number in workers]
    bounded = [Setting("stale_synchronous", number, each, bound) for bound in bounds for number in workers]
    return [*(Setting("synchronous", strategy.workers, batch) for batch in batches), *alone, *bounded]


def scenario_of(scenario: Scenario, setting: Setting, rate: float, seed: int) -> Scenario:
    """What is trained: `scenario.steps` updates of the parameters, and those of the warm-up. Raises InputError."""
    in_step = setting.mode == "synchronous"
    update = {"workers_": setting.workers, "mode": setting.mode, "bound": setting.bound, "backups": 0}
    changed = {
        "strategy": scenario.strategy.model_copy(update=update),
        "batch": Batch(total=setting.batch * (1 if in_step else setting.workers)),
        "steps": scenario.steps if in_step else -(-scenario.steps // setting.workers),
        "training": scenario.training.model_copy(update={"learning_rate": rate, "seed": seed, "warmup_steps": 0}),
        "convergence": None,
    }
    try:
        return Scenario(**{name: getattr(scenario, name) for name in Scenario.model_fields} | changed)
    except FieldError as error:
        raise InputError(f"{scenario.name}, {setting}: {error}") from None


def check(scenario: Scenario) -> None:
    """Raises InputError where there is nothing to learn."""
    if scenario.training.data is None or scenario.compute == "paced":
        what = "random data" if scenario.compute == "real" else "waiting in place of computing"
        raise InputError(f"{scenario.name}: {what} has nothing to learn; give a gpt, and a text as training.data")


def tried(setting: Setting, rate: float, seed: int, run: Run, trained: Scenario, target: float) -> Trial:
    """What a run tells."""
    free = setting.mode != "synchronous"
    # losses of the warm-up are not told; its updates count
    before = warmup_steps(trained) * (setting.workers if free else 1)
    reached = steps_to(run.update_losses if free else run.losses, target)
    behind = float(run.servers["version_staleness"]["mean"]) if free and run.servers else 0.0
    return Trial(*setting, rate, seed, None if reached is None else before + reached, behind)


def steps_to(losses: Sequence[float], target: float) -> int | None:
    """The first step from which on the loss is at the target: of the falling curve that is closest to the losses.

    Losses of small batches jump; of all curves that never rise the closest in squares (isotonic regression; Barlow et al.,
    1972) needs no window to choose, and lags behind by none. None where it does not get there, or only at the end.
    """
    from scipy.optimize import isotonic_regression

    if not losses or not np.isfinite(losses).all():
        return None
    below = np.flatnonzero(isotonic_regression(losses, increasing=False).x <= target)
    if len(below) == 0 or below[0] >= (1 - _TOO_LATE) * len(losses):
        return None
    return int(below[0]) + 1


def train(
    scenario: Scenario,
    wanted: Sequence[tuple[Setting, float, int]],
    target: float,
    measure: Callable[[Scenario], Run],
) -> Iterator[Trial]:
    """Each of them in turn: a setting, a rate and a seed. measure: trains."""
    for setting, rate, seed in wanted:
        trained = scenario_of(scenario, setting, rate, seed)
        yield tried(setting, rate, seed, measure(trained), trained, target)


def chosen(trials: Sequence[Trial]) -> dict[Setting, Chosen]:
    """Of each setting the runs by the rate at which the most of them reach the target, of these the one at which they do in the
    fewest updates (by their geometric mean). Settings that never do have no runs."""
    found: dict[Setting, Chosen] = {}
    for setting in dict.fromkeys(trial.setting for trial in trials):
        rates = sorted({trial.rate for trial in trials if trial.setting == setting})
        by_rate = {rate: [one for one in trials if one.setting == setting and one.rate == rate] for rate in rates}
        best = min(rates, key=lambda rate: _cost(by_rate[rate]))
        steps = [one.updates for one in by_rate[best] if one.updates is not None]
        runs = tuple(Reached(setting.batch, setting.staleness, one) for one in steps)
        behind = float(np.mean([one.behind for one in by_rate[best]]))
        at_the_end = len(rates) > 1 and best in (rates[0], rates[-1])
        found[setting] = Chosen(best, runs, len(by_rate[best]) - len(runs), behind, at_the_end)
    return found


def _cost(trials: Sequence[Trial]) -> tuple[int, float]:
    """How many do not reach the target, and the mean logarithm of what the others take."""
    logs = [math.log(trial.updates) for trial in trials if trial.updates is not None]
    return len(trials) - len(logs), float(np.mean(logs)) if logs else math.inf


def by_setting(found: Mapping[Setting, Chosen]) -> dict[str, tuple[Reached, ...]]:
    """Runs that reached the target, for fitting."""
    return {str(setting): one.runs for setting, one in found.items() if one.runs}
