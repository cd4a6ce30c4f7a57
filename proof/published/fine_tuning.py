"""Predictions of published fine-tuning runs: step time, memory, whether they fit, and how methods compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from scaleproof.proof.published.prediction import Options, Prediction, Uncertainty
from scaleproof.proof.published.transformer_training import step_s
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.published.fine_tuning import FineTuningRun, fine_tuning_run
from scaleproof.simulator.published.tables import Row
from scaleproof.simulator.uncertainty.error_model import case_of_memory, memory_error

# No constant is fitted to these rows.
CALIBRATION: tuple[str, ...] = ()
# Columns that describe the row itself or its results.
_NO_INPUTS: Final = (
    "id", "step_time_s", "step_is", "tokens_per_s_total", "samples_per_s", "memory_GiB", "memory_kind", "host_memory_GiB",
    "fits", "note", "source",
)  # fmt: skip
# Runs that are equal in these columns differ in how the model is trained: in method, adapters and base precision.
_SAME_JOB: Final = (
    "model", "gpu", "gpus", "nodes", "strategy", "offload", "micro_batch", "grad_accum", "seq_len", "packing", "software",
    "activation_checkpointing",
)  # fmt: skip


def predict_among(
    row: Row,
    rows: Sequence[Row],
    options: Options = Options(),  # noqa: B008 (it never changes)
) -> list[Prediction]:
    """Predictions of a row's step time, memory and fit, as far as the row has them, and of the ratio of its step time to that
    of the first of `rows` that trains the same model with another method. Rows that cannot be predicted are skipped with the
    reason."""
    name = set_of(row)
    try:
        run = _run(row, options)
        return [*_predictions(row, run, options, name), *_ratio(row, run, rows, options, name)]
    except ScaleproofError as error:
        return [Prediction(name, skipped=str(error).partition(";")[0])]
    except (KeyError, ValueError):
        return [Prediction(name, skipped="no run that can be read")]


def set_of(row: Row) -> str:
    """The set of a row: the second part of its id, which names the source."""
    return row["id"].split("-")[1] if row["id"].count("-") > 1 else "not named"


def _run(row: Row, options: Options) -> FineTuningRun:
    run = fine_tuning_run(row, named=options.frameworks)
    return replace(run, scenario=options.ablated(run.scenario))


def _predictions(row: Row, run: FineTuningRun, options: Options, name: str) -> Iterator[Prediction]:
    scenario = run.scenario
    about: dict[str, Any] = {
        "inputs": tuple(value for column, value in row.items() if column not in _NO_INPUTS), "source": name,
        "pairs": tuple(row[column] for column in _SAME_JOB), "assumed": run.assumed, "framework": scenario.framework.name,
    }  # fmt: skip
    problem = _untimed(row, run)
    if problem:
        yield Prediction(name, skipped=problem)
    else:
        seconds, ends_s, known = step_s(scenario, options, name)
        interval = ends_s and (ends_s[0] / run.passes, ends_s[1] / run.passes)
        yield Prediction(
            name, seconds / run.passes, float(row["step_time_s"]), interval=interval, uncertainty=known,
            nodes=int(row["nodes"] or 1), **about,
        )  # fmt: skip
    usage = memory(scenario)
    if row["memory_GiB"]:
        predicted_bytes = (
            usage.reported_bytes(scenario.framework.memory)
            if run.reported is None
            else max(getattr(rank, run.reported) for rank in usage.ranks)
        )
        of_memory = memory_error(scenario, options.errors(name))
        yield Prediction(
            f"{name} memory", predicted_bytes, float(row["memory_GiB"]) * 2**30, of="memory",
            interval=of_memory and of_memory.interval(predicted_bytes), uncertainty=Uncertainty(case_of_memory(scenario)),
            **about,
        )  # fmt: skip
    if row["fits"] in ("yes", "no"):
        right = usage.fits == (row["fits"] == "yes")
        # the error is 0 or 1, and its mean the share of wrong rows
        yield Prediction(f"fits: {row['fits']}", 1.0 if right else 2.0, 1.0, of="fit", **about)


def _untimed(row: Row, run: FineTuningRun) -> str:
    """Why a row has no step time to compare with; "" if it has one."""
    if not row["step_time_s"]:
        return "no step time: " + ("it does not fit" if row["fits"] == "no" else "only memory is given")
    return "lengths vary, and only the longest is given: memory alone is compared" if run.lengths else ""


def _ratio(row: Row, run: FineTuningRun, rows: Sequence[Row], options: Options, name: str) -> Iterator[Prediction]:
    """The step time over that of the first row that trains the same model in another way, where lengths are fixed."""
    if _untimed(row, run):
        return
    same = [other for other in rows if all(other[column] == row[column] for column in _SAME_JOB) and other["step_time_s"]]
    if not same or same[0]["id"] == row["id"]:
        return
    other = _run(same[0], options)
    predicted = step_s(run.scenario)[0] / run.passes / (step_s(other.scenario)[0] / other.passes)
    measured = float(row["step_time_s"]) / float(same[0]["step_time_s"])
    yield Prediction(f"{name} ratio of methods", predicted, measured, of="ratio", source=name, assumed=run.assumed)
