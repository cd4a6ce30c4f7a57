"""Published training runs of transformers, predicted: each row as a scenario, timed as `scaleproof predict` times it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.published import Described, described
from scaleproof.simulator.scenario.published.calibrations import calibration_of, calibrations
from scaleproof.simulator.scenario.published.tables import PUBLISHED
from scaleproof.validator.published.score import Options, Prediction

Row = Mapping[str, str]

CALIBRATION: tuple[str, ...] = ()
# What the constants of a calibrated score were found on.
CALIBRATED = tuple(f"{one.name}: {', '.join(one.rows)}" for one in calibrations())
# What a row says of itself, and of what came of it.
_NO_INPUTS = ("id", "step_time_s", "memory_GiB", "fits", "measured_as", "note", "source")
_FITTED_ON_IT = "constants were fitted on it"


def predict(row: Row, options: Options = Options()) -> list[Prediction]:  # noqa: B008 (it never changes)
    """A row's step time, and its memory and whether it fits where the row says so; what cannot be predicted is skipped."""
    return list(_predictions(row, options))


def scenario_of(row: Row, options: Options) -> Described | str:
    """The scenario of a row; the reason to leave it out, if there is one. Raises ScaleproofError for what cannot be one."""
    found = described(row, named=options.frameworks)
    framework = found.scenario.framework
    if options.calibrated:
        calibration = calibration_of(framework)
        if calibration is not None and row.get("id") in calibration.rows:
            return _FITTED_ON_IT
        changed = calibration.constants.of(framework) if calibration is not None else framework
    else:
        changed = framework
    for mechanism in options.ablate:
        changed = changed.ablated(mechanism)
    return found if changed is framework else described(row, changed)


def _predictions(row: Row, options: Options) -> Iterator[Prediction]:
    name = row.get("source_set") or "not named"
    inputs = tuple(value for column, value in row.items() if column not in _NO_INPUTS)
    pairs = row.get("model", ""), row.get("gpus", "")
    try:
        found = scenario_of(row, options)
        if isinstance(found, str):
            yield Prediction(name, skipped=found)
            return
        held = memory(found.scenario)
        skipped = _not_timed(row)
        predicted_s, interval_s = (math.nan, None) if skipped else step_s(found, not options.calibrated)
        measured_s = math.nan if skipped else _positive(row["step_time_s"])
        measured_bytes = _positive(row["memory_GiB"]) * 2**30 if row.get("memory_GiB") else math.nan
    except ScaleproofError as error:
        yield Prediction(name, skipped=str(error).partition(";")[0])
        return
    except (KeyError, ValueError):
        yield Prediction(name, skipped="no run that can be read")
        return
    framework = found.scenario.framework.name
    about: dict[str, Any] = {
        "inputs": inputs, "pairs": pairs, "assumed": found.assumed, "framework": framework,
        "scenario": f"{PUBLISHED}{row.get('id', '')}",
    }  # fmt: skip
    yield Prediction(name, predicted_s, measured_s, skipped, interval=interval_s, nodes=found.nodes, **about)
    if row.get("memory_GiB"):
        told_bytes = max(getattr(rank, found.scenario.framework.memory.reports) for rank in held.ranks)
        yield Prediction(f"{name} memory", told_bytes, measured_bytes, of="memory", **about)
    if row.get("fits") in ("yes", "no"):
        right = held.fits == (row["fits"] == "yes")
        # an error is 0 or 1, and its mean the share of rows that are wrong
        yield Prediction(f"fits: {row['fits']}", 1.0 if right else 2.0, 1.0, of="fit", **about)


def step_s(found: Described, interval: bool = True) -> tuple[float, tuple[float, float] | None]:
    """Seconds of a steady step as `predict` has them, and its 90 % prediction interval."""
    run = timed(found.scenario, interval)
    return run.step_time_s, run.prediction_interval_s


def _not_timed(row: Row) -> str:
    """Why a row has no time to compare with, if so."""
    if row.get("fits") == "no":
        return "ran out of memory"
    if row.get("fits") == "failed":
        return "failed, without a stated reason"
    return "" if row.get("step_time_s") else "no time"


def _positive(text: str) -> float:
    """Raises ValueError for what is not."""
    found = float(text)
    if not 0 < found < math.inf:
        raise ValueError(f"{text} is not a positive number")
    return found
