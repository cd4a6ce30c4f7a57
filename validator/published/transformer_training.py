"""Predictions of published training runs of transformers, each row as a scenario that `scaleproof predict` would time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import timed, timed_with_interval
from scaleproof.simulator.scenario.published import Described, described
from scaleproof.simulator.scenario.published.calibrations import calibration_of, calibrations, fitted
from scaleproof.simulator.scenario.published.tables import PUBLISHED
from scaleproof.simulator.uncertainty.error_model import case_of_memory, case_of_scenario, degrees, memory_error
from scaleproof.validator.published.prediction import Options, Prediction, Uncertainty

Row = Mapping[str, str]

# Rows on which constants of shipped frameworks were fitted, and in addition those of a calibrated score.
CALIBRATION = tuple(f"{one.constants}: {', '.join(one.rows)}" for one in fitted())
CALIBRATED = (*CALIBRATION, *(f"{calibration.name}: {', '.join(calibration.rows)}" for calibration in calibrations()))
_FITTED_ROWS = frozenset(row for one in fitted() for row in one.rows)
# Columns that describe the row itself or its results.
_NO_INPUTS = ("id", "step_time_s", "memory_GiB", "fits", "measured_as", "note", "source")
_FITTED_ON_IT = "constants were fitted on it"


def predict(row: Row, options: Options = Options()) -> list[Prediction]:  # noqa: B008 (it never changes)
    """Predictions of a row's step time, and of its memory and whether it fits if the row states them; otherwise skipped."""
    return list(_predictions(row, options))


def scenario_of(row: Row, options: Options) -> Described | str:
    """The scenario of a row, or the reason to skip it. Raises ScaleproofError if the row cannot be expressed as a scenario."""
    description = described(row, named=options.frameworks)
    framework = description.scenario.framework
    if row.get("id") in _FITTED_ROWS:
        return _FITTED_ON_IT
    if options.calibrated:
        calibration = calibration_of(framework)
        if calibration is not None and row.get("id") in calibration.rows:
            return _FITTED_ON_IT
        changed = calibration.constants.of(framework) if calibration is not None else framework
    else:
        changed = framework
    for mechanism in options.ablate:
        changed = changed.ablated(mechanism)
    return description if changed is framework else described(row, changed)


def _predictions(row: Row, options: Options) -> Iterator[Prediction]:
    name = row.get("source_set") or "not named"
    inputs = tuple(value for column, value in row.items() if column not in _NO_INPUTS)
    pairs = row.get("model", ""), row.get("gpus", "")
    try:
        description = scenario_of(row, options)
        if isinstance(description, str):
            yield Prediction(name, skipped=description)
            return
        usage = memory(description.scenario)
        skipped = _not_timed(row, usage.fits)
        predicted_s, interval_s, uncertainty = (math.nan, None, None) if skipped else step_s(description, options, name)
        measured_s = math.nan if skipped else _positive(row["step_time_s"])
        measured_bytes = _positive(row["memory_GiB"]) * 2**30 if row.get("memory_GiB") else math.nan
    except ScaleproofError as error:
        yield Prediction(name, skipped=str(error).partition(";")[0])
        return
    except (KeyError, ValueError):
        yield Prediction(name, skipped="no run that can be read")
        return
    framework = description.scenario.framework.name
    about: dict[str, Any] = {
        "inputs": inputs, "pairs": pairs, "assumed": description.assumed, "framework": framework,
        "scenario": f"{PUBLISHED}{row.get('id', '')}", "source": name,
    }  # fmt: skip
    yield Prediction(
        name, predicted_s, measured_s, skipped, interval=interval_s, uncertainty=uncertainty, nodes=description.nodes, **about
    )
    if row.get("memory_GiB"):
        reported_bytes = usage.reported_bytes(description.scenario.framework.memory)
        of_memory = memory_error(description.scenario, options.errors(name))
        interval_bytes = of_memory and of_memory.interval(reported_bytes)
        known = Uncertainty(case_of_memory(description.scenario))
        yield Prediction(
            f"{name} memory", reported_bytes, measured_bytes, interval=interval_bytes, uncertainty=known, of="memory", **about
        )
    if row.get("fits") in ("yes", "no"):
        right = usage.fits == (row["fits"] == "yes")
        # the error is 0 or 1, and its mean the share of wrong rows
        yield Prediction(f"fits: {row['fits']}", 1.0 if right else 2.0, 1.0, of="fit", **about)


def step_s(
    description: Described,
    options: Options = Options(),  # noqa: B008 (it never changes)
    source: str = "",
) -> tuple[float, tuple[float, float] | None, Uncertainty | None]:
    """Seconds of a steady step as in `predict`, and the 90 % prediction interval with what it depends on; none for calibrated
    constants. source: of the row."""
    scenario = description.scenario
    if options.calibrated:
        return timed(scenario).step_time_s, None, None
    run, interval = timed_with_interval(scenario, options.errors(source))
    known = Uncertainty(
        case_of_scenario(scenario),
        interval.quantities_deviation,
        interval.exposed,
        scenario.cluster.device.name,
        degrees(scenario),
    )
    return run.step_time_s, run.prediction_interval_s, known


def _not_timed(row: Row, fits: bool) -> str:
    """Reason why a row has no time to compare with; "" if it has one. fits: whether its memory is predicted to suffice."""
    if row.get("fits") == "no":
        return "ran out of memory"
    if row.get("fits") == "failed":
        return "failed, predicted to fit" if fits else "failed, predicted not to fit"
    return "" if row.get("step_time_s") else "no time"


def _positive(text: str) -> float:
    """The positive number in the text. Raises ValueError if it is not one."""
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError(f"{text} is not a positive number")
    return number
