"""Constants of frameworks that were fitted on named published rows, for scores that leave these rows out."""

from __future__ import annotations

import functools
from typing import NamedTuple

import yaml

from scaleproof.simulator.common.units import parse_time_s
from scaleproof.simulator.frameworks import Framework
from scaleproof.simulator.scenario.published.tables import folder


class Constants(NamedTuple):
    """Factors on modelled kernel and host times, and seconds per microbatch in addition."""

    kernel_scale: float = 1.0
    host_scale: float = 1.0
    microbatch_s: float = 0.0

    def of(self, framework: Framework) -> Framework:
        """The framework with these constants."""
        host = framework.host.model_copy(update={"microbatch_s": self.microbatch_s})
        return framework.model_copy(update={"kernel_scale": self.kernel_scale, "host_scale": self.host_scale, "host": host})


class Fitted(NamedTuple):
    """Constants of a shipped framework, in words, and the ids of the rows of a table that they were fitted on."""

    table: str
    constants: str
    rows: tuple[str, ...]


@functools.cache
def fitted(table: str) -> tuple[Fitted, ...]:
    """All shipped constants that were fitted on rows of a published table."""
    found = yaml.safe_load((folder() / "fitted.yaml").read_text(encoding="utf-8"))
    every = (Fitted(one["table"], one["constants"], tuple(one["rows"])) for one in found)
    return tuple(one for one in every if one.table == table)


class Calibration(NamedTuple):
    """frameworks: names of those that share the constants. rows: ids of the rows that they were fitted on."""

    name: str
    frameworks: tuple[str, ...]
    rows: tuple[str, ...]
    constants: Constants


@functools.cache
def calibrations() -> tuple[Calibration, ...]:
    """All that ship."""
    found = yaml.safe_load((folder() / "calibrations.yaml").read_text(encoding="utf-8"))
    return tuple(
        Calibration(one["name"], tuple(one["frameworks"]), tuple(one["rows"]), _constants(**one["changes"])) for one in found
    )


def calibration_of(framework: Framework) -> Calibration | None:
    """The calibration of a framework; None if it is not calibrated."""
    return next((one for one in calibrations() if framework.name in one.frameworks), None)


def _constants(kernel_scale: float, host_scale: float = 1.0, microbatch: str = "0 s") -> Constants:
    return Constants(kernel_scale, host_scale, parse_time_s(microbatch))
