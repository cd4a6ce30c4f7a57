"""Console text and JSON data of a measured convergence: updates by setting, the fitted model, and its errors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any, Final

from scaleproof.commands.text.tables import table
from scaleproof.proof.convergence.convergence import BestRateRuns, Setting, Trial
from scaleproof.proof.convergence.fit import FittedConvergence
from scaleproof.proof.convergence.record import piece
from scaleproof.simulator.common.units import format_number, format_percent
from scaleproof.simulator.scenario.schema import Scenario

_UNITS: Final = {
    "minimum_steps": "updates",
    "critical_batch": "samples",
    "staleness_penalty": "of minimum_steps per update of another worker",
}
_HEAD: Final = ("", "batch", "others", "behind", "rate", "updates", "model")


def describe(scenario: Scenario, target: float, found: Mapping[Setting, BestRateRuns], fitted: FittedConvergence) -> str:
    """Console text. The last lines are YAML for a scenario."""
    lines = [f"{scenario.name}: updates to a loss of {target:g} at the best learning rate of each setting"]
    lines += table([_HEAD, *(_row(setting, one, fitted) for setting, one in found.items())], indent="  ")
    for name, error in fitted.errors.items():
        value = fitted.convergence.model_dump()[name]
        lines.append(f"{name:<18} {value:.3g} ± {error:.2g} {_UNITS[name]} (standard error)")
    return "\n".join([*lines, *_cross_validation(fitted), piece(fitted)])


def _row(setting: Setting, one: BestRateRuns, fitted: FittedConvergence) -> tuple[str, ...]:
    name = "synchronous" if setting.mode == "synchronous" else str(setting)
    first = name, str(setting.batch), str(setting.staleness), f"{one.behind:.1f}", f"{one.rate:g}"
    if not one.runs:
        return *first, "not reached", ""
    model = fitted.convergence.steps(setting.batch, setting.staleness)
    steps = geometric_mean([run.steps for run in one.runs])
    return *first, format_number(steps), format_number(model)


def notes(scenario: Scenario, found: Mapping[Setting, BestRateRuns], fitted: FittedConvergence) -> Iterator[str]:
    """Warnings about the runs."""
    if fitted.vague:
        yield f"these runs hardly determine {' and '.join(fitted.vague)}; use more seeds, and settings that differ more"
    if missed := sum(one.missed for one in found.values()):
        yield f"{missed} of the runs did not reach the target in {scenario.steps} updates; the fit leaves them out"
    if ends := [str(setting) for setting, one in found.items() if one.runs and one.is_at_the_end]:
        yield f"the best learning rate is the largest or smallest tried for {'; '.join(ends)}; try larger or smaller ones"


def _cross_validation(fitted: FittedConvergence) -> Iterator[str]:
    if not fitted.held_out:
        scatter = format_percent(fitted.scatter, 0)
        yield f"runs deviate from the fit by {scatter} (standard deviation); too few settings for cross-validation"
        return
    errors = [abs(one.error) for one in fitted.held_out]
    middle, most = (format_percent(error, 0) for error in (median(errors), max(errors)))
    yield f"leave-one-out over {len(errors)} settings: median error {middle}, largest {most}"


def plain(trials: Sequence[Trial], found: Mapping[Setting, BestRateRuns], fitted: FittedConvergence) -> dict[str, Any]:
    """The trials and the fit as data for JSON."""
    return {
        "convergence": fitted.convergence.model_dump(exclude_none=True),
        "standard_errors": dict(fitted.errors),
        "scatter": fitted.scatter if math.isfinite(fitted.scatter) else None,
        "settings": [{**setting._asdict(), **one._asdict(), "runs": [run._asdict() for run in one.runs]}
                     for setting, one in found.items()],
        "held_out": [{**one._asdict(), "error": one.error} for one in fitted.held_out],
        "trials": [trial.plain() for trial in trials],
    }  # fmt: skip
