"""Goodput: what is left of a throughput where things fail, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from scaleproof.simulator.analysis.goodput.rates import Saving
from scaleproof.simulator.analysis.goodput.renewal import Times

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class CheckpointChoice:
    """An interval between checkpoints by a rule, and the ratio that it gives: expected in closed form, and simulated."""

    rule: str
    interval_s: float
    expected: float
    simulated: float


@dataclass(frozen=True)
class Goodput:
    """What is left of a scenario's throughput over so many days.

    simulated_days: how many of them were simulated, in `samples` samples. counts: of each component of the job;
    failures_per_day: expected, of all of a component together. in_repair: nodes, on average, if training never waited for any;
    enough_spares: that would be enough 99 % of the time; None where there is always one. shares: of the time, by part: mean,
    and between what it is with a probability of 90 %; the means add up to 1. expected: the ratio in closed form, as if nodes
    were always at hand. failures, stops, growths: mean numbers of interruptions in these days: unexpected, planned, and to grow
    again. interval_s: of training between checkpoints. choices: what rules for it give. halved: the ratio in closed form, if
    failures came half as often, or each of these took half as long. cost_USD: of all nodes, spare ones among them.
    """

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
    times: Times
    saving: Saving
    step_s: float
    interval_s: float
    is_optimum: bool
    choices: tuple[CheckpointChoice, ...]
    halved: Mapping[str, float]
    samples_per_s: float
    tokens_per_sample: int | None
    cost_USD: float | None
    warnings: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """The effective training time ratio: useful time over all time, mean over the samples."""
        return self.shares["useful"][0]

    @property
    def interval(self) -> tuple[float, float]:
        """Between which the ratio is with a probability of 90 %."""
        return self.shares["useful"][1:]

    @property
    def goodput_samples_per_s(self) -> float:
        """Samples a second that training gets on by."""
        return self.ratio * self.samples_per_s

    @property
    def trained_samples(self) -> float:
        """In all of the days."""
        return self.goodput_samples_per_s * self.days * 86400

    @property
    def cost_USD_per_million(self) -> float | None:
        """Of tokens, or of samples where the model reads none."""
        trained = self.trained_samples * (self.tokens_per_sample or 1)
        return self.cost_USD / trained * 1e6 if self.cost_USD is not None and trained else None

    def parts(self) -> pd.DataFrame:
        """A row for each part of the time."""
        import pandas as pd

        rows = pd.DataFrame.from_dict(dict(self.shares), orient="index", columns=["share", "share_low", "share_high"])
        rows.insert(0, "days", rows["share"] * self.days)
        return rows.rename_axis("part")

    def plain(self) -> dict[str, Any]:
        """As data for JSON, in SI units and shares."""
        low, high = self.interval
        derived = {
            "ratio": self.ratio,
            "ratio_interval": [low, high],
            "goodput_samples_per_s": self.goodput_samples_per_s,
            "trained_samples": self.trained_samples,
            "cost_USD_per_million": self.cost_USD_per_million,
        }
        return asdict(self) | derived
