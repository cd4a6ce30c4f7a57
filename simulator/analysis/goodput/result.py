"""The result of `goodput`: the throughput under failures, its losses, and what would change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from scaleproof.simulator.analysis.goodput.rates import CheckpointCost
from scaleproof.simulator.analysis.goodput.renewal import InterruptionTimes
from scaleproof.simulator.common.errors import naming_extras
from scaleproof.simulator.common.record import Record
from scaleproof.simulator.common.units import format_percent, format_time_s

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class CheckpointChoice:
    """A checkpoint interval by some rule, and its effective training time ratio in closed form and simulated."""

    rule: str
    interval_s: float
    expected: float
    simulated: float


class Goodput(Record):
    """Throughput and losses of a scenario over `days` with failures.

    simulated_days: simulated part of the days, in each of `samples` samples. counts: number of each component of the job.
    failures_per_day: expected failures, by component. in_repair: mean number of nodes in repair if training never waited for
    nodes; enough_spares: spares that suffice 99 % of the time; both None where a spare is always available. shares: of the
    time, by part: mean and 90 % interval; the means add up to 1. expected: the ratio in closed form, which assumes that nodes
    are always available. failures, stops, growths: mean number of failures, planned stops, and restarts with more workers.
    interval_s: training time between checkpoints. choices: results of rules for it. halved: the ratio in closed form with one
    loss halved, by loss. cost_USD: of all nodes, spares included. assumed_s: times of detection and restart that the scenario
    does not give, by field.
    """

    derived: ClassVar = ("ratio", "ratio_interval", "goodput_samples_per_s", "trained_samples", "cost_USD_per_million")

    scenario: str
    strategy: str
    framework: str
    framework_is_default: bool
    days: float
    simulated_days: float
    samples: int
    counts: Mapping[str, int]
    failures_per_day: Mapping[str, float]
    spares: int | None
    in_repair: float | None
    enough_spares: int | None
    shares: Mapping[str, tuple[float, float, float]]
    expected: float
    failures: float
    stops: float
    growths: float
    times: InterruptionTimes
    saving: CheckpointCost
    step_s: float
    interval_s: float
    is_optimum: bool
    choices: tuple[CheckpointChoice, ...]
    halved: Mapping[str, float]
    samples_per_s: float
    tokens_per_sample: int | None
    cost_USD: float | None
    warnings: tuple[str, ...]
    assumed_s: Mapping[str, float]

    def __repr__(self) -> str:
        low, high = map(format_percent, self.ratio_interval)
        return (
            f"{self.scenario}: {self.strategy} over {self.days:g} days\n"
            f"  effective training time ratio: {format_percent(self.ratio)} (90 % interval {low} to {high})\n"
            f"  failures: {self.failures:,.1f}; a checkpoint after {format_time_s(self.interval_s)} of training"
        )

    @property
    def ratio(self) -> float:
        """The effective training time ratio: useful time over all time, mean of the samples."""
        return self.shares["useful"][0]

    @property
    def ratio_interval(self) -> tuple[float, float]:
        """90 % interval of the ratio."""
        return self.shares["useful"][1:]

    @property
    def goodput_samples_per_s(self) -> float:
        """Useful samples per second."""
        return self.ratio * self.samples_per_s

    @property
    def trained_samples(self) -> float:
        """Useful samples in all of the days."""
        return self.goodput_samples_per_s * self.days * 86400

    @property
    def cost_USD_per_million(self) -> float | None:
        """Cost of a million tokens, or of a million samples where the model has no tokens."""
        trained = self.trained_samples * (self.tokens_per_sample or 1)
        return self.cost_USD / trained * 1e6 if self.cost_USD is not None and trained else None

    @naming_extras()
    def parts(self) -> pd.DataFrame:
        """One row per part of the time."""
        import pandas as pd

        rows = pd.DataFrame.from_dict(dict(self.shares), orient="index", columns=["share", "share_low", "share_high"])
        rows.insert(0, "days", rows["share"] * self.days)
        return rows.rename_axis("part")
