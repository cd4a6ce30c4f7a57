"""Predictions of single rows of published tables, and the options that they are made with."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from scaleproof.simulator.frameworks.framework import Framework
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.error_model import RAW, ErrorCase, ErrorModel, shipped

# Value of `Options.leave_out`: nothing is fitted to the row's own source.
LEAVE_OUT_SOURCE: Final = "source"
ROW_COLUMNS: Final = (
    "id", "set", "of", "predicted", "measured", "error", "low", "high", "assumed", "framework", "scenario",
)  # fmt: skip
# What a row measures. Kernels have totals of their own, since devices are fitted to them.
Quantity = Literal["speed", "memory", "fit", "ratio", "kernel", "spread"]


class Options(NamedTuple):
    """Options of predictions. calibrated: use constants that were fitted on named rows. ablate: mechanisms of the framework
    that are switched off. frameworks: whether scenarios use the row's framework or the default. raw: whether intervals are from
    the priors of the cluster alone. leave_out: "source" if nothing may be fitted to a row's own source."""

    calibrated: bool = False
    ablate: tuple[str, ...] = ()
    frameworks: bool = True
    raw: bool = False
    leave_out: str = ""

    def ablated(self, scenario: Scenario) -> Scenario:
        """The scenario without the mechanisms of its framework that are switched off."""
        framework = functools.reduce(Framework.ablated, self.ablate, scenario.framework)
        return scenario if framework is scenario.framework else scenario.copied(framework=framework)

    def errors(self, source: str) -> ErrorModel:
        """The error model for rows of a source."""
        if self.raw:
            return RAW
        return shipped().left_out(source) if self.leave_out == LEAVE_OUT_SOURCE else shipped()


class Uncertainty(NamedTuple):
    """What the error model is fitted to besides a row's error.

    deviation: of the logarithm of the predicted value by quantities of the cluster alone. exposed: see `PredictionInterval`.
    device: name of the devices. degrees: see `error_model.degrees`. is_rate: whether the value is a rate, not a time.
    """

    case: ErrorCase
    deviation: float = 0.0
    exposed: float = 1.0
    device: str = ""
    degrees: tuple[str | int, ...] = ()
    is_rate: bool = False


@dataclass(frozen=True)
class Prediction:
    """Prediction of one row: the set it belongs to, and either predicted and measured value or the reason why it is skipped.

    id: of the row. source: repository, paper or system whose rows may have errors in common. framework: of the scenario.
    scenario: reference for `scaleproof show`. inputs: rows with equal inputs should have the same measurement. pairs: rows with
    equal pairs are compared for their order. choices: rows with equal choices are layouts of one training job, of which one is
    chosen; empty if the row is of no such job. fits: whether the run is predicted to fit as surely as plans do. interval:
    90 % prediction interval, if known. uncertainty: what it depends on. of: predicted quantity; totals are of speed, a time or
    a rate. nodes: their number, 0 if the row does not state it.
    """

    set_name: str
    predicted: float = math.nan
    measured: float = math.nan
    skipped: str = ""
    assumed: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    interval: tuple[float, float] | None = None
    of: Quantity = "speed"
    nodes: int = 0
    id: str = ""
    source: str = ""
    uncertainty: Uncertainty | None = None
    framework: str = ""
    scenario: str = ""
    choices: tuple[str, ...] = ()
    fits: bool = True

    @property
    def error(self) -> float:
        """Signed relative error."""
        return self.predicted / self.measured - 1

    def plain(self) -> dict[str, Any]:
        """The prediction as data for a line of `--rows` and for JSON, with the names of `ROW_COLUMNS`."""
        low, high = self.interval or (None, None)
        values = (
            self.id, self.set_name, self.of, self.predicted, self.measured, self.error, low, high, " ".join(self.assumed),
            self.framework, self.scenario,
        )  # fmt: skip
        return dict(zip(ROW_COLUMNS, values, strict=True))
