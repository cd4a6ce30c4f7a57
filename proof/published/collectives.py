"""Predictions of published nccl-tests lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from scaleproof.proof.published.prediction import Options, Prediction, Uncertainty
from scaleproof.simulator.cluster.collectives.nccl.constants import Tables, priors, replaced
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.published.tables import find_table, read_table
from scaleproof.simulator.uncertainty.error_model import case_of_collective
from scaleproof.simulator.uncertainty.linear_response import of_closed_form
from scaleproof.validator.collectives.rows import Row, case_of, size_and_ranks, source_of

CALIBRATION: Final = ()


def predict(row: Row, options: Options = Options()) -> Prediction:  # noqa: B008 (it never changes)
    """Predicted time of one line. Lines that cannot be predicted, or have no time, are skipped with the reason."""
    system, source = row.get("instance_or_system") or "not named", source_of(row)
    size_bytes, _ = size_and_ranks(row)
    if size_bytes < 0:
        return Prediction(system, skipped="no size or number of GPUs")
    set_name = f"{system} {'>=' if size_bytes >= 2**20 else '<'}1MiB"
    try:
        case = case_of(row)
        predicted_s = case.seconds(case.cluster)
        errors = case_of_collective(size_bytes, case.cluster)
        found = of_closed_form(case.seconds, case.cluster, errors, options.errors(source)) if predicted_s > 0 else None
    except ScaleproofError as error:
        return Prediction(set_name, skipped=str(error).partition(";")[0])
    interval_s = None if found is None else (found.low * predicted_s, found.high * predicted_s)
    uncertainty = None if found is None else Uncertainty(errors, found.quantities_deviation)
    key = (case.op, row["gpu"], str(case.ranks), row.get("n_nodes", ""), case.algorithm or "")
    inputs, nodes = (*key, str(size_bytes)), case.cluster.nodes
    return Prediction(
        set_name, predicted_s, case.measured_s, "", case.assumed, inputs, key[:3], interval_s, nodes=nodes, source=source,
        uncertainty=uncertainty,
    )  # fmt: skip


def leaving_out(options: Options) -> Callable[[Row], Prediction]:
    """`predict` with constants that are fitted to the shipped rows without the source of the predicted row."""
    from scaleproof.proof.collectives.fit import fit, fits_without
    from scaleproof.proof.collectives.observations import observations

    _, rows = read_table(find_table(Path("collectives.csv")))
    known = observations(rows)
    whole = fit(known, priors())
    fits = fits_without(known, priors(), "source", whole)
    return partial(_predict_without, {name: one.tables for name, one in fits.items()}, whole.tables, options)


def _predict_without(tables: Mapping[str, Tables], others: Tables, options: Options, row: Row) -> Prediction:
    """Predicted time with the tables of the row's source, or with others for a source that no fit left out."""
    with replaced(tables.get(source_of(row), others)):
        return predict(row, options)
