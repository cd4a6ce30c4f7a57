"""A measured convergence in words and as data: each setting's updates beside the model's, the fit, and how it holds up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any, Final

from scaleproof.simulator.common.units import format_number
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration.fit.curve_fitting.convergence import FittedConvergence
from scaleproof.validator.experiments.convergence.convergence import Chosen, Setting, Trial
from scaleproof.validator.experiments.convergence.record import piece

_UNITS: Final = {
    "minimum_steps": "updates",
    "critical_batch": "samples",
    "staleness_penalty": "of minimum_steps, by each update of another",
}
_HEAD: Final = ("", "batch", "others", "behind", "rate", "updates", "model")


def describe(scenario: Scenario, target: float, found: Mapping[Setting, Chosen], fitted: FittedConvergence) -> str:
    """For people to read; the last line is a piece of a scenario."""
    lines = [f"{scenario.name}: updates to a loss of {target:g}, by the best learning rate of each setting"]
    lines += _table([_HEAD, *(_row(setting, one, fitted) for setting, one in found.items())])
    for name, error in fitted.errors.items():
        value = fitted.convergence.model_dump()[name]
        lines.append(f"{name:<18} {value:.3g} ± {error:.2g} {_UNITS[name]} (standard error)")
    return "\n".join([*lines, *_held_out(fitted), piece(fitted)])


def _row(setting: Setting, one: Chosen, fitted: FittedConvergence) -> tuple[str, ...]:
    name = "synchronous" if setting.mode == "synchronous" else str(setting)
    first = name, str(setting.batch), str(setting.staleness), f"{one.behind:.1f}", f"{one.rate:g}"
    if not one.runs:
        return *first, "not reached", ""
    model = fitted.convergence.steps(setting.batch, setting.staleness)
    steps = geometric_mean([run.steps for run in one.runs])
    return *first, format_number(steps), format_number(model)


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  " + "  ".join([f"{row[0]:<{widths[0]}}", *cells]).rstrip()


def notes(scenario: Scenario, found: Mapping[Setting, Chosen], fitted: FittedConvergence) -> Iterator[str]:
    """What is to be known of the runs before they are trusted."""
    if fitted.vague:
        yield f"these runs hardly tell {' and '.join(fitted.vague)}; give more seeds, and settings that are further apart"
    if missed := sum(one.missed for one in found.values()):
        yield f"{missed} of the runs by these rates did not reach it in {scenario.steps} updates; they are not in the fit"
    if ends := [str(setting) for setting, one in found.items() if one.runs and one.is_at_the_end]:
        yield f"the best rate is the largest or the smallest of those tried for {'; '.join(ends)}; try further ones"


def _held_out(fitted: FittedConvergence) -> Iterator[str]:
    if not fitted.held_out:
        yield f"runs are off the fit by {fitted.scatter:.0%} (standard deviation); too few settings to leave any out"
        return
    off = [abs(one.error) for one in fitted.held_out]
    yield f"held out, one of {len(off)} settings at a time: off by {median(off):.0%} in the median, {max(off):.0%} at most"


def plain(trials: Sequence[Trial], found: Mapping[Setting, Chosen], fitted: FittedConvergence) -> dict[str, Any]:
    """As data for JSON."""
    return {
        "convergence": fitted.convergence.model_dump(exclude_none=True),
        "standard_errors": dict(fitted.errors),
        "scatter": fitted.scatter if math.isfinite(fitted.scatter) else None,
        "settings": [{**setting._asdict(), **one._asdict(), "runs": [run._asdict() for run in one.runs]}
                     for setting, one in found.items()],
        "held_out": [{**one._asdict(), "error": one.error} for one in fitted.held_out],
        "trials": [trial.plain() for trial in trials],
    }  # fmt: skip
