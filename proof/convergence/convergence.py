"""Measurement of convergence: a small problem is trained with several batch sizes, and with servers that do not synchronise
workers.

Each setting is trained with several learning rates and represented by the one that needs the fewest updates, because this is
what the model describes: batch sizes and gradient delays have learning rates of their own (arXiv 1812.06162, section 2.2; arXiv
2206.08307).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from scaleproof.proof.convergence.fit import RunToTarget
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.scenario.training import Batch
from scaleproof.validator.record.steps import warmup_steps

Mode = Literal["synchronous", "stale_synchronous", "asynchronous"]

# Share of a run's last updates in which reaching the target does not count, because too few updates follow to confirm it.
_TOO_LATE: Final = 0.1


class Setting(NamedTuple):
    """A way of training. batch: samples of an update. bound: of stale synchronous servers only."""

    mode: Mode
    workers: int
    batch: int
    bound: int | None = None

    @property
    def staleness(self) -> int:
        """Updates by other workers during a step of a worker."""
        return 0 if self.mode == "synchronous" else self.workers - 1

    def __str__(self) -> str:
        if self.mode == "synchronous":
            return f"synchronous, batch {self.batch}"
        bound = "" if self.bound is None else f", bound {self.bound}"
        return f"{self.mode.replace('_', ' ')}, {self.workers} workers{bound}"


@dataclass(frozen=True)
class Trial:
    """Result of a run. updates: after which the loss is at the target; None if it was not reached, or too late to confirm.
    behind: mean staleness of the gradients, in updates."""

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
        """Mode, workers, batch and bound of the trial."""
        return Setting(self.mode, self.workers, self.batch, self.bound)

    def plain(self) -> dict[str, Any]:
        """The trial as data for JSON."""
        return asdict(self)


class BestRateRuns(NamedTuple):
    """Runs of a setting with its best learning rate that reached the target. missed: number of runs that did not. behind: mean
    staleness of the gradients, in updates. is_at_the_end: whether the rate is the smallest or the largest one tried."""

    rate: float
    runs: tuple[RunToTarget, ...]
    missed: int
    behind: float
    is_at_the_end: bool


def settings(scenario: Scenario, batches: Sequence[int], workers: Sequence[int], bounds: Sequence[int]) -> list[Setting]:
    """Settings to train: synchronous with each batch size; and each number of workers, asynchronous and with each staleness
    bound. Raises InputError if the scenario has no parameter server, or workers cannot share a batch."""
    strategy = scenario.strategy
    if not isinstance(strategy, ParameterServer):
        raise InputError(
            f"{scenario.name}: only servers can train asynchronously; give a scenario whose strategy is parameter_server"
        )
    if odd := [batch for batch in batches if batch % strategy.workers]:
        raise InputError(f"--batches: {strategy.workers} workers do not divide {odd[0]} samples; give multiples of that")
    batch = scenario.samples_per_worker
    asynchronous = [Setting("asynchronous", number, batch) for number in workers]
    bounded = [Setting("stale_synchronous", number, batch, bound) for bound in bounds for number in workers]
    return [*(Setting("synchronous", strategy.workers, total) for total in batches), *asynchronous, *bounded]


def scenario_of(scenario: Scenario, setting: Setting, rate: float, seed: int) -> Scenario:
    """Scenario of a trial: `scenario.steps` updates of the parameters, in addition to the warm-up. Raises InputError."""
    is_synchronous = setting.mode == "synchronous"
    update = {"workers": setting.workers, "mode": setting.mode, "bound": setting.bound, "backups": 0}
    changed = {
        "strategy": scenario.strategy.model_copy(update=update),
        "batch": Batch(total=setting.batch * (1 if is_synchronous else setting.workers)),
        "steps": scenario.steps if is_synchronous else -(-scenario.steps // setting.workers),
        "training": scenario.training.model_copy(update={"learning_rate": rate, "seed": seed, "warmup_steps": 0}),
        "convergence": None,
    }
    try:
        return Scenario(**{name: getattr(scenario, name) for name in Scenario.model_fields} | changed)
    except FieldError as error:
        raise InputError(f"{scenario.name}, {setting}: {error}") from None


def check(scenario: Scenario) -> None:
    """Raises InputError if the scenario has nothing to learn."""
    if scenario.training.data is None or scenario.compute == "paced":
        what = "random data" if scenario.compute == "real" else "emulated compute"
        raise InputError(f"{scenario.name}: nothing can be learned from {what}; give a gpt, and a text as training.data")


def tried(setting: Setting, rate: float, seed: int, run: Run, trained: Scenario, target: float) -> Trial:
    """The trial that a run results in."""
    is_asynchronous = setting.mode != "synchronous"
    # losses of the warm-up are not recorded, but its updates count
    before = warmup_steps(trained) * (setting.workers if is_asynchronous else 1)
    reached = steps_to(run.update_losses if is_asynchronous else run.losses, target)
    behind = run.servers.version_staleness.mean if is_asynchronous and run.servers else 0.0
    return Trial(*setting, rate, seed, None if reached is None else before + reached, behind)


def steps_to(losses: Sequence[float], target: float) -> int | None:
    """The first step from which on the non-increasing curve closest to the losses is at the target; None if never or too late.

    Losses of small batches fluctuate; the non-increasing curve with the least squared distance (isotonic regression; Barlow et
    al., 1972) has no window to choose and no lag.
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
    """Trains each (setting, rate, seed) of `wanted` and yields its trial. measure: trains a scenario."""
    for setting, rate, seed in wanted:
        trained = scenario_of(scenario, setting, rate, seed)
        yield tried(setting, rate, seed, measure(trained), trained, target)


def chosen(trials: Sequence[Trial]) -> dict[Setting, BestRateRuns]:
    """For each setting, the runs with its best rate: the one with which the most runs reach the target, and of these the one
    with the fewest updates (geometric mean). Settings that never reach the target have no runs."""
    best_of: dict[Setting, BestRateRuns] = {}
    for setting in dict.fromkeys(trial.setting for trial in trials):
        rates = sorted({trial.rate for trial in trials if trial.setting == setting})
        by_rate = {rate: [trial for trial in trials if trial.setting == setting and trial.rate == rate] for rate in rates}
        best = min(rates, key=lambda rate: _cost(by_rate[rate]))
        steps = [trial.updates for trial in by_rate[best] if trial.updates is not None]
        runs = tuple(RunToTarget(setting.batch, setting.staleness, updates) for updates in steps)
        behind = float(np.mean([trial.behind for trial in by_rate[best]]))
        at_the_end = len(rates) > 1 and best in (rates[0], rates[-1])
        best_of[setting] = BestRateRuns(best, runs, len(by_rate[best]) - len(runs), behind, at_the_end)
    return best_of


def _cost(trials: Sequence[Trial]) -> tuple[int, float]:
    """Number of trials that do not reach the target, and the mean logarithm of the others' updates."""
    logs = [math.log(trial.updates) for trial in trials if trial.updates is not None]
    return len(trials) - len(logs), float(np.mean(logs)) if logs else math.inf


def by_setting(best_of: Mapping[Setting, BestRateRuns]) -> dict[str, tuple[RunToTarget, ...]]:
    """Runs that reached the target, by setting, for fitting."""
    return {str(setting): best.runs for setting, best in best_of.items() if best.runs}
