"""Predictions of published runs of recommenders: step times."""

from __future__ import annotations

from typing import Final

from scaleproof.proof.published.prediction import Options, Prediction
from scaleproof.proof.published.transformer_training import step_s
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.published.recommenders import recommender_run
from scaleproof.simulator.published.tables import Row

# No constant is fitted to these rows.
CALIBRATION: tuple[str, ...] = ()
# Columns that describe the row itself or its results.
_NO_INPUTS: Final = ("id", "samples_per_s", "step_time_s", "measured_as", "note", "source")
# Runs that are equal in these columns are compared for their order.
_SAME_JOB: Final = ("model", "gpu", "batch_total", "software")


def predict(
    row: Row,
    options: Options = Options(),  # noqa: B008 (it never changes)
) -> Prediction:
    """The prediction of a row's step time. A row that cannot be predicted is skipped with the reason."""
    name = row["id"].rpartition("-")[0].partition("-")[2] or "not named"
    measured_s = _measured_s(row)
    if measured_s is None:
        return Prediction(name, skipped="no step time, and no rate of a batch")
    try:
        run = recommender_run(row, named=options.frameworks)
        scenario = options.ablated(run.scenario)
        seconds, interval, known = step_s(scenario, options, name)
    except ScaleproofError as error:
        return Prediction(name, skipped=str(error).partition(";")[0])
    except (KeyError, ValueError):
        return Prediction(name, skipped="no run that can be read")
    return Prediction(
        name, seconds, measured_s, assumed=run.assumed, interval=interval, uncertainty=known, source=name,
        nodes=int(row["nodes"] or 1), inputs=tuple(value for column, value in row.items() if column not in _NO_INPUTS),
        pairs=tuple(row[column] for column in _SAME_JOB), framework=scenario.framework.name,
    )  # fmt: skip


def _measured_s(row: Row) -> float | None:
    """The measured step time in seconds, else that of the measured rate; None without either."""
    if row["step_time_s"]:
        return float(row["step_time_s"])
    return float(row["batch_total"]) / float(row["samples_per_s"]) if row["batch_total"] and row["samples_per_s"] else None
