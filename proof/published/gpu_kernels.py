"""Predictions of published kernel times, on the shipped device of each row's GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from scaleproof.proof.published.prediction import Prediction
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.validator.kernels.attention import IMPLEMENTATION
from scaleproof.validator.kernels.devices import device_of, precision_of
from scaleproof.validator.kernels.plausibility import check_units, flops
from scaleproof.validator.kernels.rates import interval_s, predicted_s
from scaleproof.validator.kernels.table import FORWARD, SHAPES, Indices, KernelTable, read

CALIBRATION: Final[tuple[str, ...]] = ()
NOTES: Final = (
    "rows that ship are those that devices were fitted to; errors of left-out shapes: python benchmarks/kernels.py",
)


def predict_table(path: Path) -> list[Prediction]:
    """Predicted seconds of each row of a table; rows that cannot be predicted are skipped with the reason.

    Raises InputError if the table cannot be read, or its times are in a wrong unit.
    """
    table = read(path)
    devices = {gpu: device for gpu in table.gpus if (device := device_of(gpu)) is not None}
    check_units(table, devices)
    found: dict[int, Prediction] = {
        row: Prediction(_set_name(table, row), skipped=problem.reason, of="kernel") for row, problem in table.problems.items()
    }
    for gpu in table.gpus:
        for kind in SHAPES:
            of_kind = table.rows(kind) & (table.gpu == gpu)
            columns = (table.precision, table.implementation, table.direction)
            for key in dict.fromkeys(zip(*(column[of_kind].tolist() for column in columns), strict=True)):
                own = np.all([column == name for column, name in zip(columns, key, strict=True)], axis=0)
                rows = np.flatnonzero(of_kind & own)
                found.update(zip(rows.tolist(), _of_set(table, rows, devices.get(gpu)), strict=True))
    return [found[row] for row in range(len(table))]


def _of_set(table: KernelTable, rows: Indices, device: Device | None) -> Iterator[Prediction]:
    """Predictions of rows of one GPU, kind, precision, implementation and direction."""
    kind, precision, name = str(table.kind[rows[0]]), str(table.precision[rows[0]]), _set_name(table, rows[0])
    reason = _reason(device, table, int(rows[0]))
    if device is None or reason:
        yield from (Prediction(name, skipped=reason, of="kernel") for _ in rows)
        return
    own = table.subset(np.isin(np.arange(len(table)), rows))
    times_s = predicted_s(device, kind, precision, own)
    low_s, high_s = interval_s(device, kind, precision, times_s, str(table.implementation[rows[0]]))
    columns = (times_s, own.measured_s, low_s, high_s, flops(own))
    for shape, (predicted, measured, low, high, work) in zip(
        own.shape_texts(), np.stack(columns, axis=1).tolist(), strict=True
    ):
        # kernels with the same work are compared for their order
        yield Prediction(
            name, predicted, measured, inputs=(shape,), pairs=(f"{work:.6g}",), interval=(low, high), of="kernel",
            id=f"{kind} {shape}",
        )  # fmt: skip


def _reason(device: Device | None, table: KernelTable, row: int) -> str:
    """Why a row's set cannot be predicted; empty if it can."""
    if device is None:
        return f"no device ships for the GPU {table.gpu[row]}"
    if device.kernels is None or device.efficiency is not None:
        return f"{device.name} has no kernel model"
    if precision_of(device, table.precision[row]) is None:
        return f"{device.name} has no peak rate in {table.precision[row]}"
    return ""


def _set_name(table: KernelTable, row: int) -> str:
    columns = (table.gpu, table.kind, table.precision, table.implementation, table.direction)
    words = [str(column[row]) for column in columns]
    return " ".join(word for word in words if word not in ("", IMPLEMENTATION, FORWARD))
