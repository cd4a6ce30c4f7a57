"""Predictions of published training runs of vision models: samples per second."""

from __future__ import annotations

from typing import Any, Final

from scaleproof.proof.published.prediction import Options, Prediction
from scaleproof.proof.published.transformer_training import step_s
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.published.tables import Row
from scaleproof.simulator.published.vision import vision_run

# No constant is fitted to these rows.
CALIBRATION: tuple[str, ...] = ()
# Columns that describe the row itself or its results.
_NO_INPUTS: Final = ("id", "samples_per_s", "step_time_s", "memory_GiB", "measured_as", "note", "source")
_SUSPECT: Final = "SUSPECT"


def predict(row: Row, options: Options = Options()) -> Prediction:  # noqa: B008 (it never changes)
    """Predicted samples/s of a row. Rows that cannot be predicted are skipped with the reason."""
    name = set_of(row)
    if _SUSPECT in row["note"]:
        return Prediction(name, skipped="marked as suspect by who made the table")
    try:
        run = vision_run(row, named=options.frameworks)
        scenario = options.ablated(run.scenario)
        measured = float(row["samples_per_s"])
        seconds, ends_s, known = step_s(scenario, options, name)
    except ScaleproofError as error:
        return Prediction(name, skipped=str(error).partition(";")[0])
    except (KeyError, ValueError):
        return Prediction(name, skipped="no run that can be read")
    samples = scenario.total_samples
    about: dict[str, Any] = {
        "inputs": tuple(value for column, value in row.items() if column not in _NO_INPUTS),
        "pairs": (row["gpu"], row["gpus"], row["precision"]), "assumed": run.assumed, "source": name,
        "framework": scenario.framework.name, "nodes": scenario.cluster.nodes,
    }  # fmt: skip
    interval = ends_s and (samples / ends_s[1], samples / ends_s[0])
    uncertainty = known and known._replace(is_rate=True)
    return Prediction(name, samples / seconds, measured, interval=interval, uncertainty=uncertainty, **about)


def set_of(row: Row) -> str:
    """The set of a row: the repository that its source names, and the folder in it."""
    repository, _, rest = row["source"].partition("@")
    folder = rest.partition(" ")[2].partition(" ")[0].removesuffix("README.md").strip("/")
    return f"{repository.rpartition('/')[2]} {folder}".strip() or "not named"
