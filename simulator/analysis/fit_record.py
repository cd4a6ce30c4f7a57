"""What a fit of constants to measured runs found, as data for JSON, text and pages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from scaleproof.simulator.analysis.planner.words import layout
from scaleproof.simulator.common.record import Record
from scaleproof.simulator.common.units import counted, format_interval_s, format_time_s
from scaleproof.simulator.scenario.schema import Scenario

# File of a record in its folder.
FILE: Final = "fit.json"
# Folder of a measured run in that of its scenario.
_MEASURED: Final = "measured"


class FitConstant(Record):
    """A constant before and after runs. Texts have units. offset: from the shipped value, in standard deviations of the prior;
    deviation: of the posterior, in the same unit. moved: whether runs taught anything about it."""

    name: str
    meaning: str
    prior: str
    prior_low: str
    prior_high: str
    value: str
    low: str
    high: str
    offset: float
    deviation: float
    moved: bool


class FitRun(Record):
    """A measured run and its predictions in seconds of a step: with shipped constants (before) and fitted ones (after), with
    their 90 % interval. group: runs with equal groups differ in their layout alone. is_given: whether constants were fitted to
    it; else it only checks them. is_extrapolated: whether it has more GPUs than any given run."""

    place: str
    layout: str
    gpus: int
    group: str
    measured_s: float
    before_s: float
    after_s: float
    low_s: float
    high_s: float
    is_given: bool = True
    is_extrapolated: bool = False

    @property
    def short_place(self) -> str:
        """The name of its file, and the line; the scenario's name for a run that `measure` kept."""
        place = Path(self.place)
        return place.parent.name if place.name == _MEASURED else place.name

    @property
    def is_inside(self) -> bool:
        """Whether the measured time lies in the 90 % interval."""
        return self.low_s <= self.measured_s <= self.high_s

    @property
    def error_before(self) -> float:
        """Signed relative error with shipped constants."""
        return self.before_s / self.measured_s - 1

    @property
    def error_after(self) -> float:
        """Signed relative error with fitted constants."""
        return self.after_s / self.measured_s - 1


class FitTarget(Record):
    """The scenario that is predicted. before_low_s and so on: the 90 % interval. is_extrapolated: whether it has more GPUs than
    any run."""

    name: str
    layout: str
    gpus: int
    before_s: float
    before_low_s: float
    before_high_s: float
    after_s: float
    low_s: float
    high_s: float
    is_extrapolated: bool


class NextRun(Record):
    """A run that may be measured next. step_time_s: predicted. deviation: standard deviation of the logarithm of the target's
    step time by uncertain constants, after that measurement is expected. fields: lines of a scenario file."""

    layout: str
    gpus: int
    step_time_s: float
    deviation: float
    fields: str


class FitRegret(Record):
    """Runs that differ in their layout alone: the one that fitted predictions choose, and its time over the best one's, less
    1."""

    group: str
    runs: int
    chosen: str
    best: str
    regret: float


class FitRecord(Record):
    """What a fit found. noise: standard deviation of the logarithm of a measured step time around its prediction. deviation: of
    the target's logarithm by uncertain constants. candidates: number of layouts that next runs were chosen from."""

    model: str
    cluster: str
    framework: str
    constants: tuple[FitConstant, ...]
    runs: tuple[FitRun, ...]
    noise: float
    target: FitTarget
    deviation: float
    next_runs: tuple[NextRun, ...]
    candidates: int
    regrets: tuple[FitRegret, ...] = ()

    def __repr__(self) -> str:
        low_s, high_s = self.target.low_s, self.target.high_s
        following = f"\n  measure next: {self.next_runs[0].gpus} GPUs, {self.next_runs[0].layout}" if self.next_runs else ""
        return (
            f"{self.framework} on {self.cluster}, fitted to {counted(len(self.given), 'run')} of {self.model}\n"
            f"  {self.target.name} on {counted(self.target.gpus, 'GPU')}: {format_time_s(self.target.after_s)} a step "
            f"(90 % interval {format_interval_s(low_s, high_s)}){following}"
        )

    @property
    def given(self) -> tuple[FitRun, ...]:
        """Runs that constants were fitted to."""
        return tuple(run for run in self.runs if run.is_given)

    @property
    def checked(self) -> tuple[FitRun, ...]:
        """Runs that were predicted without being given."""
        return tuple(run for run in self.runs if not run.is_given)


def layout_of(scenario: Scenario) -> str:
    """The degrees of parallelism, microbatches, ZeRO stage and recomputation of a scenario, in words."""
    strategy, plan = scenario.strategy, scenario.strategy.plan
    if plan.servers:
        return f"{strategy.kind.replace('_', ' ')} on {strategy.training_ranks}, {plan.servers} servers"
    recompute = scenario.training.recompute.shorthand
    return layout(
        {
            "workers": strategy.workers,
            "tensor": plan.tensor,
            "stages": strategy.stages,
            "chunks": getattr(strategy, "chunks", 1),
            "context": plan.context,
            "expert": plan.expert,
            "samples": scenario.samples_per_worker // strategy.microbatches,
            "microbatches": strategy.microbatches,
            "zero": scenario.training.zero,
            "recompute": recompute if isinstance(recompute, str) else str(recompute),
        }
    )
