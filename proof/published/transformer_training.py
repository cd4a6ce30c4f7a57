"""Predictions of published training runs of transformers, each row as a scenario that `scaleproof predict` would time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from scaleproof.proof.published.calibrations import calibrations, posteriors, shipped_fits
from scaleproof.proof.published.prediction import Options, Prediction, Uncertainty
from scaleproof.simulator.common.catalog import PUBLISHED
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import timed
from scaleproof.simulator.published.training_runs import RowScenario, row_scenario
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.error_model import (
    case_of_memory,
    case_of_scenario,
    degrees,
    memory_error,
    most_fitting_bytes,
)
from scaleproof.simulator.uncertainty.prediction_interval import spread
from scaleproof.simulator.uncertainty.unmodelled import most_s
from scaleproof.validator.fitting.fit_file import with_posterior
from scaleproof.validator.fitting.fitted_constants import Posterior

Row = Mapping[str, str]

_SHIPPED = shipped_fits("transformer_training")
# Rows on which constants of shipped frameworks were fitted, and in addition those that a calibrated score is given.
CALIBRATION = tuple(f"{one.constants}: {', '.join(one.rows)}" for one in _SHIPPED)
CALIBRATED = (*CALIBRATION, *(f"{' and '.join(one.sets)}: {', '.join(one.rows)}" for one in calibrations()))
_FITTED_ROWS = frozenset(row for one in _SHIPPED for row in one.rows)
_GIVEN = _FITTED_ROWS | {name for one in calibrations() for name in one.rows}
# Columns that describe the row itself or its results.
_NO_INPUTS = ("id", "step_time_s", "memory_GiB", "fits", "measured_as", "note", "source")
# Rows that are equal in these columns trained the same model in the same way on equal GPUs, in layouts that can be chosen.
_CHOICES = (
    "model", "layers", "hidden", "seq_len", "cluster", "gpu", "gpus", "global_batch_seqs", "precision", "fp8_recipe",
    "optimizer", "software",
)  # fmt: skip
_FITTED_ON_IT = "constants were fitted on it"


def calibrated(options: Options, rows: Sequence[Row]) -> Callable[[Row], list[Prediction]]:
    """`predict` with constants that are fitted to the given rows of the sets that occur in some rows."""
    learned = posteriors(row.get("source_set", "") for row in rows)
    return functools.partial(predict, options=options, learned=learned)


def predict(
    row: Row,
    options: Options = Options(),  # noqa: B008 (it never changes)
    learned: Mapping[tuple[str, str], Posterior] = MappingProxyType({}),
) -> list[Prediction]:
    """Predictions of a row's step time, and of its memory and whether it fits if the row states them; otherwise skipped.

    learned: constants that were fitted to given rows, by set and GPU.
    """
    return list(_predictions(row, options, learned))


def scenario_of(
    row: Row,
    options: Options,
    learned: Mapping[tuple[str, str], Posterior] = MappingProxyType({}),
) -> RowScenario | str:
    """The scenario of a row, or the reason to skip it. Raises ScaleproofError if the row cannot be expressed as a scenario."""
    description = row_scenario(row, named=options.frameworks)
    changed = framework = description.scenario.framework
    for mechanism in options.ablate:
        changed = changed.ablated(mechanism)
    description = description if changed is framework else row_scenario(row, changed)
    if row.get("id") in (_GIVEN if options.calibrated else _FITTED_ROWS):
        return _FITTED_ON_IT
    posterior = learned.get((row.get("source_set", ""), row.get("gpu", "")))
    return (
        description
        if posterior is None
        else replace(description, scenario=with_posterior(description.scenario, posterior), slower=None)
    )


def _predictions(row: Row, options: Options, learned: Mapping[tuple[str, str], Posterior]) -> Iterator[Prediction]:
    name = row.get("source_set") or "not named"
    inputs = tuple(value for column, value in row.items() if column not in _NO_INPUTS)
    pairs = row.get("model", ""), row.get("gpus", "")
    try:
        description = scenario_of(row, options, learned)
        if isinstance(description, str):
            yield Prediction(name, skipped=description)
            return
        usage = memory(description.scenario)
        skipped = _not_timed(row, usage.fits)
        predicted_s, interval_s, uncertainty = (
            (math.nan, None, None) if skipped else step_s(description.scenario, options, name)
        )
        if interval_s is not None and description.slower is not None:
            slowest_s = step_s(description.slower, options, name)[1]
            interval_s = interval_s[0], max(interval_s[1], slowest_s[1] if slowest_s else 0.0)
        measured_s = math.nan if skipped else _positive(row["step_time_s"])
        measured_bytes = _positive(row["memory_GiB"]) * 2**30 if row.get("memory_GiB") else math.nan
    except ScaleproofError as error:
        yield Prediction(name, skipped=str(error).partition(";")[0])
        return
    except (KeyError, ValueError):
        yield Prediction(name, skipped="no run that can be read")
        return
    framework = description.scenario.framework.name
    choices = tuple(row.get(column, "") for column in _CHOICES)
    of_memory = memory_error(description.scenario, options.errors(name))
    most_bytes = most_fitting_bytes(usage.capacity_bytes, of_memory)
    about: dict[str, Any] = {
        "inputs": inputs, "pairs": pairs, "assumed": description.assumed, "framework": framework,
        "scenario": f"{PUBLISHED}{row.get('id', '')}", "source": name,
    }  # fmt: skip
    yield Prediction(
        name, predicted_s, measured_s, skipped, interval=interval_s, uncertainty=uncertainty, nodes=description.nodes,
        choices=choices, fits=usage.worst.total_bytes <= most_bytes, **about,
    )  # fmt: skip
    if row.get("memory_GiB"):
        reported_bytes = usage.reported_bytes(description.scenario.framework.memory)
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
    scenario: Scenario,
    options: Options = Options(),  # noqa: B008 (it never changes)
    source: str = "",
) -> tuple[float, tuple[float, float] | None, Uncertainty | None]:
    """Seconds of a steady step as in `predict`, and the 90 % interval with what it depends on. source: of the row."""
    run, interval = timed(scenario), spread(scenario, options.errors(source))
    ends_s = interval.low * run.step_time_s, interval.high * run.step_time_s + most_s(scenario)
    known = Uncertainty(
        case_of_scenario(scenario),
        interval.quantities_deviation,
        interval.exposed,
        scenario.cluster.device.name,
        degrees(scenario),
    )
    return run.step_time_s, ends_s, known


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
